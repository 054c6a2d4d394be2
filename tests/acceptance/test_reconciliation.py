"""The reconciliation queue and ``status_url`` over real HTTP: races, probes, restarts, cancellation and retention."""

from __future__ import annotations

import asyncio
import base64
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.acceptance.conftest import ClientOf, NewEngine
from tests.acceptance.effect_cells import (
    CUT,
    HELD,
    approve_all,
    doctor_is_content,
    errors_logged,
    reconciliations,
)
from tests.eventually import eventually
from tests.integration.several_nodes import succeed
from tests.wire import Api, Reply, sign

SECRET = "whsec_" + base64.b64encode(b"a secret of thirty-two bytes, ok").decode()
DONE = Answer(body={"state": "done", "result": {"success": True, "outputs": {"found": True}}})
RUNNING = Answer(body={"state": "running"})
NOT_FOUND = Answer(body={"state": "not_found"})
UNKNOWN = Answer(body={"state": "unknown"})
UNREADABLE = (
    Answer(status=500),
    Answer(status=404, body={"state": "not_found"}),
    Answer(body="no JSON"),
    Answer(fault="cut_body", body={"state": "not_found"}),
    Answer(body={"state": "perhaps"}),
    UNKNOWN,
)
SHORT = {"deadline_ms": 400}
NOT_WAITING = "NOT_WAITING_FOR_RECONCILIATION"


class Held:
    """Steps whose first attempt is cut off after it was read, so that its outcome is unknown."""

    def __init__(self, api: Api, endpoint: StepEndpoint) -> None:
        self.api = api
        self.endpoint = endpoint

    async def put(self, step_id: str, policy: str, *first: Answer, **definition: Any) -> None:
        self.endpoint.answer(f"/{step_id}", *(first or (CUT.answer,)), Answer())
        control: dict[str, Any] = {"approval": {}} if policy == "unsafe_once" else {}
        fields = {"effect": {"policy": policy}, "control": control, **definition}
        await self.api.put_step(step_id, self.endpoint.url(f"/{step_id}"), **fields)

    async def start(self, step_id: str, *, approved: bool = False) -> str:
        flow_id = await self.api.start(step_id, init={"amount": 7})
        if approved:
            await approve_all(self.api, [flow_id])
        return flow_id

    async def held(self, step_id: str, policy: str = "reconcile") -> tuple[str, str, Received]:
        """A flow whose one item is in the queue: its id, that of the item, and what the endpoint received."""
        flow_id = await self.start(step_id, approved=policy == "unsafe_once")
        work = await self.api.until_work(flow_id, "not_completed", hold=policy)
        [received] = [each for each in self.sent(step_id) if each.metadata["flow_id"] == flow_id]
        return flow_id, work["work_id"], received

    def sent(self, step_id: str) -> list[Received]:
        return self.endpoint.requests(f"/{step_id}")

    def probes(self, step_id: str) -> list[Received]:
        return self.endpoint.requests(f"/status/{step_id}")

    async def work(self, flow_id: str) -> dict[str, Any]:
        work_id = (await self.api.work(flow_id))["work_id"]
        document: dict[str, Any] = (await self.api.get(f"/api/v1/work/{work_id}")).ok()
        return document


async def settle(api: Api, work_id: str, **settlement: Any) -> Reply:
    return await api.post(f"/api/v1/reconciliations/{work_id}", settlement)


# ------------------------------------------------------------------------------------------------ races


async def test_of_two_reconcilers_one_wins(
    new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint, store_name: str, tmp_path: Path
) -> None:
    """At two nodes on PostgreSQL. Each race is once against another reconciler, once against a late webhook."""
    names = ("one", "two") if store_name == "postgresql" else ("one",)
    engines = [new_engine(tmp_path / name) for name in names]
    await asyncio.gather(*(engine.start() for engine in engines))
    first, last = client_of(engines[0]), client_of(engines[-1])
    held = Held(first, endpoint)
    endpoint.answer("/charge", CUT.answer)
    await first.put_step("charge", endpoint.url("/charge"), effect={"policy": "reconcile"})
    items = [await held.held("charge") for _ in range(8)]
    for number, (flow_id, work_id, received) in enumerate(items):
        settling = settle(first, work_id, outcome="applied", outputs={"by": "one"}, note="in the ledger")
        if number % 2:
            other = settle(last, work_id, outcome="failed", error="declined")
        else:
            other = last.complete(received, {"success": False, "error": "declined"})
        one, two = await asyncio.gather(settling, other)
        applied = one.status == 200
        loser = two if applied else one
        refusal = (400, "CONFLICTING_RESULT") if loser is two and not number % 2 else (409, NOT_WAITING)
        assert loser.refused(*refusal)["status"] == ("succeeded" if applied else "failed")
        (one if applied else two).ok()
        final = await first.final(flow_id)
        assert (final["status"], final["outputs"]) == (("completed", {"by": "one"}) if applied else ("failed", {}))
        (await settle(last, work_id, outcome="applied")).refused(409, NOT_WAITING)
    assert await reconciliations(last) == []
    assert len(endpoint.requests("/charge")) == len(items)
    for engine in engines:
        assert await engine.stop() == 0
        assert errors_logged(engine) == []
    doctor_is_content(engines[0])


# ------------------------------------------------------------------------------------------------ probes


def check_probe(probe: Received, sent: Received) -> None:
    """A question names the attempt and is signed; the receipt is no part of it."""
    assert (probe.method, probe.content) == ("GET", b"")
    metadata, headers = sent.metadata, probe.headers
    assert headers["Idempotency-Key"] == metadata["idempotency_key"]
    assert headers["Counterfoil-Flow-Id"] == metadata["flow_id"]
    assert headers["Counterfoil-Step-Id"] == metadata["step_id"]
    assert headers["Counterfoil-Attempt"] == str(metadata["attempt"])
    wanted = sign(SECRET, headers["webhook-id"], headers["webhook-timestamp"], b"")
    assert headers["webhook-signature"] == wanted
    assert sent.token not in f"{probe.path} {dict(headers)}"


async def test_status_url_is_asked(new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint) -> None:
    """Held items as soon as their outcome is unknown; others when they are overdue, before they are sent again."""
    engine = new_engine(signing_secret=SECRET)
    await engine.start()
    held = Held(client_of(engine), endpoint)
    for policy in HELD:
        await check_done(held, policy)
        await check_running(held, policy)
        await check_not_found(held, policy)
        await check_error(held, policy)
    await check_overdue(held)
    for received in endpoint.all_requests():
        if received.path.startswith("/status/"):
            step_id = received.path.removeprefix("/status/")
            attempt = int(received.headers["Counterfoil-Attempt"])
            check_probe(received, held.sent(step_id)[attempt - 1])
    assert await reconciliations(held.api) == []
    assert await engine.stop() == 0
    doctor_is_content(engine)
    assert errors_logged(engine) == []
    log = engine.log.read_text()
    assert not [each for each in endpoint.all_requests() if each.method == "POST" and each.token in log]


async def put_asked(held: Held, step_id: str, policy: str, *answers: Answer, **definition: Any) -> str:
    """Register a step with a ``status_url`` that answers so, and start a flow of it."""
    held.endpoint.answer(f"/status/{step_id}", *answers)
    first = () if policy in HELD else (Answer(),)
    status_url = held.endpoint.url(f"/status/{step_id}")
    await held.put(step_id, policy, *first, status_url=status_url, **definition)
    return await held.start(step_id, approved=policy == "unsafe_once")


async def check_done(held: Held, policy: str) -> None:
    flow_id = await put_asked(held, f"{policy}-done", policy, DONE)
    final = await held.api.final(flow_id)
    assert (final["status"], final["outputs"]) == ("completed", {"found": True})
    work = await held.work(flow_id)
    assert (work["probed"], work["attempt"], work["status"]) == (True, 1, "succeeded")
    assert (len(held.sent(f"{policy}-done")), len(held.probes(f"{policy}-done"))) == (1, 1)


async def check_running(held: Held, policy: str) -> None:
    """The item is active with a new deadline; the worker's report ends it, and nothing was sent again."""
    step_id = f"{policy}-running"
    flow_id = await put_asked(held, step_id, policy, RUNNING)
    await held.api.until_event(flow_id, "work_resumed")
    work = await held.api.until_work(flow_id, "active")
    assert (work["hold"], work["error"], work["deadline_at"] is not None) == (None, None, True)
    await eventually(lambda: len(held.probes(step_id)) >= 2, what="another question")
    assert await reconciliations(held.api) == []
    await succeed(held.api, held.sent(step_id)[0])
    assert (await held.api.final(flow_id))["status"] == "completed"
    assert (await held.work(flow_id))["probed"] is False
    assert len(held.sent(step_id)) == 1


async def check_not_found(held: Held, policy: str) -> None:
    """Nothing was applied: it is sent again by the work config, ``unsafe_once`` work under the same approval."""
    step_id = f"{policy}-not-found"
    flow_id = await put_asked(held, step_id, policy, NOT_FOUND)
    again = await held.endpoint.received(f"/{step_id}", 2)
    await held.api.until_acknowledged(flow_id)
    await succeed(held.api, again, attempt=2)
    assert (await held.api.final(flow_id))["outputs"] == {"attempt": 2}
    assert len({received.metadata["idempotency_key"] for received in held.sent(step_id)}) == 1
    assert (len(held.sent(step_id)), len(held.probes(step_id))) == (2, 1)


async def check_error(held: Held, policy: str) -> None:
    """No answer that counts: the item stays in the queue and is asked about with backoff, until it is settled."""
    step_id = f"{policy}-error"
    flow_id = await put_asked(held, step_id, policy, *UNREADABLE)
    await held.endpoint.received(f"/status/{step_id}", len(UNREADABLE) + 1)
    work_id = (await held.api.until_work(flow_id, "not_completed", hold=policy))["work_id"]
    [entry] = await reconciliations(held.api)
    assert (entry["work_id"], entry["last_probe"]["state"]) == (work_id, "unknown")
    events = [event["data"] for event in await held.api.events(flow_id) if event["type"] == "work_probed"]
    assert [event["state"] for event in events][: len(UNREADABLE)] == ["error"] * 5 + ["unknown"]
    assert entry["status_url"] == held.endpoint.url(f"/status/{step_id}")
    (await settle(held.api, work_id, outcome="applied")).ok()
    assert (await held.api.final(flow_id))["status"] == "completed"
    assert len(held.sent(step_id)) == 1


async def check_overdue(held: Held) -> None:
    """Of a policy that repeats: asked before it is sent again."""
    work = {"work": SHORT}
    found = await put_asked(held, "late-done", "idempotent", DONE, **work)
    lost = await put_asked(held, "late-error", "idempotent", Answer(status=500), **work)
    missing = await put_asked(held, "late-not-found", "idempotent", NOT_FOUND, **work)
    alive = await put_asked(held, "late-running", "idempotent", RUNNING, DONE, **work)
    for flow_id, step_id in ((lost, "late-error"), (missing, "late-not-found")):
        await succeed(held.api, await held.endpoint.received(f"/{step_id}", 2))
        assert (await held.api.final(flow_id))["status"] == "completed"
        assert held.probes(step_id)[0].at < held.sent(step_id)[1].at
    for flow_id, step_id, asked in ((found, "late-done", 1), (alive, "late-running", 2)):
        assert (await held.api.final(flow_id))["outputs"] == {"found": True}
        assert (len(held.sent(step_id)), len(held.probes(step_id))) == (1, asked)
        assert (await held.work(flow_id))["probed"] is True


# ------------------------------------------------------------------------------------------------ what it survives


async def test_the_queue_survives_cancellation_redrive_restart_and_retention(
    new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    engine = new_engine(retention_ms="1000", payload_retention_ms="500", lease_ms="1000")
    await engine.start()
    api = client_of(engine)
    held = Held(api, endpoint)
    cancelled, kept, received = await cancelled_with_unknown(held)
    redriven, old = await failed_and_redriven(held)
    assert [entry["work_id"] for entry in await reconciliations(api)] == [kept, old]
    await engine.kill()
    await engine.start()
    await other_flows_are_pruned(held)
    entries = {entry["work_id"]: entry for entry in await reconciliations(api)}
    assert list(entries) == [kept, old]
    assert [entry["status"] for entry in entries.values()] == ["cancelled", "cancelled"]
    assert entries[kept]["arguments"] == {"amount": 7}, "payloads of a flow with an unsettled item are kept too"
    (await api.complete(received, {"success": True})).refused(400, "WORK_CANCELLED")
    for work_id, flow_id in ((kept, cancelled), (old, redriven)):
        assert (await settle(api, work_id, outcome="applied", note="in the ledger")).ok()["status"] == "cancelled"
        await eventually(partial(is_gone, api, flow_id), what="a flow that is pruned")
    assert await reconciliations(api) == []
    assert await engine.stop() == 0
    doctor_is_content(engine)
    assert errors_logged(engine) == []


async def cancelled_with_unknown(held: Held) -> tuple[str, str, Received]:
    await held.put("charge", "reconcile")
    flow_id, work_id, received = await held.held("charge")
    (await held.api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()
    return flow_id, work_id, received


async def failed_and_redriven(held: Held) -> tuple[str, str]:
    """A flow that failed for another reason, and completed by a redrive: the old item is still to be settled."""
    api, endpoint = held.api, held.endpoint
    failed, succeeded = Answer(body={"success": False, "error": "no"}), Answer(body={"success": True})
    answered = asyncio.Event()
    endpoint.answer("/other", Answer(body=failed.body, until=answered), succeeded)
    await api.put_step("other", endpoint.url("/other"), kind="sync")
    await held.put("refund", "reconcile")
    flow_id = await api.start("refund", "other", init={"amount": 7})
    old = await api.until_work(flow_id, "not_completed", "refund", hold="reconcile")
    answered.set()
    assert (await api.final(flow_id))["status"] == "failed"
    (await api.post(f"/api/v1/flows/{flow_id}/redrive")).ok()
    again = await endpoint.received("/refund", 2)
    first = held.sent("refund")[0]
    assert again.metadata["work_id"] != first.metadata["work_id"] == old["work_id"]
    assert again.metadata["idempotency_key"] == first.metadata["idempotency_key"]
    await succeed(api, again)
    assert (await api.final(flow_id))["status"] == "completed"
    return flow_id, old["work_id"]


async def other_flows_are_pruned(held: Held) -> None:
    """A flow that was started after those of the queue, and ended, is pruned: the sweep has passed theirs."""
    await held.put("plain", "reconcile", Answer())
    flow_id = await held.start("plain")
    await succeed(held.api, await held.endpoint.received("/plain"))
    await eventually(partial(is_gone, held.api, flow_id), what="a flow that is pruned")


async def is_gone(api: Api, flow_id: str) -> bool:
    return (await api.get(f"/api/v1/flows/{flow_id}")).status == 404


@pytest.mark.parametrize("policy", HELD)
async def test_a_late_report_settles_after_a_restart(
    new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint, policy: str
) -> None:
    """A heartbeat makes the item active again, and the result ends it: nothing was sent twice."""
    engine = new_engine(lease_ms="1000")
    await engine.start()
    held = Held(client_of(engine), endpoint)
    await held.put("charge", policy)
    flow_id, _, received = await held.held("charge", policy)
    await engine.kill()
    await engine.start()
    assert [entry["flow_id"] for entry in await reconciliations(held.api)] == [flow_id]
    (await held.api.post(received.metadata["heartbeat_url"], {"progress": 0.5})).ok()
    work = await held.api.work(flow_id)
    assert (work["status"], work["hold"]) == ("active", None)
    assert await reconciliations(held.api) == []
    await engine.kill()
    await engine.start()
    await succeed(held.api, received, charge="c1")
    assert (await held.api.final(flow_id))["outputs"] == {"charge": "c1"}
    assert len(held.sent("charge")) == 1
    assert await engine.stop() == 0
    doctor_is_content(engine)
