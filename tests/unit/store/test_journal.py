"""Entries of the journal: as long as they can be, and in pages of any size every event is seen once, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.jsontext import dump_json, parse_json
from counterfoil.store.journal import MOST_EVENTS, pack, parse_entry, unpack, unpack_read
from counterfoil.store.protocol import Row

TEXTS = st.text(st.characters(codec="utf-8"), max_size=4)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=3,
)
EVENTS = st.builds(
    Event,
    st.sampled_from(EventType),
    st.integers(1, 2),
    st.sampled_from(["f1", "f2"]),
    st.none() | TEXTS,
    st.sampled_from([None, "w1", "w2"]),
    st.none() | st.integers(0, 3),
    st.dictionaries(TEXTS, VALUES, max_size=2),
)
RUNS = st.lists(st.tuples(EVENTS, st.integers(1, 150)), max_size=6)
"""Events with how often each is repeated: also runs that do not fit into one entry.

They are drawn like that and unrolled by the test: Hypothesis writes out what it draws, and warns of much text.
"""
MIXED = RUNS | st.lists(st.tuples(EVENTS, st.just(1)), max_size=16)


@dataclass
class Table:
    """Entries under the numbers that a store gives them, and what its queries find."""

    entries: list[Row]

    def read(self, query: str, **parameters: Any) -> list[Row]:
        first, limit = parameters.get("after", 0) // MOST_EVENTS, parameters.get("limit", len(self.entries))
        wanted = {name: value for name, value in parameters.items() if name in ("flow_id", "work_id")}
        found = [
            entry
            for entry in self.entries
            if entry[0] >= first and wanted.items() <= {"flow_id": entry[1], "work_id": entry[2]}.items()
        ]
        return unpack_read(query, parameters, found[: limit + 1])


def unrolled(runs: list[tuple[Event, int]]) -> list[Event]:
    return [event for event, count in runs for _ in range(count)]


def numbered(entries: list[Row], gap: int = 1) -> list[Row]:
    return [(number, *entry) for number, entry in enumerate(entries, gap)]


def row(event: Event) -> Row:
    """An event as readers get it, but for its number."""
    data = dump_json(event.data).decode()
    return event.type.value, event.at, event.flow_id, event.step_id, event.work_id, event.attempt, data


def event(flow_id: str = "f", work_id: str | None = None, at: int = 1, **data: Any) -> Event:
    return Event(EventType.WORK_HEARTBEAT, at, flow_id, "s", work_id, 1, data)


@given(MIXED)
def test_what_was_packed_is_unpacked(runs: list[tuple[Event, int]]) -> None:
    events = unrolled(runs)
    found = unpack(numbered(pack(events)))
    assert [each[1:] for each in found] == [row(each) for each in events]
    numbers = [each[0] for each in found]
    assert numbers == sorted(set(numbers)), "numbers rise, and none is used twice"


@given(MIXED, st.integers(1, 200))
def test_pages_of_any_size_give_every_event_once_and_in_order(runs: list[tuple[Event, int]], limit: int) -> None:
    table = Table(numbered(pack(unrolled(runs))))

    def pages(query: str, **parameters: Any) -> list[Row]:
        seen: list[Row] = []
        while page := table.read(query, after=seen[-1][0] if seen else 0, limit=limit, **parameters):
            assert len(page) <= limit
            seen += page
        return seen

    everything = unpack(table.entries)
    assert pages("journal_after") == everything
    for flow_id in ("f1", "f2"):
        assert pages("journal_of_flow", flow_id=flow_id) == [each for each in everything if each[3] == flow_id]
        for work_id in ("w1", "w2"):
            of_work = [each for each in everything if each[3] == flow_id and each[5] == work_id]
            assert table.read("journal_of_work", flow_id=flow_id, work_id=work_id) == of_work


@given(RUNS)
def test_an_entry_is_as_long_as_it_can_be(runs: list[tuple[Event, int]]) -> None:
    events = unrolled(runs)
    rest = iter(events)
    last: list[Event] = []
    for flow_id, work_id, at, text in pack(events):
        run = [next(rest) for _ in parse_entry(text)]
        assert 1 <= len(run) <= MOST_EVENTS
        assert {(each.flow_id, each.at) for each in run} == {(flow_id, at)}
        assert {each.work_id for each in run} - {None} == ({work_id} - {None})
        joined = [*last, run[0]]
        assert (
            not last
            or len(joined) > MOST_EVENTS
            or len({(each.flow_id, each.at) for each in joined}) > 1
            or len({each.work_id for each in joined} - {None}) > 1
        ), "it would have found its place in the entry before"
        last = run
    assert next(rest, None) is None


def test_the_end_of_a_flow_is_one_entry() -> None:
    events = [
        Event(EventType.WORK_SUCCEEDED, 5, "f", "s", "w", 1, {"result": {"outputs": {"n": 1}}}),
        Event(EventType.STEP_COMPLETED, 5, "f", "s", data={"outputs": {"n": 1}}),
        Event(EventType.FLOW_COMPLETED, 5, "f"),
    ]
    text = (
        '[["work_succeeded","s",1,1,{"result":{"outputs":{"n":1}}}],'
        '["step_completed","s",0,null,{"outputs":{"n":1}}],["flow_completed",null,0,null,{}]]'
    )
    assert pack(events) == [("f", "w", 5, text)]
    assert pack([]) == []


@pytest.mark.parametrize(
    ("events", "lengths"),
    [
        ([event(), event(work_id="w"), event(), event(work_id="w")], [4]),
        ([event(work_id="w1"), event(), event(work_id="w2"), event()], [2, 2]),
        ([event("f1"), event("f2"), event("f1")], [1, 1, 1]),
        ([event(at=1), event(at=2), event(at=2)], [1, 2]),
        ([event()] * 64, [64]),
        ([event()] * 65, [64, 1]),
        ([event(work_id="w")] * 200, [64, 64, 64, 8]),
    ],
    ids=["one item", "two items", "flows in turn", "another time", "full", "one too many", "many"],
)
def test_where_an_entry_ends(events: list[Event], lengths: list[int]) -> None:
    assert [len(parse_entry(entry[-1])) for entry in pack(events)] == lengths


def test_numbers_are_those_of_the_entry_and_the_place_in_it() -> None:
    entries = numbered(pack([event(n=number) for number in range(70)]), gap=3)
    found = unpack(entries)
    assert [each[0] for each in found] == [*range(192, 256), *range(256, 262)]
    assert [parse_json(each[-1])["n"] for each in unpack(entries, after=254, limit=2)] == [63, 64]
    assert unpack(entries, after=261) == []
    assert unpack(entries, limit=0) == []


def test_digits_and_depth_are_kept() -> None:
    """Data may be as deep as any request, though it lies deeper here than in the request."""
    deep: Any = 12345678901234567890123
    for _ in range(199):
        deep = [deep]
    data = dump_json({"deep": deep, "cents": 10**25, "half": 0.5}).decode()
    assert parse_json(data)["deep"] == deep
    [found] = unpack(numbered(pack([event(deep=deep, cents=10**25, half=0.5)])))
    assert found[-1] == data


@pytest.mark.parametrize("text", ["", "[[", "{}", "[]", "null", f"[{'0,' * 64}0]"])
def test_what_is_no_entry_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"EOF|an entry is a list"):
        parse_entry(text)
