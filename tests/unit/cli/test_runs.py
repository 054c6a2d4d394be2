"""``counterfoil flow start`` with a run key."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.canned_engine import CannedEngine, Reply
from tests.unit.commands import run

START = "POST /api/v1/flows"


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CannedEngine]:
    async with CannedEngine() as running:
        monkeypatch.setenv("COUNTERFOIL_URL", running.url)
        yield running


async def test_a_flow_starts_with_a_run_key(engine: CannedEngine) -> None:
    engine.reply(START, Reply(201, {"flow_id": "f-1", "status": "active", "reused": False}))
    words = ["-k", "order:7", "--on-conflict", "signal", "--retain-key-for", "24h", "--retain-failed"]
    words += ["--signal", 'order=7={"sum": "1=1"}', "--delivery-id", "mail-1"]
    result = await run("flow", "start", "ship", *words)
    assert (result.exit_code, result.output) == (0, "f-1\n")
    assert engine.asked[0].body == {
        "goals": ["ship"],
        "init": {},
        "idempotency_key": "order:7",
        "on_conflict": "signal",
        "retain_key_for": "24h",
        "retain_failed": True,
        "signal": {"hook": "order=7", "payload": {"sum": "1=1"}, "delivery_id": "mail-1"},
    }


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"reused": True}, "not started: this flow owns the run key, it is active\n"),
        (
            {"reused": True, "signalled": True},
            "not started: this flow owns the run key, it is active, and has the signal\n",
        ),
        ({"reused": False, "superseded": "f-0"}, "superseded: flow f-0 was cancelled\n"),
    ],
)
async def test_what_it_means_for_another_flow_is_told_on_stderr(
    engine: CannedEngine, fields: dict[str, object], note: str
) -> None:
    engine.reply(START, Reply(200, {"flow_id": "f-1", "status": "active", **fields}))
    result = await run("flow", "start", "ship", "-k", "order:7", "--on-conflict", "adopt")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "f-1\n", note)


@pytest.mark.parametrize("words", [["--signal", "order:7"], ["--signal", "=1"], ["--delivery-id", "d"]])
async def test_a_signal_that_is_none_is_a_wrong_use(engine: CannedEngine, words: list[str]) -> None:
    result = await run("flow", "start", "ship", "-k", "order:7", *words)
    assert result.exit_code == 2
    assert engine.asked == []


async def test_flows_are_listed_by_run_key(engine: CannedEngine) -> None:
    engine.reply("GET /api/v1/flows", Reply(200, {"flows": [], "next_cursor": None}))
    await run("flow", "list", "--idempotency-key", "order:7")
    assert engine.asked[0].query["key"] == "order:7"
