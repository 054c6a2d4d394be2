"""The commands for plans, deadlines, compensation and redrives, against canned answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from tests.unit.canned_engine import CannedEngine, Reply, error
from tests.unit.commands import AT, FLOW, WORK, run

PLAN = {
    "goals": ["ship"],
    "steps": ["charge", "ship"],
    "inputs": {"order": "init", "payment": "charge"},
    "included": {"charge": "it provides payment for ship", "ship": "it is a goal"},
    "excluded": {"invoice": "payment is provided by charge"},
    "takes": {"ship": {"payment": ["charge"]}},
    "waits_for": {},
}


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CannedEngine]:
    async with CannedEngine() as running:
        monkeypatch.setenv("COUNTERFOIL_URL", running.url)
        yield running


async def test_a_flow_starts_with_how_it_is_to_end(engine: CannedEngine) -> None:
    engine.reply("POST /api/v1/flows", Reply(201, {"flow_id": "f-1", "status": "active"}))
    options = ["--deadline", "2h", "--on-deadline", "cancel", "--no-compensate"]
    assert (await run("flow", "start", "ship", *options)).output == "f-1\n"
    assert engine.asked[0].body == {
        "goals": ["ship"],
        "init": {},
        "deadline_ms": 7_200_000,
        "on_deadline": "cancel",
        "compensate": False,
    }


async def test_a_plan_is_shown(engine: CannedEngine) -> None:
    engine.reply("POST /api/v1/plan", Reply(200, PLAN))
    result = await run("plan", "ship", "--init", "order=7")
    assert (result.exit_code, engine.asked[0].body) == (0, {"goals": ["ship"], "init": {"order": 7}})
    assert result.output.splitlines()[0] == "1.  charge   it provides payment for ship"
    assert json.loads((await run("plan", "ship", "--json")).output) == PLAN


async def test_a_circle_of_steps_says_what_to_do(engine: CannedEngine) -> None:
    engine.reply("POST /api/v1/plan", error(422, "PLAN_CYCLE", "these steps wait for each other: a, b"))
    result = await run("plan", "a")
    assert (result.exit_code, "PLAN_CYCLE" in result.output, "--init" in result.output) == (1, True, True)


async def test_a_cancelled_flow_is_undone_on_demand(engine: CannedEngine) -> None:
    engine.reply("POST /api/v1/flows/f-1/cancel", Reply(200, {**FLOW, "status": "compensating"}))
    assert (await run("flow", "cancel", "f-1", "--compensate")).output == "flow f-1 is compensating\n"
    assert engine.asked[0].body == {"compensate": True}


async def test_a_flow_is_redriven(engine: CannedEngine) -> None:
    redriven = {"flow_id": "f-1", "status": "active", "work": ["wk-2"]}
    engine.reply("POST /api/v1/flows/f-1/redrive", Reply(200, redriven), Reply(200, {**redriven, "work": []}))
    assert (await run("flow", "redrive", "f-1")).output == "flow f-1 is active again, with 1 new work item\n"
    assert (await run("flow", "redrive", "f-1")).output == "flow f-1 is active again, with 0 new work items\n"
    engine.reply("POST /api/v1/flows/f-1/redrive", error(409, "FLOW_NOT_FAILED", "the flow is active"))
    result = await run("flow", "redrive", "f-1")
    assert (result.exit_code, "flow list --status failed" in result.output) == (1, True)


async def test_work_is_redriven_by_id(engine: CannedEngine) -> None:
    answer = {"work_id": "wk-2", "redrive_of": "wk-1", "flow_id": "f-1"}
    engine.reply("POST /api/v1/work/wk-1/redrive", Reply(200, answer))
    assert (await run("work", "redrive", "wk-1")).output == "work item wk-2 replaces wk-1\n"
    assert json.loads((await run("work", "redrive", "wk-1", "--json")).output) == answer


async def test_work_is_redriven_by_filter(engine: CannedEngine) -> None:
    engine.reply("POST /api/v1/work/redrive", Reply(200, {"matched": 3, "redriven": 2, "flows": ["f-1", "f-2"]}))
    options = ["--step", "ship", "--error", "STEP_FAILED", "--since", AT, "--label", "team=a", "--limit", "5"]
    dry = await run("work", "redrive", *options, "--dry-run")
    assert dry.output == "3 failed work items would be redriven, in 2 flows\n"
    assert engine.asked[0].body == {
        "filter": {"step_id": "ship", "error_code": "STEP_FAILED", "since": AT, "label": "team:a"},
        "limit": 5,
        "dry_run": True,
    }
    done = await run("work", "redrive", "--since", "15m")
    assert done.output == "3 failed work items matched, 2 redriven, in 2 flows\n"
    assert engine.asked[1].body["filter"]["since"].endswith("Z")


async def test_a_flow_with_much_work_shows_what_needs_a_look(engine: CannedEngine) -> None:
    done = [{**WORK, "work_id": f"done-{number}", "status": "succeeded", "error": None} for number in range(1000)]
    step = {"status": "active", "items": 1001, "work": [*done, {**WORK, "item": 1000}]}
    engine.reply("GET /api/v1/flows/f-1", Reply(200, {**FLOW, "steps": {"resize": step}}))
    result = await run("flow", "show", "f-1")
    lines = result.output.splitlines()
    assert len(lines) < 50
    table = lines[next(number for number, line in enumerate(lines) if line.startswith("WORK")) :]
    assert table[1].startswith("wk-1 ")
    assert "981 more work items" in result.output
