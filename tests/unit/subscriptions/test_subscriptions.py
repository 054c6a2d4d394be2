"""Definitions of subscriptions: which events there are, and which subscriptions match them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from counterfoil.domain.errors import InvalidSubscription
from counterfoil.domain.journal.event_types import EventType
from counterfoil.domain.policies.controls import Controls
from counterfoil.domain.subscriptions.definitions import NAME_OF, NAMES, Subscription, SubscriptionDefinition, names_of
from counterfoil.server.requests import validate

URL = "https://chat.test/hook"


def definition(*events: str, **more: Any) -> SubscriptionDefinition:
    return SubscriptionDefinition.model_validate({"url": URL, "events": list(events), **more})


def subscription(name: str, *events: str, **more: Any) -> Subscription:
    return Subscription(name, definition(*events, **more), None, 0, 0)


def test_every_event_of_the_journal_has_a_name() -> None:
    assert set(NAME_OF) == set(EventType)
    assert {"approval.requested", "approval.decided", "approval.expired", "approval.void"} < NAMES
    assert {"flow.completed", "work.not_completed", "step.not_compensated", "gate.decided"} < NAMES
    assert "approval.approved" not in NAMES


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("flow.failed", {"flow.failed"}),
        ("*", NAMES),
        ("flow.*", {name for name in NAMES if name.startswith("flow.")}),
        ("*.cancelled", {"flow.cancelled", "step.cancelled", "work.cancelled"}),
        ("approval.de??ded", {"approval.decided"}),
    ],
)
def test_what_a_name_or_a_glob_stands_for(pattern: str, wanted: set[str]) -> None:
    assert names_of(pattern) == wanted


@pytest.mark.parametrize("pattern", ["flow", "flow_failed", "approval.approved", "flows.*", "test", "FLOW.*"])
def test_what_names_no_event_is_refused_with_its_place(pattern: str) -> None:
    with pytest.raises(InvalidSubscription) as refused:
        validate(SubscriptionDefinition, {"url": URL, "events": ["flow.*", pattern]}, InvalidSubscription)
    assert refused.value.details["errors"] == [{"place": "events.1", "message": "matches no event"}]


@pytest.mark.parametrize(
    "wrong",
    [
        {"events": []},
        {"events": ["flow.*"] * 65},
        {"url": "ftp://chat.test/hook"},
        {"url": "https://chat.test/a b"},
        {"match": {"step": "pay"}},
        {"match": {"flow_labels": {"a:b": "c"}}},
        {"secret": "whsec_"},
        {"enabled": "yes"},
    ],
    ids=str,
)
def test_what_is_no_subscription(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SubscriptionDefinition.model_validate({"url": URL, "events": ["flow.*"], **wrong})


def test_names_that_are_given_twice_count_once() -> None:
    assert definition("flow.failed", "flow.*", "*.failed").names >= {"flow.failed", "flow.started", "work.failed"}
    kept = {"a": subscription("a", "flow.failed", "flow.*")}
    assert len(Controls.of(1, {}, kept).audience["flow.failed"]) == 1


def test_the_audience_are_matching_subscriptions_that_are_enabled() -> None:
    kept = {
        "a": subscription("a", "flow.*"),
        "b": subscription("b", "flow.failed", "work.failed"),
        "c": subscription("c", "*", enabled=False),
    }
    audience = Controls.of(1, {}, kept).audience
    assert [each.subscription_id for each in audience["flow.failed"]] == ["a", "b"]
    assert [each.subscription_id for each in audience["work.failed"]] == ["b"]
    assert "work.succeeded" not in audience


def test_steps_and_labels_must_fit() -> None:
    pays = definition("*", match={"step_id": "pay-*", "flow_labels": {"team": "a", "kind": ""}})
    assert pays.fits_step("pay-1")
    assert not pays.fits_step("repay-1")
    assert not pays.fits_step(None), "an event that is about no step"
    assert pays.fits_labels({"team": "a", "kind": "", "more": "x"})
    assert not pays.fits_labels({"team": "a"})
    everything = definition("*")
    assert everything.fits_step(None)
    assert everything.fits_labels({})
