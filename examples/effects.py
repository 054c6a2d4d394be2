"""A refund service whose worker is killed in the middle of five refunds, one under each effect policy.

Two runs: in the first one the worker dies before it has called the bank, in the second one after the bank has paid. The
engine sees the same in both, a connection that broke, and cannot know what happened. The effect policy of a step says
what it does then. The tables show how often each refund was sent, how often the bank paid, what the work item became,
and how its outcome was found. Only ``pure`` pays twice: it is the wrong policy for a refund.

It starts an engine and workers of its own, on free ports:

    python examples/effects.py
"""

import asyncio
import os
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from aiohttp import web

from counterfoil.client import Client

AMOUNT = 14_000
KNOWS_KEYS = ("idempotent", "dedupe")
"""The refunds of these steps are made by an interface of the bank that takes idempotency keys; the others are not."""

EFFECTS: dict[str, dict[str, Any]] = {
    "pure": {"effect": {"policy": "pure"}},
    "idempotent": {"effect": {"policy": "idempotent"}},
    "dedupe": {"effect": {"policy": "dedupe", "scope": "global", "window": "7d", "downstream_window": "30d"}},
    "reconcile": {"effect": {"policy": "reconcile"}},  # and the bank's status_url, once its port is known
    "unsafe_once": {"effect": {"policy": "unsafe_once"}, "control": {"approval": {"reason": "it moves money"}}},
}
started: list[Process] = []
RETRIES = {"max_retries": 9, "backoff_type": "fixed", "init_backoff_ms": 300, "max_backoff_ms": 300}


class Bank:
    """Pays at every request, apart from a request with a key that it has seen before."""

    def __init__(self) -> None:
        self.url = ""
        self.arrived: Counter[str] = Counter()
        self.paid: Counter[str] = Counter()
        self.keys: set[str] = set()

    async def serve(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/arrived/{flow}", self.note)
        app.router.add_post("/refunds/{flow}", self.refund)
        app.router.add_get("/status", self.status)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def note(self, request: web.Request) -> web.Response:
        """The worker counts its dispatches here, since it does not live long enough to count them itself."""
        self.arrived[request.match_info["flow"]] += 1
        return web.Response()

    async def refund(self, request: web.Request) -> web.Response:
        key = request.headers.get("Idempotency-Key")
        if key is None or key not in self.keys:
            self.paid[request.match_info["flow"]] += 1
        if key is not None:
            self.keys.add(key)
        return web.Response()

    async def status(self, request: web.Request) -> web.Response:
        """The status_url of the step: whether the refund is in the bank's account."""
        flow = request.headers["Counterfoil-Flow-Id"]
        if self.paid[flow]:
            return web.json_response({"state": "done", "result": {"success": True, "outputs": {"refund": flow}}})
        return web.json_response({"state": "not_found"})


async def worker(port: int, bank: str, hangs: str) -> None:
    """The refund service. ``hangs``: it waits for its end "before" it calls the bank, "after" it has, or "never"."""

    async def refund(request: web.Request) -> web.Response:
        flow = (await request.json())["metadata"]["flow_id"]
        policy = request.match_info["policy"]
        headers = {"Idempotency-Key": request.headers["Idempotency-Key"]} if policy in KNOWS_KEYS else {}
        async with aiohttp.ClientSession() as session:
            await session.post(f"{bank}/arrived/{flow}")
            if hangs != "before":
                await session.post(f"{bank}/refunds/{flow}", headers=headers)
        if hangs != "never":
            await asyncio.Event().wait()
        return web.json_response({"success": True, "outputs": {"refund": flow}})

    app = web.Application()
    app.router.add_post("/refund/{policy}", refund)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    print("listening on", runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


async def start(*command: str) -> tuple[Process, str]:
    """Start a Python program; returns the end of the line in which it says where it listens."""
    log_level = {"COUNTERFOIL_LOG_LEVEL": "error"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdin=DEVNULL, stdout=PIPE, env={**os.environ, **log_level}
    )
    started.append(process)
    assert process.stdout is not None
    while line := (await process.stdout.readline()).decode():
        if "listening on " in line:
            return process, line.split("listening on ")[1].split()[0]
    sys.exit(f"{' '.join(command)} did not start")


async def kill(process: Process) -> None:
    """kill -9, if it has not ended yet."""
    if process.returncode is None:
        process.kill()
    await process.wait()


async def until(condition: Callable[[], Awaitable[Any]], seconds: float = 30.0) -> Any:
    """Look again and again until there is something."""
    async with asyncio.timeout(seconds):
        while not (found := await condition()):
            await asyncio.sleep(0.05)
    return found


class Operator:
    """The person in charge: approves what waits for an approval, and looks up unknown outcomes at the bank."""

    def __init__(self, client: Client, bank: Bank) -> None:
        self.client = client
        self.bank = bank

    async def approve(self) -> None:
        asked = await until(lambda: self._pending("/api/v1/approvals?status=pending", "approvals"))
        for approval in asked:
            await self.client.approve(approval["approval_id"])

    async def reconcile(self) -> None:
        queue = await until(lambda: self._pending("/api/v1/reconciliations?hold=unsafe_once", "reconciliations"))
        for item in queue:
            flow = item["flow_id"]
            applied = {"outcome": "applied", "outputs": {"refund": flow}}
            settlement = applied if self.bank.paid[flow] else {"outcome": "not_applied"}
            url = f"{self.client.base_url}/api/v1/reconciliations/{item['work_id']}"
            async with aiohttp.ClientSession() as session, session.post(url, json=settlement) as response:
                settled = await response.json()
            if "approval_id" in settled:
                await self.client.approve(settled["approval_id"], "the bank has not paid")

    async def _pending(self, path: str, name: str) -> list[dict[str, Any]]:
        async with aiohttp.ClientSession() as session, session.get(self.client.base_url + path) as response:
            found: list[dict[str, Any]] = (await response.json())[name]
        return found


async def run(client: Client, bank: Bank, operator: Operator, hangs: str, port: str) -> str:
    """Kill the worker in the middle of all refunds, and see what becomes of them; returns the worker's port."""
    first, port = await start(__file__, port, bank.url, hangs)
    for policy, definition in EFFECTS.items():
        endpoint = f"http://127.0.0.1:{port}/refund/{policy}"
        asked = {"status_url": f"{bank.url}/status"} if policy == "reconcile" else {}
        await client.put_step(policy, {"kind": "sync", "endpoint": endpoint, "work": RETRIES, **definition, **asked})
    flows = {f"{hangs}-{policy}": policy for policy in EFFECTS}
    for flow, policy in flows.items():
        await client.start_flow([policy], {"order": hangs, "amount": AMOUNT}, flow_id=flow)
    await operator.approve()

    async def all_in_the_middle() -> bool:
        reached = bank.arrived if hangs == "before" else bank.paid
        return all(reached[flow] for flow in flows)

    await until(all_in_the_middle)
    again = f"{hangs}-again"  # the same refund is asked for a second time, while the first one is under way
    await client.start_flow(["dedupe"], {"order": hangs, "amount": AMOUNT}, flow_id=again)
    await kill(first)
    second, _ = await start(__file__, port, bank.url, "never")
    await operator.reconcile()
    print(f"{'policy':<13} {'sent':>4} {'paid':>4}  {'the work item':<29}  settled by")
    for flow, name in [*flows.items(), (again, "dedupe, again")]:
        await client.result(flow, wait=30)
        events = (await client.events(flow, limit=100))["events"]
        print(f"{name:<13} {bank.arrived[flow]:>4} {bank.paid[flow]:>4}  {became(events):<29}  {settled_by(events)}")
    await kill(second)
    return port


def became(events: list[Any]) -> str:
    """What became of the work item once an attempt had an unknown outcome, from its journal."""
    states: list[str] = []
    for event in events:
        kind, data = event["type"], event["data"]
        if kind == "work_not_completed" and data.get("cause"):  # other attempts were surely not delivered
            states.append("held" if data.get("hold") else "not_completed")
        elif kind == "approval_approved" and states:
            states.append("approved")
        elif kind == "dedup_wait":
            states.append("waits")
        elif kind in ("work_succeeded", "work_failed"):
            states.append(kind.removeprefix("work_"))
    return " -> ".join(states)


def settled_by(events: list[Any]) -> str:
    """How the outcome was found, from the journal."""
    data = {event["type"]: event["data"] for event in events}
    if "dedup_hit" in data:
        return "the result of the first"
    if "work_probed" in data:
        return f"status_url: {data['work_probed']['state']}"
    if "work_reconciled" in data:
        return f"operator: {data['work_reconciled']['outcome']}"
    return "a retry"


async def main() -> None:
    bank = Bank()
    serving = await bank.serve()
    with tempfile.TemporaryDirectory() as data:
        _, url = await start("-m", "counterfoil", "serve", "--port", "0", "--data", data)
        try:
            async with Client(url) as client:
                operator, port = Operator(client, bank), "0"
                for hangs, title in (("before", "before the bank is called"), ("after", "after the bank has paid")):
                    print(f"the worker is killed {title}", flush=True)
                    port = await run(client, bank, operator, hangs, port)
        finally:
            for process in started:
                await kill(process)
            await serving.cleanup()


if __name__ == "__main__":
    asyncio.run(worker(int(sys.argv[1]), sys.argv[2], sys.argv[3]) if len(sys.argv) > 1 else main())
