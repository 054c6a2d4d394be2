"""The end of the journal: what stands behind a hole waits until the hole cannot be filled any more."""

from __future__ import annotations

import pytest

from counterfoil.store.postgres.journal_tail import COLUMNS, MOST_HOLES, JournalTail


def rows(*numbers: int, oldest: int, following: int) -> list[tuple[object, ...]]:
    """Entries under these numbers, read while ``oldest`` was the oldest transaction that ran, before ``following``."""
    return [(number, *("column",) * (COLUMNS - 1), oldest, following) for number in numbers]


def shown(tail: JournalTail, after: int, *numbers: int, oldest: int = 100, following: int = 100) -> list[int]:
    return [row[0] for row in tail.visible(after, rows(*numbers, oldest=oldest, following=following))]


def test_what_has_no_hole_is_shown() -> None:
    tail = JournalTail()
    assert shown(tail, 0) == []
    assert shown(tail, 0, 1, 2, 3, oldest=7, following=9) == [1, 2, 3]
    assert shown(tail, 3, 4, oldest=7, following=9) == [4]


def test_an_entry_that_was_seen_in_part_is_shown_again() -> None:
    assert shown(JournalTail(), 3, 3, 4, oldest=7, following=9) == [3, 4]
    assert shown(JournalTail(), 3, 3, 5, oldest=7, following=9) == [3]


def test_only_the_columns_of_an_entry_are_shown() -> None:
    [row] = JournalTail().visible(0, rows(1, oldest=1, following=1))
    assert row == (1, *("column",) * (COLUMNS - 1))
    assert isinstance(row, tuple)


@pytest.mark.parametrize(("numbers", "before_the_hole"), [((1, 2, 4, 5), [1, 2]), ((2, 3), []), ((1, 3, 5), [1])])
def test_what_stands_behind_a_hole_is_held_back(numbers: tuple[int, ...], before_the_hole: list[int]) -> None:
    assert shown(JournalTail(), 0, *numbers, oldest=99, following=100) == before_the_hole


def test_a_hole_that_no_transaction_can_fill_is_passed_over_at_once() -> None:
    assert shown(JournalTail(), 0, 1, 3, 7, 8, oldest=100, following=100) == [1, 3, 7, 8]


def test_a_hole_is_waited_for_until_all_transactions_of_its_time_have_ended() -> None:
    tail = JournalTail()
    assert shown(tail, 1, 3, oldest=50, following=60) == []
    assert shown(tail, 1, 3, oldest=59, following=70) == [], "the last of them still runs"
    assert shown(tail, 1, 3, oldest=60, following=80) == [3], "those that began later do not count"


def test_a_hole_that_is_filled_is_shown() -> None:
    tail = JournalTail()
    assert shown(tail, 0, 1, 3, oldest=50, following=60) == [1]
    assert shown(tail, 1, 2, 3, oldest=50, following=60) == [2, 3]


def test_a_hole_may_be_filled_in_part() -> None:
    tail = JournalTail()
    assert shown(tail, 0, 4, oldest=50, following=60) == []
    assert shown(tail, 0, 2, 4, oldest=50, following=61) == [], "1 is still missing"
    assert shown(tail, 0, 1, 2, 4, oldest=50, following=62) == [1, 2], "and now 3, which is another hole"
    assert shown(tail, 2, 4, oldest=60, following=70) == []
    assert shown(tail, 2, 4, oldest=61, following=70) == [4], "which was seen already behind the first"


def test_all_holes_of_a_reading_are_waited_for_together() -> None:
    """Where flows were pruned there may be hundreds: one after the other would take for ever."""
    tail = JournalTail()
    numbers = list(range(1, 100, 2))
    assert shown(tail, 0, *numbers, oldest=50, following=60) == [1]
    assert shown(tail, 1, *numbers[1:], oldest=60, following=90) == numbers[1:], "others run, but began later"


def test_several_readers_wait_for_the_same_hole() -> None:
    """The read that saw it first has begun the waiting for all, in whichever order their answers come."""
    tail = JournalTail()
    assert shown(tail, 1, 3, oldest=50, following=60) == []
    assert shown(tail, 0, 1, 3, oldest=55, following=65) == [1]
    assert shown(tail, 0, 1, 3, oldest=60, following=70) == [1, 3]
    assert shown(tail, 1, 3, oldest=49, following=59) == [], "an older look that was answered late"
    assert shown(tail, 1, 3, oldest=60, following=70) == [3]


def test_it_does_not_remember_holes_for_ever() -> None:
    """What is forgotten is waited for again: late, but never wrong."""
    tail = JournalTail()
    for number in range(MOST_HOLES + 10):
        after = number * 10
        assert shown(tail, after, after + 2, oldest=50, following=60) == []
    assert len(tail._holes) == MOST_HOLES
    assert shown(tail, 0, 2, oldest=60, following=70) == [], "forgotten, and seen as if for the first time"
    assert shown(tail, 0, 2, oldest=70, following=80) == [2]
    last = (MOST_HOLES + 9) * 10
    assert shown(tail, last, last + 2, oldest=60, following=70) == [last + 2]
