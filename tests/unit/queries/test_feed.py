"""Bells: a reader that waits for a flow or for all flows is woken by a commit, at once, and by nothing else."""

from __future__ import annotations

import asyncio

import pytest

from counterfoil.engine.queries.feed import Feed, FeedReader

A_MOMENT = 0.02
LONG = 30.0


async def rung(subscription: FeedReader) -> bool:
    """Whether it has been rung since the last time; waits no longer than a moment."""
    waiting = asyncio.create_task(subscription.wait(LONG))
    done, _ = await asyncio.wait({waiting}, timeout=A_MOMENT)
    waiting.cancel()
    return bool(done)


async def test_a_ring_wakes_the_waiters() -> None:
    feed = Feed()
    with feed.subscribe("flow") as one, feed.subscribe("flow") as two, feed.subscribe(None) as all_flows:
        waiting = [asyncio.create_task(subscription.wait(LONG)) for subscription in (one, two, all_flows)]
        await asyncio.sleep(0)
        feed.ring(["flow"])
        await asyncio.wait_for(asyncio.gather(*waiting), LONG)


async def test_a_ring_before_the_wait_is_not_lost_and_counts_once() -> None:
    feed = Feed()
    with feed.subscribe("flow") as subscription:
        feed.ring(["flow"])
        feed.ring(["flow"])
        assert await rung(subscription)
        assert not await rung(subscription)


async def test_the_rings_of_other_flows_are_not_heard() -> None:
    feed = Feed()
    with feed.subscribe("flow") as subscription, feed.subscribe(None) as all_flows:
        feed.ring(["another"])
        assert not await rung(subscription)
        assert await rung(all_flows)


async def test_a_commit_without_events_rings_nothing() -> None:
    feed = Feed()
    with feed.subscribe("flow") as subscription, feed.subscribe(None) as all_flows:
        feed.ring([])
        assert not await rung(subscription)
        assert not await rung(all_flows)


async def test_the_time_is_over() -> None:
    with Feed().subscribe("flow") as subscription:
        assert not await asyncio.wait_for(subscription.wait(0.001), LONG)
        subscription.ring()
        assert await asyncio.wait_for(subscription.wait(LONG), LONG)


@pytest.mark.parametrize("flow_id", ["flow", None])
async def test_a_waiter_that_left_is_forgotten(flow_id: str | None) -> None:
    feed = Feed()
    readers = [feed.has_readers]
    with feed.subscribe(flow_id) as leaving:
        readers.append(feed.has_readers)
        with feed.subscribe(flow_id):
            pass
        readers.append(feed.has_readers)
    readers.append(feed.has_readers)
    assert readers == [False, True, True, False]
    feed.ring(["flow"])
    assert not await rung(leaving)


async def test_a_waiter_that_leaves_does_not_take_others_along() -> None:
    feed = Feed()
    with feed.subscribe("flow") as staying:
        with feed.subscribe("flow"):
            pass
        feed.ring(["flow"])
        assert await rung(staying)


async def test_closing_wakes_all_waiters() -> None:
    feed = Feed()
    with feed.subscribe("flow") as one, feed.subscribe("another") as two, feed.subscribe(None) as all_flows:
        feed.close()
        assert feed.closed
        assert [await rung(subscription) for subscription in (one, two, all_flows)] == [True, True, True]
