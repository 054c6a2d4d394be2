"""Dispatch capacity: overall, by host, and fair to waiting work."""

from __future__ import annotations

import pytest

from counterfoil.engine.work.capacity import BatchCapacity, Slots


def take(slots: Slots, *lanes: str) -> list[bool]:
    capacity = BatchCapacity(slots)
    return [capacity.take(lane) for lane in lanes]


def test_no_more_than_the_total() -> None:
    assert take(Slots(3, 3), "a@x", "a@y", "a@z", "a@v") == [True, True, True, False]


def test_no_more_than_a_host_may_have_whatever_the_step() -> None:
    assert take(Slots(9, 2), "a@x", "b@x", "c@x", "a@y") == [True, True, False, True]


def test_what_is_under_way_counts() -> None:
    slots = Slots(4, 2)
    for lane in ("a@x", "b@x", "a@y"):
        slots.occupy(lane)
    assert (slots.under_way, slots.free(), slots.free_to("x"), slots.free_to("y"), slots.free_to("z")) == (
        3,
        1,
        0,
        1,
        1,
    )
    assert take(slots, "c@x", "c@y", "c@z") == [False, True, False]


def test_what_comes_back_makes_room() -> None:
    slots = Slots(1, 1)
    slots.occupy("a@x")
    assert take(slots, "a@x") == [False]
    slots.release("a@x")
    assert (slots.under_way, slots.free_to("x")) == (0, 1)
    assert take(slots, "a@x") == [True]


def test_places_taken_by_a_batch_that_failed_are_not_lost() -> None:
    slots = Slots(1, 1)
    for _ in range(3):
        capacity = BatchCapacity(slots)
        assert capacity.take("a@x")
        capacity.give_back()
        capacity.give_back()


def test_batches_under_way_at_once_share_the_places() -> None:
    slots = Slots(3, 2)
    first, second = BatchCapacity(slots), BatchCapacity(slots)
    assert first.take("a@x")
    assert [second.take(lane) for lane in ("a@x", "b@x", "a@y", "a@z")] == [True, False, True, False]
    second.give_back()
    assert [first.take(lane) for lane in ("a@x", "b@x", "a@y", "a@z")] == [True, False, True, False]
    first.give_back()
    assert (slots.free(), slots.free_to("x")) == (3, 2)


def test_new_work_does_not_overtake_what_waits_in_its_lane() -> None:
    slots = Slots(9, 9)
    slots.waiting.add("a@x")
    capacity = BatchCapacity(slots)
    assert not capacity.take_at_once("a@x")
    assert capacity.take_at_once("b@x")
    assert capacity.take("a@x"), "its turn comes by the sweep"


@pytest.mark.parametrize("lane", ["a@x", "b@y"])
def test_new_work_finds_no_place_when_there_is_none(lane: str) -> None:
    slots = Slots(1, 1)
    slots.occupy("a@x")
    assert not BatchCapacity(slots).take_at_once(lane)


def test_a_step_that_is_full_is_remembered() -> None:
    slots = Slots(1, 1)
    BatchCapacity(slots).note_full("step@x")
    assert slots.full == {"step": {"step@x"}}
