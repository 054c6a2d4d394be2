"""The tables of the page on effects say what the code does: each cell is decided anew and compared."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, get_args

import orjson
import pytest

from counterfoil.domain.effects.policies import DEFAULT_WINDOWS, Cause, EffectPolicy
from counterfoil.domain.effects.reconciling import Settlement
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.work.decisions import give_back, report
from counterfoil.domain.work.replies import AttemptNotCompleted, Failed, Reply, Reported, SendOutcome, classify
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import Simulator, answered, connection_refused, timed_out
from tests.pages import ROOT
from tests.store.records import ENDPOINT, NOW, RETRY, definition, step_version, work_item

PAGE = (ROOT / "docs" / "explanation" / "effects.md").read_text("utf-8")
POLICIES = get_args(EffectPolicy)
HELD = ("reconcile", "unsafe_once")
STATUS = "http://worker.test/status"


def table_under(heading: str) -> list[list[str]]:
    """The rows of the first table under a heading, its head first."""
    lines = PAGE[PAGE.index(f"\n## {heading}\n") :].splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("|"))
    end = next(number for number in range(begin, len(lines)) if not lines[number].startswith("|"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[begin:end]]
    return [rows[0], *rows[2:]]


# -- what each policy does at each failure -----------------------------------------------------

FAILURES = table_under("What each policy does at each failure")
LOST = Reply(SendOutcome.UNKNOWN, error="the connection was lost")
LATE = Reply(SendOutcome.UNKNOWN, error="no answer", timed_out=True)
RETRIABLE = StepResult(success=False, error="busy", retriable=True)
REFUSED = StepResult(success=False, error="no such order")


def status(*numbers: int) -> list[Reply]:
    return [Reply(SendOutcome.ANSWERED, number) for number in numbers]


WHAT_HAPPENED: dict[str, list[Reply | StepResult | Cause]] = {
    "connection refused, no such host": [connection_refused()],
    "the endpoint answered 425, 429 or 503": [*status(425, 429, 503)],
    'a report or response with `"retriable": true`': [RETRIABLE],
    "the endpoint answered 408, or a 5xx other than 503": [*status(408, 500, 501, 502, 504, 599)],
    "no complete response within `ack_timeout_ms`": [LATE],
    "the connection was lost, also in the middle of a 200": [LOST],
    "the callback deadline or the heartbeat timeout passed": [Cause.DEADLINE_PASSED],
    "the node stopped, or lost its lease, before the answer was recorded": [Cause.NODE_LOST],
    "the endpoint answered 3xx or another 4xx": [*status(301, 302, 400, 401, 404, 409, 422)],
    'a report or response with `"success": false`': [REFUSED],
}


def decided(policy: str, kind: str, happened: Reply | StepResult | Cause) -> Event:
    """The event that follows, for an item in its first attempt."""
    step, work = step_version(kind=kind, effect={"policy": policy}, control={"approval": {}}), work_item()
    outcome: Any = classify(happened, step.definition.kind) if isinstance(happened, Reply) else happened  # type: ignore[arg-type]
    if isinstance(outcome, Reported):
        outcome = outcome.result
    if isinstance(outcome, StepResult):
        _, (event,) = report(work, outcome, step, RETRY, NOW, {})
        return event
    if isinstance(outcome, Failed):
        return Event(EventType.WORK_FAILED, NOW, work.flow_id)
    code, cause = ("UNKNOWN_OUTCOME", outcome) if isinstance(outcome, Cause) else (outcome.code, outcome.cause)
    if not isinstance(outcome, Cause):
        assert isinstance(outcome, AttemptNotCompleted)
    return give_back(work, step, RETRY, NOW, code=code, message="", delivery="unknown", cause=cause)


def word(event: Event) -> str:
    if event.type is EventType.WORK_FAILED:
        return "fail"
    return "hold" if event.data.get("hold") else "repeat" if event.data["next_attempt_at"] else "nothing"


def test_the_table_has_every_failure_policy_and_cause() -> None:
    head, *rows = FAILURES
    assert head[2:] == [f"`{policy}`" for policy in POLICIES]
    assert [row[0] for row in rows] == list(WHAT_HAPPENED)
    assert {row[1] for row in rows} == {f"`{cause}`" for cause in Cause} | {"none"}


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("row", FAILURES[1:], ids=lambda row: row[0])
def test_each_policy_does_what_the_table_says(row: list[str], kind: str) -> None:
    for happened in WHAT_HAPPENED[row[0]]:
        events = {policy: decided(policy, kind, happened) for policy in POLICIES}
        assert [word(events[policy]) for policy in POLICIES] == row[2:], happened
        causes = {event.data.get("cause") for event in events.values()}
        assert causes == {None if row[1] == "none" else row[1].strip("`")}, happened


# -- how an unknown outcome is settled ---------------------------------------------------------

SETTLED = table_under("How an unknown outcome is settled")
Settling = Callable[[Simulator, str], Awaitable[object]]


def reported(result: StepResult) -> Settling:
    return lambda simulator, work_id: simulator.engine.reports.complete(work_id, result)


def beats(simulator: Simulator, work_id: str) -> Awaitable[object]:
    return simulator.engine.reports.heartbeat(work_id, Heartbeat())


def says(*replies: Reply) -> Settling:
    async def probe(simulator: Simulator, _: str) -> None:
        for reply in replies:
            simulator.network.always(STATUS, reply)
            await simulator.sweep(SweepName.PROBES)
            simulator.clock.advance(60_000)

    return probe


def state(name: str, **more: Any) -> Reply:
    return answered(200, {"state": name, **more})


def settled(**fields: Any) -> Settling:
    return lambda simulator, work_id: simulator.engine.reconciliations.settle(work_id, Settlement(**fields), "ann")


WHAT_SETTLES: dict[str, Settling] = {
    "a late report of success": reported(StepResult(success=True)),
    "a late report of failure": reported(REFUSED),
    'a late report with `"retriable": true`': reported(RETRIABLE),
    "a heartbeat": beats,
    "`status_url` answers `running`": says(state("running")),
    "`status_url` answers `done`, with a result": says(state("done", result={"success": True})),
    "`status_url` answers `not_found`": says(state("not_found")),
    "`status_url` answers `unknown`, anything else, or nothing": says(
        state("unknown"), state("no idea"), answered(404), answered(200), timed_out(), connection_refused()
    ),
    "an operator settles it as `applied`": settled(outcome="applied"),
    "an operator settles it as `not_applied`": settled(outcome="not_applied"),
    "an operator settles it as `failed`": settled(outcome="failed", error="declined"),
}


async def hold(simulator: Simulator, policy: str) -> str:
    """An item whose outcome is unknown, and that its policy holds; its id."""
    control: dict[str, Any] = {"approval": {}} if policy == "unsafe_once" else {}
    step = definition(effect={"policy": policy}, control=control, status_url=STATUS)
    await simulator.engine.steps.put("charge", step)
    await simulator.engine.flows.start(StartFlow(flow_id="f", goals=["charge"]))
    await approve(simulator)
    work_id = (await simulator.engine.queries.flow("f"))["steps"]["charge"]["work"][0]["work_id"]
    await simulator.network.answer(simulator.network.waiting(ENDPOINT)[0], timed_out())
    return work_id


async def approve(simulator: Simulator) -> int:
    """Give every approval that is asked for; returns how many."""
    found = await simulator.engine.control_queries.approvals(status="pending", flow_id=None, cursor=None, limit=9)
    for asked in found["approvals"]:
        await simulator.engine.approvals.review(asked["approval_id"], "ann", "approve", None)
    await simulator.sweep(SweepName.REQUEUE)
    return len(found["approvals"])


async def became(simulator: Simulator, work_id: str) -> str:
    """What the page calls the state of the item, an hour later if it goes on by itself."""
    work = orjson.loads(orjson.dumps(await simulator.engine.queries.work_item(work_id)))
    if work["status"] in ("succeeded", "failed", "active"):
        return str(work["status"])
    before = len(simulator.network.calls)
    simulator.clock.advance(3_600_000)
    await simulator.sweep(SweepName.REQUEUE)
    if len(simulator.network.calls) > before:
        return "sent again"
    if await approve(simulator) and len(simulator.network.calls) > before:
        return "sent again after a new approval"
    return "held" if work["hold"] in HELD else "nothing"


def test_the_table_has_everything_that_settles() -> None:
    head, *rows = SETTLED
    assert head[1:] == [f"`{policy}`" for policy in HELD]
    assert [row[0] for row in rows] == list(WHAT_SETTLES)


@pytest.mark.either_store
@pytest.mark.parametrize("policy", HELD)
@pytest.mark.parametrize("row", SETTLED[1:], ids=lambda row: row[0])
async def test_an_outcome_is_settled_as_the_table_says(simulator: Simulator, row: list[str], policy: str) -> None:
    work_id = await hold(simulator, policy)
    await WHAT_SETTLES[row[0]](simulator, work_id)
    assert await became(simulator, work_id) == row[1 + HELD.index(policy)]


# -- windows, and names ------------------------------------------------------------------------


def test_the_windows_are_the_defaults() -> None:
    found = re.findall(r"^\| (`[a-z_`, ]+`) \| `(\w+)` \|$", PAGE, re.MULTILINE)
    listed = {name: window for names, window in found for name in re.findall(r"`(\w+)`", names)}
    assert listed == DEFAULT_WINDOWS


def test_every_policy_is_advised_for_something() -> None:
    advised = [row[1] for row in table_under("Which policy for what")[1:]]
    assert [re.findall(r"`(\w+)`", cell)[0] for cell in advised] == list(POLICIES)
