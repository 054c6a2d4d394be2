"""The doctor on reservations of tools: what the engine left is clean, and what is broken by hand is named."""

from __future__ import annotations

import pytest

from counterfoil.domain.effects.effect_requests import CompleteEffect, ReserveEffect, SettleEffect
from counterfoil.domain.effects.reserved_effects import effect_id
from counterfoil.store.postgres import doctor as postgres_doctor
from counterfoil.store.sqlite import doctor as sqlite_doctor
from counterfoil.testing.simulator import Simulator
from tests.by_hand import Place, break_it
from tests.store.records import DEFAULTS
from tests.unit.store.test_doctor import examine


@pytest.fixture
async def reserved(place: Place) -> Place:
    """One effect in each state, each named after it."""
    async with Simulator(place, defaults=DEFAULTS) as simulator:
        service = simulator.engine.reservations
        for key in ("pending", "success", "failed", "free", "forgotten"):
            body = {"tool": "t", "key": key, "class": "irreversible", "holder": "h", "window": "90s", "ttl_seconds": 1}
            await service.reserve(ReserveEffect.model_validate(body))
        simulator.clock.advance(1_000)
        await service.complete("t", "success", CompleteEffect(fence=1, success=True, result=1))
        await service.complete("t", "failed", CompleteEffect(fence=1, success=False, error={"code": "NO"}))
        await service.settle("t", "free", SettleEffect(outcome="not_applied"), "ann")
        assert simulator.examine() == []
    return place


def test_what_the_engine_left_is_clean(reserved: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for doctor in (sqlite_doctor, postgres_doctor):
        monkeypatch.setattr(doctor, "CHUNK", 2)
    assert examine(reserved) == []


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("pending", "effect_key = 'another'", "its id is not that of its tool and key"),
        ("pending", "fence = 0", "its fence is 0"),
        ("pending", "expires_at = NULL", "is pending, and never lapses"),
        ("pending", "recorded_at = 1", "is pending, and has a recorded_at"),
        ("pending", "forget_at = 1", "is not forgotten when its window ends"),
        ("pending", "outcome = '{\"result\":1}'", "is pending, and its outcome is not of that state"),
        ("success", "expires_at = 1", "is complete-success, and still lapses"),
        ("success", "recorded_at = NULL, forget_at = 90000", "is complete-success, and has no recorded_at"),
        ("success", "state = 'complete-failed'", "is complete-failed, and its outcome is not of that state"),
        ("failed", "outcome = NULL", "is complete-failed, and its outcome is not of that state"),
        ("failed", "forget_at = NULL", "is not forgotten when its window ends"),
        ("free", "outcome = '{\"error\":{}}'", "is free, and its outcome is not of that state"),
        ("free", "audited = 1", "has 2 audit entries of 1"),
        ("free", "audit = '[]'", "has 0 audit entries of 2"),
        ("free", "state = 'odd'", "cannot be read"),
    ],
)
def test_what_is_broken_is_named(reserved: Place, key: str, change: str, message: str) -> None:
    break_it(reserved, f"UPDATE reservations SET {change} WHERE effect_key = '{key}'")
    findings = examine(reserved)
    assert {finding.subject for finding in findings} == {effect_id("t", key)}
    assert any(message in finding.message for finding in findings), findings


def test_a_floor_that_no_key_has_is_named(reserved: Place) -> None:
    break_it(reserved, "INSERT INTO fence_floors (bucket, fence) VALUES ('00ff', 0)")
    [finding] = examine(reserved)
    assert (finding.invariant, finding.subject) == ("effects", "fence floor 00ff")
