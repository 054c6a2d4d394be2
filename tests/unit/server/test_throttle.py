"""Wrong API keys: how late each is answered, and how little it costs to remember them."""

from __future__ import annotations

import asyncio

import pytest

from counterfoil.server import throttle
from counterfoil.server.throttle import (
    COUNTED_FAILURES,
    FIRST_DELAY_SECONDS,
    FORGIVEN_SECONDS,
    FREE_FAILURES,
    LATE_ANSWERS,
    LONGEST_DELAY_SECONDS,
    LONGEST_TURN_SECONDS,
    PEERS_KEPT,
    UNKNOWN_RECEIPTS_AT_ONCE,
    UNKNOWN_RECEIPTS_PER_SECOND,
    KeyThrottle,
    ReceiptPace,
)

PEER = "203.0.113.9"


class Watch:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_delays_begin_after_some_failures_double_and_have_a_limit(watch: Watch) -> None:
    guard = KeyThrottle(watch)
    delays = [guard.delay(PEER) for _ in range(40)]
    assert delays[:FREE_FAILURES] == [0.0] * FREE_FAILURES
    assert delays[FREE_FAILURES : FREE_FAILURES + 3] == pytest.approx([FIRST_DELAY_SECONDS * n for n in (1, 2, 4)])
    assert delays[-1] == LONGEST_DELAY_SECONDS
    assert delays == sorted(delays)


def test_failures_are_forgiven_one_by_one(watch: Watch) -> None:
    guard = KeyThrottle(watch)
    for _ in range(1_000):
        guard.delay(PEER)
    watch.now += FORGIVEN_SECONDS * (COUNTED_FAILURES - FREE_FAILURES + 1)
    assert guard.delay(PEER) == 0.0
    assert guard.delay(PEER) == pytest.approx(FIRST_DELAY_SECONDS)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (PEER, "203.0.113.10", False),
        (PEER, f"::ffff:{PEER}", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        (None, "", True),
    ],
)
def test_addresses_are_counted_apart_and_networks_of_ipv6_together(
    watch: Watch, one: str | None, other: str, same: bool
) -> None:
    guard = KeyThrottle(watch)
    for _ in range(30):
        guard.delay(one)
    assert (guard.delay(other) > 0) is same


def test_only_so_many_addresses_are_remembered(watch: Watch) -> None:
    guard = KeyThrottle(watch)
    for _ in range(30):
        guard.delay(PEER)
    for number in range(PEERS_KEPT):
        guard.delay(f"10.0.{number >> 8}.{number & 255}")
    assert len(guard._peers) == PEERS_KEPT
    assert guard.delay(PEER) == 0.0


async def test_only_so_many_answers_are_late_at_once(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "FREE_FAILURES", 0)
    monkeypatch.setattr(throttle, "FIRST_DELAY_SECONDS", LONGEST_DELAY_SECONDS)
    monkeypatch.setattr(throttle, "LATE_ANSWERS_PER_PEER", 2)
    guard = KeyThrottle(watch)
    addresses = [f"10.0.0.{number // 2}" for number in range(LATE_ANSWERS)]
    late = [asyncio.create_task(guard.failed(address)) for address in addresses]
    await asyncio.gather(guard.failed(addresses[0]), guard.failed(PEER))  # one address too much, all too much
    assert not [task for task in late if task.done()]
    guard.release()
    await asyncio.gather(*late)
    await asyncio.gather(*(guard.failed(address) for address in addresses))


def test_unknown_receipts_are_answered_at_once_until_there_are_too_many(watch: Watch) -> None:
    pace = ReceiptPace(watch)
    assert max(pace.delay() for _ in range(UNKNOWN_RECEIPTS_AT_ONCE)) == pytest.approx(0)
    delays = [pace.delay() for _ in range(UNKNOWN_RECEIPTS_PER_SECOND)]
    assert delays == pytest.approx([(number + 1) / UNKNOWN_RECEIPTS_PER_SECOND for number in range(len(delays))])
    assert pace.delay() == pytest.approx(LONGEST_TURN_SECONDS)
    watch.now += LONGEST_TURN_SECONDS
    assert pace.delay() == pytest.approx(1 / UNKNOWN_RECEIPTS_PER_SECOND)


def test_of_unknown_receipts_at_their_pace_none_waits(watch: Watch) -> None:
    pace = ReceiptPace(watch)
    for _ in range(10 * UNKNOWN_RECEIPTS_PER_SECOND):
        watch.now += 1 / UNKNOWN_RECEIPTS_PER_SECOND
        assert pace.delay() == 0
