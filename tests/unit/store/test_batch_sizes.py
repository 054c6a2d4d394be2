"""Commands are shared out evenly among the batches that may be under way."""

from __future__ import annotations

from counterfoil.store.group_commit.batch_sizes import (
    LEAST_ALONE,
    LEAST_AMONG_OTHERS,
    PATIENCE,
    PATIENCE_AT_REST,
    PATIENCE_OF_FEW,
    BatchSizer,
)


def test_one_batch_at_a_time_takes_everything() -> None:
    shares = BatchSizer(1)
    assert [shares.take(waiting, 0) for waiting in (1, 64, 3, 100)] == [1, 64, 3, 100]


def test_the_first_of_two_leaves_half_to_the_other() -> None:
    shares = BatchSizer(2)
    assert shares.take(64, 0) == 32
    assert shares.take(32, 32) == 32


def test_a_batch_takes_no_more_than_its_share_though_more_wait() -> None:
    shares = BatchSizer(2)
    assert shares.take(53, 11) == 32


def test_a_small_rest_goes_along() -> None:
    shares = BatchSizer(2)
    shares.take(64, 0)
    assert shares.take(32, 0) == 32, "though after the fading fewer are a share"
    shares.take(32, 32)
    assert shares.take(47, 17) == 47, "32, and less than half as many again"


def test_a_single_command_is_enough_as_long_as_there_never_were_more() -> None:
    shares = BatchSizer(2)
    assert shares.enough <= 1
    assert shares.take(1, 0) == 1
    assert shares.enough <= 1


def test_few_are_not_enough_where_many_are_expected() -> None:
    shares = BatchSizer(2)
    shares.take(64, 0)
    assert shares.enough == 32


def test_a_crowd_that_does_not_show_again_is_expected_less_and_less() -> None:
    shares = BatchSizer(2)
    shares.take(64, 0)
    batches = 0
    while shares.enough > 1:
        shares.take(1, 0)
        batches += 1
    assert batches <= 40


def test_a_small_crowd_is_not_divided() -> None:
    shares = BatchSizer(2)
    assert shares.take(10, 0) == 10
    assert shares.take(20, 0) == 20, "nor is it with a few more"
    assert shares.take(2 * LEAST_ALONE - 1, 0) == LEAST_ALONE
    assert shares.take(4 * LEAST_ALONE, 0) == 2 * LEAST_ALONE, "half of them"


def test_where_other_nodes_use_the_database_meanwhile_batches_are_larger() -> None:
    shares = BatchSizer(2)
    shares.expect_others(1)
    assert shares.take(LEAST_AMONG_OTHERS, 0) == LEAST_AMONG_OTHERS
    shares.expect_others(0)
    assert shares.take(LEAST_AMONG_OTHERS, 0) == LEAST_AMONG_OTHERS / 2


def test_few_among_other_nodes_wait_longer_for_each_other() -> None:
    shares = BatchSizer(2)
    shares.take(LEAST_AMONG_OTHERS, 0)
    assert shares.patience == PATIENCE
    shares.expect_others(1)
    assert shares.patience == PATIENCE_OF_FEW
    shares.take(2 * LEAST_AMONG_OTHERS, 0)
    assert shares.patience == PATIENCE, "they make two batches, as without others"


def test_a_node_that_is_alone_never_leaves_the_database_idle() -> None:
    shares = BatchSizer(2)
    assert shares.patience_at_rest == 0
    shares.expect_others(1)
    assert shares.patience_at_rest == PATIENCE_AT_REST
