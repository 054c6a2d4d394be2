"""A process that calls a tool (``python -m``); see ``callers`` for its protocol with the test.

``kill_at``: the phase and the moment at which it kills itself, as a machine that loses its power would.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import IO, Any

from counterfoil.contracts.calls import ToolCall
from counterfoil.contracts.phases import PhaseEvent
from counterfoil.contracts.stores.protocol import DedupStore, ReserveAnswer
from counterfoil.contracts.testing.reports import CallerAnswer
from counterfoil.contracts.testing.targets import CheckTarget, PreparedTool
from counterfoil.domain.effects.reservations import ReserveRequest


class ShortReservations:
    """A dedup store whose reservations lapse soon, so that a replay need not wait for the TTL of the contract."""

    def __init__(self, store: DedupStore, ttl_ms: int) -> None:
        self._store = store
        self._ttl_ms = ttl_ms

    async def reserve(self, request: ReserveRequest) -> ReserveAnswer:
        return await self._store.reserve(replace(request, ttl_ms=min(request.ttl_ms, self._ttl_ms)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def prepared(task: Mapping[str, Any]) -> PreparedTool:
    options: dict[str, Any] = {} if task.get("wait") is None else {"wait": task["wait"]}
    if task.get("kill_at") is not None:
        phase, moment = task["kill_at"]

        def kill(event: PhaseEvent) -> None:
            if (event.phase, event.moment) == (phase, moment):
                os.kill(os.getpid(), signal.SIGKILL)

        options["on_phase"] = kill
    target = CheckTarget(task["name"], task["given"], task["store"])
    ttl_ms = task.get("ttl_ms")
    if ttl_ms is None:
        return target.prepare(**options)
    return target.prepare(lambda store: ShortReservations(store, ttl_ms), **options)


async def call_once(tool: PreparedTool, call: ToolCall[Any], out: IO[str]) -> None:
    try:
        answer = CallerAnswer.of_result(await tool(call))
    except Exception as error:  # noqa: BLE001 (every end of a call is an answer)
        answer = CallerAnswer.of_exception(error)
    out.write(json.dumps(answer.to_document()) + "\n")
    out.flush()


async def make_calls(tool: PreparedTool, call: ToolCall[Any], count: int, out: IO[str]) -> None:
    await asyncio.gather(*(call_once(tool, call, out) for _ in range(count)))


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the tool prints must not get between the lines of the protocol
    task = json.loads(sys.stdin.readline())
    sys.path[:] = task["path"]
    tool = prepared(task)
    out.write('{"ready": true}\n')
    out.flush()
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            asked = json.loads(line)
            call = asked["call"]
            runner.run(make_calls(tool, ToolCall(call.pop("arguments"), **call), asked["count"], out))
    tool.close()


if __name__ == "__main__":
    main()
