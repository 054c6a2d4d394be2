"""Schedules without an engine: ticks of every rhythm, clock changes, what is caught up, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from counterfoil.domain.errors import InvalidSchedule, RunKeyConflict, UnknownStep
from counterfoil.domain.schedules import (
    GRACE_MS,
    MOST_TICKS,
    Due,
    Fired,
    Rhythm,
    Schedule,
    ScheduleDefinition,
    due,
    moved_on,
    put,
    refused,
    request_at,
)
from counterfoil.domain.time import parse_rfc3339, rfc3339

NOON = parse_rfc3339("2027-01-15T12:00:00Z")
FLOW = {"goals": ["step"]}
MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
YEAR = 365 * DAY


def definition(**fields: Any) -> ScheduleDefinition:
    rhythm = {} if "cron" in fields else {"every_ms": 1_000}
    return ScheduleDefinition.model_validate({**rhythm, "flow": FLOW, **fields})


def schedule(now: int = NOON, **fields: Any) -> Schedule:
    return put("schedule", definition(**fields), None, now)


def ticks(cron: str, timezone: str, since: str, count: int) -> list[str]:
    """The next ticks in UTC, without seconds."""
    rhythm, moment, found = Rhythm(cron, timezone, None, 0), parse_rfc3339(since), []
    for _ in range(count):
        following = rhythm.next_after(moment)
        assert following is not None
        assert following > moment
        moment = following
        found.append(rfc3339(moment)[:16])
    return found


# ------------------------------------------------------------------------------------------------ ticks


@pytest.mark.parametrize(
    ("cron", "since", "tick"),
    [
        ("*/5 * * * *", "2027-01-15T12:00:00Z", "2027-01-15T12:05"),
        ("*/5 * * * *", "2027-01-15T11:59:59.999Z", "2027-01-15T12:00"),
        ("0 0 1 * *", "2027-01-15T12:00:00Z", "2027-02-01T00:00"),
        ("0 9 * * MON", "2027-01-15T12:00:00Z", "2027-01-18T09:00"),
        ("0 9 * * 0", "2027-01-15T12:00:00Z", "2027-01-17T09:00"),
        ("0 0 29 2 *", "2027-01-15T12:00:00Z", "2028-02-29T00:00"),
        ("0 0 L * *", "2027-02-15T12:00:00Z", "2027-02-28T00:00"),
    ],
)
def test_the_next_tick_of_an_expression(cron: str, since: str, tick: str) -> None:
    assert ticks(cron, "UTC", since, 1) == [tick]


def test_an_expression_may_have_seconds() -> None:
    assert Rhythm("30 0 12 * * *", "UTC", None, 0).next_after(NOON) == NOON + 30_000


def test_an_expression_means_the_clock_of_its_time_zone() -> None:
    assert ticks("0 6 * * *", "Europe/Vienna", "2027-01-15T12:00:00Z", 1) == ["2027-01-16T05:00"]
    assert ticks("0 6 * * *", "Europe/Vienna", "2027-07-15T12:00:00Z", 1) == ["2027-07-16T04:00"]
    assert ticks("0 6 * * *", "Asia/Kathmandu", "2027-01-15T12:00:00Z", 1) == ["2027-01-16T00:15"]


def test_a_time_that_the_clocks_leave_out_comes_when_they_have_moved() -> None:
    """On 28 March 2027 there is no half past two in Vienna: two o'clock is three o'clock."""
    found = ticks("30 2 * * *", "Europe/Vienna", "2027-03-26T12:00:00Z", 3)
    assert found == ["2027-03-27T01:30", "2027-03-28T01:00", "2027-03-29T00:30"]


def test_a_time_that_comes_twice_counts_once() -> None:
    """On 31 October 2027 half past two is twice in Vienna: the first one counts, whenever one asks."""
    assert ticks("30 2 * * *", "Europe/Vienna", "2027-10-30T12:00:00Z", 2) == ["2027-10-31T00:30", "2027-11-01T01:30"]
    for since in ("2027-10-31T00:30:00Z", "2027-10-31T00:45:00Z", "2027-10-31T01:10:00Z", "2027-10-31T01:30:00Z"):
        assert ticks("30 2 * * *", "Europe/Vienna", since, 1) == ["2027-11-01T01:30"], since


def test_what_comes_every_so_often_does_not_care_for_clocks() -> None:
    """Neither a hole nor anything twice: the hours of the day are other ones, the minutes go on."""
    for since in ("2027-03-28T00:00:00Z", "2027-10-30T23:30:00Z"):
        moments = [parse_rfc3339(f"{tick}:00Z") for tick in ticks("*/15 * * * *", "Europe/Vienna", since, 16)]
        assert {after - before for before, after in pairwise(moments)} == {15 * MINUTE}


@given(
    st.integers(0, 40 * 366 * DAY), st.sampled_from(["30 2 * * *", "*/20 * * * *", "0 */3 * * *", "15,45 1-3 * * *"])
)
def test_ticks_are_in_order_and_the_same_from_wherever_one_counts(since: int, cron: str) -> None:
    rhythm = Rhythm(cron, "Europe/Vienna", None, 0)
    first = rhythm.next_after(since)
    assert first is not None
    second = rhythm.next_after(first)
    assert second is not None
    assert since < first < second
    assert rhythm.next_after(first - 1) == first
    assert rhythm.next_after((first + second) // 2) == second


def test_an_interval_counts_from_its_anchor_and_never_drifts() -> None:
    rhythm = Rhythm(None, None, 1_000, NOON + 123)
    assert rhythm.next_after(NOON + 123) == NOON + 1_123
    assert rhythm.next_after(NOON + 1_122) == NOON + 1_123
    assert rhythm.next_after(NOON + 1_123) == NOON + 2_123
    assert rhythm.next_after(NOON + YEAR + 700) == NOON + YEAR + 1_123


@given(st.integers(0, 3 * YEAR), st.sampled_from([None, "* * * * *", "0 0 29 2 *", "*/7 3 * 1 *", "30 2 * * *"]))
def test_the_latest_tick_is_the_one_with_none_behind_it(gone: int, cron: str | None) -> None:
    rhythm = Rhythm(cron, "Europe/Vienna", None if cron else 12_345, NOON)
    first = rhythm.next_after(NOON)
    assert first is not None
    now = first + gone
    latest = rhythm.latest(first, now)
    following = rhythm.next_after(latest)
    assert first <= latest <= now
    assert following is None or following > now


def test_a_time_zone_that_has_gone_is_told() -> None:
    with pytest.raises(InvalidSchedule, match="not a time zone"):
        Rhythm("* * * * *", "Mars/Olympus", None, 0).next_after(NOON)
    lost = replace(schedule(cron="* * * * *"), timezone="Mars/Olympus")
    assert lost.upcoming() == [NOON + MINUTE], "as far as it is known"


# ------------------------------------------------------------------------------------------------ catching up


@pytest.mark.parametrize("catch_up", ["skip", "one", "all"])
def test_a_tick_on_its_time_is_fired(catch_up: str) -> None:
    planned = schedule(every_ms=DAY, catch_up=catch_up)
    tick = NOON + DAY
    assert planned.next_at == tick
    assert due(planned, tick - 1) == Due([], tick)
    assert due(planned, tick) == Due([tick], tick + DAY)
    assert due(planned, tick + GRACE_MS) == Due([tick], tick + DAY)


def test_what_is_late_is_skipped() -> None:
    planned = schedule(every_ms=MINUTE, catch_up="skip")
    assert due(planned, NOON + MINUTE + GRACE_MS + 1) == Due([], NOON + 2 * MINUTE)
    assert due(planned, NOON + 10 * MINUTE) == Due([], NOON + 11 * MINUTE), "also a tick that comes just now"


def test_a_quick_rhythm_that_lags_a_little_is_not_skipped() -> None:
    planned = schedule(every_ms=100, catch_up="skip")
    assert due(planned, NOON + 350) == Due([NOON + 300], NOON + 400)


def test_of_all_that_was_missed_one_is_caught_up() -> None:
    planned = schedule(every_ms=MINUTE)
    assert due(planned, NOON + 10 * MINUTE + 1) == Due([NOON + 10 * MINUTE], NOON + 11 * MINUTE)
    assert due(planned, NOON + YEAR) == Due([NOON + YEAR], NOON + YEAR + MINUTE)
    daily = schedule(cron="0 6 * * *", timezone="Europe/Vienna")
    assert due(daily, NOON + 3 * DAY) == Due([NOON + 3 * DAY - 7 * HOUR], NOON + 4 * DAY - 7 * HOUR)


def test_all_that_was_missed_is_caught_up_in_bounded_rounds() -> None:
    planned = schedule(every_ms=1_000, catch_up="all")
    now, caught_up = NOON + 250_500, list[int]()
    while True:
        fired = due(planned, now)
        if not fired.ticks:
            break
        assert len(fired.ticks) <= MOST_TICKS
        caught_up += fired.ticks
        planned = moved_on(planned, fired.next_at, [Fired(tick, "flow") for tick in fired.ticks], now)
    assert caught_up == [NOON + 1_000 * number for number in range(1, 251)]
    assert planned.next_at == NOON + 251_000


def test_exactly_as_many_as_fit_into_a_round() -> None:
    planned = schedule(every_ms=1_000, catch_up="all")
    fired = due(planned, NOON + 1_000 * MOST_TICKS)
    assert (len(fired.ticks), fired.next_at) == (MOST_TICKS, NOON + 1_000 * (MOST_TICKS + 1))


def test_nothing_is_due_while_paused() -> None:
    assert due(schedule(enabled=False), NOON + YEAR) == Due([], None)


# ------------------------------------------------------------------------------------------------ putting


def test_a_new_schedule_begins_with_the_next_tick() -> None:
    planned = schedule(cron="0 12 * * *")
    assert (planned.next_at, planned.timezone, planned.every_ms) == (NOON + DAY, "UTC", None)
    assert (planned.created_at, planned.last_at, planned.last_flow_id) == (NOON, None, None)
    assert schedule(every_ms=5_000).next_at == NOON + 5_000


def test_the_same_again_changes_nothing() -> None:
    planned = schedule(every_ms=5_000)
    assert put("schedule", definition(every_ms=5_000), planned, NOON + DAY) is planned
    assert put("schedule", definition(every_ms=5_000, flow={**FLOW, "init": {}}), planned, NOON + DAY) is not planned


def test_true_is_not_one() -> None:
    planned = schedule(flow={**FLOW, "init": {"a": 1}})
    changed = put("schedule", definition(flow={**FLOW, "init": {"a": True}}), planned, NOON + 1)
    assert changed.flow["init"]["a"] is True


def test_another_flow_keeps_the_rhythm_and_what_is_to_be_caught_up() -> None:
    planned = schedule(every_ms=5_000)
    changed = put("schedule", definition(every_ms=5_000, catch_up="all"), planned, NOON + 20_001)
    assert (changed.next_at, changed.anchor_at, changed.updated_at) == (NOON + 5_000, NOON, NOON + 20_001)
    assert changed.created_at == NOON


def test_another_rhythm_begins_anew() -> None:
    planned = schedule(every_ms=5_000)
    changed = put("schedule", definition(every_ms=6_000), planned, NOON + 20_001)
    assert (changed.next_at, changed.anchor_at) == (NOON + 26_001, NOON + 20_001)
    moved = put("schedule", definition(cron="0 12 * * *", timezone="Asia/Tokyo"), planned, NOON)
    assert moved.next_at == NOON + 15 * HOUR


def test_a_pause_is_not_caught_up() -> None:
    planned = schedule(every_ms=5_000, catch_up="all")
    paused = put("schedule", definition(every_ms=5_000, catch_up="all", enabled=False), planned, NOON + 7_000)
    assert (paused.next_at, paused.upcoming()) == (None, [])
    resumed = put("schedule", definition(every_ms=5_000, catch_up="all"), paused, NOON + 63_000)
    assert resumed.next_at == NOON + 65_000, "the rhythm is the old one"


def test_what_was_fired_is_remembered() -> None:
    planned = schedule()
    fired = due(planned, NOON + 1_000)
    done = moved_on(planned, fired.next_at, [Fired(fired.ticks[0], "flow-1")], NOON + 1_000)
    assert (done.next_at, done.last_at, done.last_flow_id) == (NOON + 2_000, NOON + 1_000, "flow-1")
    wrong = refused(done, NOON + 3_000, UnknownStep("no step"), NOON + 2_000)
    assert wrong.last_error == {"code": "UNKNOWN_STEP", "message": "no step", "at": rfc3339(NOON + 2_000)}
    assert (wrong.next_at, wrong.last_at, wrong.last_flow_id) == (NOON + 3_000, NOON + 1_000, "flow-1")
    skipped = moved_on(wrong, NOON + 9_000, [], NOON + 8_000)
    assert (skipped.next_at, skipped.last_error) == (NOON + 9_000, wrong.last_error)
    assert moved_on(wrong, NOON + 4_000, [Fired(NOON + 3_000, "flow-2")], NOON + 3_000).last_error is None


def test_ticks_of_one_firing_may_end_differently() -> None:
    taken = RunKeyConflict("taken")
    fired = [Fired(NOON + 1_000, "flow-1"), Fired(NOON + 2_000, None, taken)]
    done = moved_on(schedule(), NOON + 3_000, fired, NOON + 2_500)
    assert (done.last_at, done.last_flow_id) == (NOON + 1_000, "flow-1")
    assert done.last_error == {"code": "RUN_KEY_CONFLICT", "message": "taken", "at": rfc3339(NOON + 2_500)}
    again = moved_on(done, NOON + 4_000, [Fired(NOON + 3_000, "flow-1", reused=True)], NOON + 3_500)
    assert (again.last_at, again.last_flow_id, again.last_error) == (NOON + 3_000, "flow-1", None)


def test_a_flow_knows_its_schedule_and_its_tick() -> None:
    planned = schedule(flow={**FLOW, "metadata": {"run": 1, "schedule_id": "another"}})
    request = request_at(planned, NOON)
    assert request.metadata == {"run": 1, "schedule_id": "schedule", "scheduled_at": "2027-01-15T12:00:00.000Z"}
    assert planned.flow["metadata"] == {"run": 1, "schedule_id": "another"}


def test_the_next_five_ticks_are_told() -> None:
    assert schedule(every_ms=1_000).upcoming() == [NOON + 1_000 * number for number in range(1, 6)]


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("fields", "place", "message"),
    [
        ({"every_ms": 99}, ("every_ms",), "greater than or equal to 100"),
        ({"every_ms": "1000"}, ("every_ms",), "integer"),
        ({"every_ms": True}, ("every_ms",), "integer"),
        ({"every_ms": 10**15}, ("every_ms",), "less than"),
        ({"cron": "* * * *"}, ("cron",), "not a cron expression: wrong number of fields"),
        ({"cron": "61 * * * *"}, ("cron",), "not a cron expression: bad minute"),
        ({"cron": ""}, ("cron",), "not a cron expression"),
        ({"cron": "0 0 30 2 *"}, ("cron",), "not a cron expression"),
        ({"cron": "0 0 * 2 MON#5,TUE#5/0"}, ("cron",), "not a cron expression"),
        ({"cron": "0 0 */31 * MON#5"}, ("cron",), "is never due"),
        ({"cron": "* * * * *", "timezone": "Mars/Olympus"}, ("timezone",), "not a time zone"),
        ({"cron": "* * * * *", "timezone": "Europe"}, ("timezone",), "not a time zone"),
        ({"cron": "* * * * *", "timezone": "../etc/passwd"}, ("timezone",), "not a time zone"),
        ({"cron": "* * * * *", "timezone": ""}, ("timezone",), "not a time zone"),
        ({"cron": "* * * * *", "every_ms": 1_000}, (), "every_ms: give cron or every_ms, not both"),
        ({"cron": None, "every_ms": None}, (), "cron: give cron or every_ms"),
        ({"every_ms": 1_000, "timezone": "UTC"}, (), "timezone: only a cron expression has one"),
        ({"flow": {**FLOW, "flow_id": "mine"}}, (), "flow.flow_id: not allowed, because each tick starts a new flow"),
        (
            {"flow": {**FLOW, "idempotency_key": "k", "if_owner": {"flow_id": "f"}}},
            (),
            "flow.if_owner: not allowed, because each tick starts a new flow",
        ),
        ({"flow": {"goals": []}}, ("flow", "goals"), ""),
        ({"flow": None}, ("flow",), ""),
        ({"catch_up": "some"}, ("catch_up",), ""),
        ({"enabled": 1}, ("enabled",), ""),
        ({"unknown": 1}, ("unknown",), ""),
    ],
)
def test_what_is_no_schedule_is_refused(fields: dict[str, Any], place: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        definition(**fields)
    [fault] = refusal.value.errors()
    assert fault["loc"] == place
    assert message in fault["msg"]
