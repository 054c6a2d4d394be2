"""Commands are shared out evenly among the batches that may be under way."""

from __future__ import annotations

from counterfoil.store.sharing import Shares


def test_one_batch_at_a_time_takes_everything() -> None:
    shares = Shares(1)
    assert [shares.take(waiting, 0) for waiting in (1, 64, 3, 100)] == [1, 64, 3, 100]


def test_the_first_of_two_leaves_half_to_the_other() -> None:
    shares = Shares(2)
    assert shares.take(64, 0) == 32
    assert shares.take(32, 32) == 32


def test_a_batch_takes_no_more_than_its_share_though_more_wait() -> None:
    shares = Shares(2)
    assert shares.take(53, 11) == 32


def test_a_single_command_is_enough_as_long_as_there_never_were_more() -> None:
    shares = Shares(2)
    assert shares.are_enough(1)
    assert shares.take(1, 0) == 1
    assert shares.are_enough(1)


def test_few_are_not_enough_where_many_are_expected() -> None:
    shares = Shares(2)
    shares.take(64, 0)
    assert not shares.are_enough(31)
    assert shares.are_enough(32)


def test_a_crowd_that_does_not_show_again_is_expected_less_and_less() -> None:
    shares = Shares(2)
    shares.take(64, 0)
    batches = 0
    while not shares.are_enough(1):
        shares.take(1, 0)
        batches += 1
    assert batches < 40
