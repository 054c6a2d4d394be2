"""The doctor and hooks: each is what the journal tells, lives with its work item, and a token has one owner."""

from __future__ import annotations

import pytest

from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.hooks.delivering import Incoming
from counterfoil.domain.hooks.tokens import given
from counterfoil.domain.steps.definitions import StepDefinition
from counterfoil.testing.simulator import Simulator
from tests.by_hand import Place, break_it
from tests.store.records import DEFAULTS
from tests.unit.store.test_doctor import examine

HOOK = StepDefinition.model_validate({"kind": "hook", "hook": {"token": "t", "collect": 3, "on_conflict": "wait"}})


@pytest.fixture
async def waiting(place: Place) -> Place:
    """An owner with a payload, a hook that waits for the token, and one that has ended."""
    async with Simulator(place, defaults=DEFAULTS) as simulator:
        await simulator.engine.steps.put("hook", HOOK)
        for flow_id in ("ended", "owner", "queued"):
            await simulator.engine.flows.start(StartFlow(flow_id=flow_id, goals=["hook"]))
        await simulator.engine.flows.cancel("ended")
        await simulator.engine.hooks.deliver(given("t"), Incoming(1, "d1"))
        assert simulator.examine() == []
    return place


def found(place: Place) -> set[tuple[str, str]]:
    return {(finding.invariant, finding.subject) for finding in examine(place, DEFAULTS)}


@pytest.mark.parametrize(
    ("breakage", "findings"),
    [
        ("UPDATE hooks SET received = 2 WHERE flow_id = 'owner'", {("journal", "owner/hook/0/0")}),
        (
            "UPDATE hooks SET received = 4 WHERE flow_id = 'owner'",
            {("journal", "owner/hook/0/0"), ("hooks", "owner/hook/0/0")},
        ),
        ("DELETE FROM hook_tokens", {("hooks", "owner/hook/0/0"), ("hooks", "queued/hook/0/0")}),
        ("UPDATE hook_tokens SET queue = '[]'", {("hooks", "queued/hook/0/0")}),
        (
            "UPDATE hooks SET status = 'waiting' WHERE flow_id = 'queued'",
            {("hooks", "queued/hook/0/0"), ("journal", "queued/hook/0/0")},
        ),
        (
            "UPDATE hooks SET status = 'ended' WHERE flow_id = 'owner'",
            {("hooks", "owner/hook/0/0"), ("journal", "owner/hook/0/0")},
        ),
        (
            "UPDATE hooks SET status = 'waiting' WHERE flow_id = 'ended'",
            {("hooks", "ended/hook/0/0"), ("journal", "ended/hook/0/0")},
        ),
        ("DELETE FROM hooks WHERE flow_id = 'ended'", {("journal", "ended/hook/0/0")}),
    ],
)
async def test_what_does_not_fit_is_found(waiting: Place, breakage: str, findings: set[tuple[str, str]]) -> None:
    break_it(waiting, breakage)
    assert found(waiting) == findings
