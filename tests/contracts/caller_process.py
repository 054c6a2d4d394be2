"""A process that calls a tool many times at once with one key; the tests start several, and kill some.

Run as a program: one JSON document of options as argument. It writes ``ready``, waits for a line, makes its calls, and
writes their answers as one JSON list. The tool appends a line to a file: its effect.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from counterfoil.contracts import (
    DedupStore,
    EngineDedupStore,
    InFlightWait,
    PhaseEvent,
    PostgresDedupStore,
    SqliteDedupStore,
    ToolCall,
    ToolError,
    tool_contract,
)


class Payment(BaseModel):
    payment_id: str


def open_store(place: str) -> DedupStore:
    if place.startswith("http"):
        return EngineDedupStore(place, timeout=20)
    if place.startswith("postgresql"):
        return PostgresDedupStore(place, timeout=20)
    return SqliteDedupStore(place, busy_timeout=20)


def say(document: Any) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


async def run(options: dict[str, Any]) -> None:
    store, ledger = open_store(options["place"]), Path(options["ledger"])

    @tool_contract(name="pay", version="1.0.0", effect=options["effect"], pending_ttl=options["ttl"])
    async def pay(call: ToolCall[Payment]) -> dict[str, Any]:
        with ledger.open("a") as lines:  # one write, so that lines of several processes do not mix
            lines.write(f"{call.idempotency_key} {call.fence} {os.getpid()}\n")
        await asyncio.sleep(options["seconds"])
        return {"pid": os.getpid(), "payment_id": call.arguments.payment_id}

    async def stop_at(event: PhaseEvent) -> None:
        if [event.phase, event.moment] == options.get("stop_at"):
            say("stopped")
            await asyncio.Event().wait()

    wait = InFlightWait(options["wait"], first_pause=0.05, longest_pause=0.2)
    contract = pay.bind(store, wait=wait, on_phase=stop_at if options.get("stop_at") else None)

    async def answer() -> Any:
        try:
            return await contract(ToolCall({"payment_id": "p-1"}, idempotency_key=options["key"]))
        except ToolError as error:
            return error.to_dict()

    say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    say(await asyncio.gather(*(answer() for _ in range(options["callers"]))))
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.argv[1])))
