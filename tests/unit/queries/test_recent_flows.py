"""What a node knows of the flows that it started lately: nothing that could be wrong, and not too much."""

from __future__ import annotations

from counterfoil.engine.queries.recent_flows import RecentFlows


def test_a_flow_is_open_from_its_start_to_its_end() -> None:
    recent = RecentFlows()
    assert not recent.is_open("flow")
    recent.start(["flow", "other"])
    assert recent.is_open("flow")
    recent.end(["flow"])
    assert (recent.is_open("flow"), recent.is_open("other")) == (False, True)


def test_an_end_that_is_told_before_the_start_stands() -> None:
    recent = RecentFlows()
    recent.end(["flow"])
    recent.start(["flow"])
    assert not recent.is_open("flow")


def test_those_noted_longest_ago_are_dropped() -> None:
    recent = RecentFlows(most=3)
    recent.start(["a", "b"])
    recent.end(["c"])
    recent.start(["d", "e"])
    assert len(recent) == 3
    assert [flow_id for flow_id in "abcde" if recent.is_open(flow_id)] == ["d", "e"]


def test_all_are_forgotten() -> None:
    recent = RecentFlows()
    recent.start(["flow"])
    recent.clear()
    assert not recent.is_open("flow")
