"""Any sequence of reservations, completions, settlements, sweeps, crashes and time, against a plain model."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from counterfoil.domain.effects.effect_requests import CompleteEffect, ReserveEffect, SettleEffect
from counterfoil.domain.errors import CounterfoilError
from counterfoil.engine.wakeups import SweepName
from counterfoil.server.problems import status_of
from counterfoil.testing.simulator import Simulator
from tests.by_hand import Place, by_hand
from tests.databases import NewDatabase
from tests.property.effects_model import CLASSES, WINDOWS, EffectsModel, Key
from tests.property.test_engine_machine import EMPTY

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(900)]

EXAMPLES = {"sqlite": "30", "postgresql": "6"}
KEYS: st.SearchStrategy[Key] = st.sampled_from([("refund", "a"), ("refund", "b/../c"), ("mail", "a")])
HOLDERS = st.sampled_from(["h1", "h2"])
VALUES = st.sampled_from([None, 1, {"id": 7}, [True]])
DIGESTS = st.sampled_from([None, None, "d1", "d2"])
TTLS = st.sampled_from([1, 5, 60])


class EffectsApiMachine(RuleBasedStateMachine):
    """Asks the engine and the model the same, and compares the answers and what is shown."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.simulator = Simulator(place)
        self.model = EffectsModel()

    @initialize()
    def begin(self) -> None:
        self.runner.run(self.simulator.start())

    @property
    def now(self) -> int:
        return self.simulator.clock()

    def ask(self, request: Any) -> tuple[int, Any]:
        """The status and the code of an error, or 200 and the answer."""
        try:
            return 200, self.runner.run(request)
        except CounterfoilError as error:
            return status_of(type(error)), error.code

    @rule(
        key=KEYS,
        effect_class=st.sampled_from(CLASSES),
        holder=HOLDERS,
        ttl=TTLS,
        window=st.sampled_from(list(WINDOWS)),
        digest=DIGESTS,
    )
    def reserve(self, key: Key, effect_class: str, holder: str, ttl: int, window: str, digest: str | None) -> None:
        body = {"tool": key[0], "key": key[1], "class": effect_class, "holder": holder, "ttl_seconds": ttl}
        request = ReserveEffect.model_validate({**body, "window": window, "arguments_digest": digest})
        expected = self.model.reserve(key, effect_class, holder, ttl * 1_000, window, digest, self.now)
        status, answer = self.ask(self.simulator.engine.reservations.reserve(request))
        if status == 200:
            document, granted = answer
            pending = document["state"] == "pending"
            success = document["state"] == "complete-success"
            outcome = (success, document["result"] if success else document.get("error"))
            status, answer = 201 if granted else 200, document["fence"] if pending else outcome
        assert (status, answer) == expected

    @rule(key=KEYS, behind=st.integers(-1, 2), success=st.booleans(), value=VALUES)
    def complete(self, key: Key, behind: int, success: bool, value: Any) -> None:
        fence = max(1, self.model.fences.get(key, 1) - behind)
        outcome = (success, value if success else {"code": value})
        given = {"result": outcome[1]} if success else {"error": outcome[1]}
        request = CompleteEffect.model_validate({"fence": fence, "success": success, **given})
        expected = self.model.complete(key, fence, outcome, self.now)
        status, answer = self.ask(self.simulator.engine.reservations.complete(*key, request))
        assert (status, answer["duplicate"] if status == 200 else answer) == expected

    @rule(key=KEYS, outcome=st.sampled_from(["applied", "not_applied", "failed"]), value=VALUES)
    def settle(self, key: Key, outcome: str, value: Any) -> None:
        value = {"code": value} if outcome == "failed" else value
        given = {"applied": {"result": value}, "failed": {"error": value}, "not_applied": {}}[outcome]
        request = SettleEffect.model_validate({"outcome": outcome, **given})
        expected = self.model.settle(key, outcome, value, self.now)
        status, answer = self.ask(self.simulator.engine.reservations.settle(*key, request, "ann"))
        assert (status, answer["state"] if status == 200 else answer) == expected

    @rule(milliseconds=st.sampled_from([1, 999, 1_000, 5_000, 9_999, 60_000, 10**9]))
    def pass_time(self, milliseconds: int) -> None:
        self.simulator.clock.advance(milliseconds)

    @rule()
    def sweep(self) -> None:
        self.runner.run(self.simulator.sweep(SweepName.FORGETTING))
        self.model.swept(self.now)

    @rule()
    def crash(self) -> None:
        self.runner.run(self.simulator.crash())
        self.runner.run(self.simulator.start())

    @invariant()
    def shows_what_the_model_knows(self) -> None:
        page = self.runner.run(self.simulator.engine.reservations.queries.effects())
        shown = {(effect["tool"], effect["key"]): (effect["state"], effect["fence"]) for effect in page["effects"]}
        known = {key: state for key in self.model.fences if (state := self.model.shown(key, self.now)) is not None}
        assert shown == {key: (state, self.model.fences[key]) for key, state in known.items()}
        queue = self.runner.run(self.simulator.engine.effect_queries.reconciliations())["reconciliations"]
        lapsed = {
            key
            for key, line in self.model.lines.items()
            if line.outcome is None and line.effect_class == "irreversible" and line.expires_at <= self.now
        }
        assert {(entry["tool"], entry["effect_key"]) for entry in queue} == lapsed

    def teardown(self) -> None:
        try:
            assert self.simulator.examine() == []
        finally:
            self.runner.run(self.simulator.crash())
            self.runner.close()


def test_any_sequence_of_requests_is_answered_as_the_model_says(
    store_name: str, tmp_path: Path, new_database: NewDatabase
) -> None:
    numbers = itertools.count(1)
    shared = new_database() if store_name == "postgresql" else ""

    class MachineOnAnEmptyDatabase(EffectsApiMachine):
        def __init__(self) -> None:
            if shared:
                by_hand(shared, EMPTY)
            super().__init__(shared or tmp_path / f"{next(numbers)}.db")

    run_state_machine_as_test(
        MachineOnAnEmptyDatabase,
        settings=settings(
            max_examples=int(os.environ.get("PROPERTY_EXAMPLES", EXAMPLES[store_name])),
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
        ),
    )
