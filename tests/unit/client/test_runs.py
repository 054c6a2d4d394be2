"""Starting flows with a run key: what is sent, and how a function decides about the owner that it saw."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from counterfoil.client import Client, Flow, RunKeyConflict, RunKeyReused
from tests.unit.canned_engine import CannedEngine, Reply

START = "POST /api/v1/flows"
STEPS = {"charge": {"status": "pending"}, "ship": {"status": "active"}}
SEEN = {"flow_id": "f-1", "status": "active", "steps": {"charge": "pending", "ship": "active"}}
STARTED = Reply(201, {"flow_id": "f-2", "status": "active", "reused": False})


def conflict(flow_id: str = "f-1", code: str = "RUN_KEY_CONFLICT", **more: Any) -> Reply:
    details = {"flow_id": flow_id, "status": "active", **more}
    return Reply(409, {"error": {"code": code, "message": "taken", "details": details}})


def owner(flow_id: str = "f-1", **fields: Any) -> dict[str, Any]:
    return {"flow_id": flow_id, "status": "active", "steps": STEPS, **fields}


@pytest.fixture
async def engine() -> AsyncIterator[CannedEngine]:
    async with CannedEngine() as running:
        running.reply("GET /api/v1/flows/f-1", Reply(200, owner()))
        running.reply("GET /api/v1/flows/f-3", Reply(200, owner("f-3")))
        yield running


@pytest.fixture
async def client(engine: CannedEngine) -> AsyncIterator[Client]:
    async with Client(engine.url, timeout=5) as opened:
        yield opened


def sent(engine: CannedEngine) -> list[dict[str, Any]]:
    return [asked.body for asked in engine.asked if asked.method == "POST"]


async def test_all_fields_are_sent(engine: CannedEngine, client: Client) -> None:
    engine.reply(START, STARTED)
    signal = {"hook": "order:7", "payload": {"ok": True}, "delivery_id": "d"}
    await client.start(
        ["ship"],
        {"n": 1},
        idempotency_key="order:7",
        on_conflict="signal",
        retain_key_for="24h",
        retain_failed=True,
        signal=signal,
    )
    assert sent(engine) == [
        {
            "goals": ["ship"],
            "init": {"n": 1},
            "idempotency_key": "order:7",
            "on_conflict": "signal",
            "retain_key_for": "24h",
            "retain_failed": True,
            "signal": signal,
        }
    ]


async def test_a_conflict_names_the_owner(engine: CannedEngine, client: Client) -> None:
    engine.reply(START, conflict())
    with pytest.raises(RunKeyConflict) as caught:
        await client.start(["ship"], idempotency_key="k")
    assert (caught.value.flow_id, caught.value.flow_status, caught.value.status) == ("f-1", "active", 409)
    engine.reply(START, conflict(code="RUN_KEY_REUSED"))
    with pytest.raises(RunKeyReused) as reused:
        await client.start(["ship"], idempotency_key="k", on_conflict="adopt")
    assert (reused.value.flow_id, reused.value.flow_status) == ("f-1", "active")


async def test_a_function_is_not_asked_while_the_key_is_free(engine: CannedEngine, client: Client) -> None:
    engine.reply(START, STARTED)
    asked: list[Flow] = []
    started = await client.start(["ship"], idempotency_key="k", on_conflict=asked.append)  # type: ignore[arg-type]
    assert (started["flow_id"], asked) == ("f-2", [])
    assert "on_conflict" not in sent(engine)[0]


async def test_a_function_sees_the_owner_and_its_decision_is_bound_to_it(engine: CannedEngine, client: Client) -> None:
    engine.reply(START, conflict(), STARTED)
    seen: list[Flow] = []

    def decide(flow: Flow) -> Any:
        seen.append(flow)
        return "supersede" if flow["steps"]["charge"]["status"] == "pending" else "reject"

    assert (await client.start(["ship"], idempotency_key="k", on_conflict=decide))["flow_id"] == "f-2"
    assert [flow["flow_id"] for flow in seen] == ["f-1"]
    assert sent(engine)[1]["on_conflict"] == "supersede"
    assert sent(engine)[1]["if_owner"] == SEEN


async def test_it_is_asked_again_when_the_owner_has_changed(engine: CannedEngine, client: Client) -> None:
    engine.reply(
        START, conflict(), conflict("f-3", owner_changed=True), conflict("f-3"), Reply(200, owner("f-3", reused=True))
    )
    seen: list[str] = []

    async def decide(flow: Flow) -> Any:
        seen.append(flow["flow_id"])
        return "adopt"

    adopted = await client.start(["ship"], idempotency_key="k", on_conflict=decide)
    assert (adopted["flow_id"], adopted["reused"], seen) == ("f-3", True, ["f-1", "f-3"])
    assert [body.get("on_conflict") for body in sent(engine)] == [None, "adopt", None, "adopt"]


async def test_an_owner_that_is_gone_is_no_conflict(engine: CannedEngine, client: Client) -> None:
    gone = Reply(404, {"error": {"code": "UNKNOWN_FLOW", "message": "no such flow", "details": {}}})
    engine.reply("GET /api/v1/flows/f-1", gone)
    engine.reply(START, conflict(), STARTED)
    assert (await client.start(["ship"], idempotency_key="k", on_conflict=lambda _: "reject"))["flow_id"] == "f-2"


async def test_reject_raises_the_conflict(engine: CannedEngine, client: Client) -> None:
    engine.reply(START, conflict())
    with pytest.raises(RunKeyConflict):
        await client.start(["ship"], idempotency_key="k", on_conflict=lambda _: "reject")
    assert len(sent(engine)) == 1


async def test_a_conflict_that_no_change_explains_is_raised(engine: CannedEngine, client: Client) -> None:
    """A compensating owner is not superseded."""
    engine.reply(START, conflict())
    with pytest.raises(RunKeyConflict):
        await client.start(["ship"], idempotency_key="k", on_conflict=lambda _: "supersede")


async def test_a_finished_owner_is_shown_too(engine: CannedEngine, client: Client) -> None:
    ended = Reply(200, owner(status="completed", reused=True, outputs={"x": 1}))
    engine.reply(START, ended)
    kept = await client.start(["ship"], idempotency_key="k", on_conflict=lambda _: "adopt")
    assert (kept["flow_id"], kept["status"]) == ("f-1", "completed")
    engine.reply(START, ended, STARTED)
    newer = await client.start(["ship"], idempotency_key="k", on_conflict=lambda _: "supersede")
    assert newer["flow_id"] == "f-2"
    assert sent(engine)[-1]["if_owner"]["status"] == "completed"


async def test_wrong_arguments_are_refused_before_anything_is_sent(engine: CannedEngine, client: Client) -> None:
    with pytest.raises(ValueError, match="there is no idempotency_key"):
        await client.start(["ship"], on_conflict=lambda _: "adopt")
    with pytest.raises(TypeError, match="signal must be a mapping"):
        await client.start(["ship"], idempotency_key="k", signal="order:7")  # type: ignore[arg-type]
    assert engine.asked == []
    engine.reply(START, conflict())
    with pytest.raises(ValueError, match="one of reject, adopt, signal, supersede, not 'replace'"):
        await client.start(["ship"], idempotency_key="k", on_conflict=lambda _: "replace")  # type: ignore[arg-type, return-value]
