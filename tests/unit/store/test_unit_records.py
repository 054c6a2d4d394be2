"""Records of one kind in a unit of work: loaded, changed, kept or discarded."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.store.kinds.kind import Kind, nothing_written
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.read_set import NotLoaded
from counterfoil.store.unit_of_work.records import Missing, Records
from tests.store.records import work_item

THINGS: Kind[str, Any] = Kind(name="things", writes=nothing_written)


def records() -> Records[str, Any]:
    return Records(THINGS, [])


def test_what_was_not_loaded_is_asked_for_by_its_kind() -> None:
    with pytest.raises(NotLoaded) as missing:
        records().get("a")
    assert missing.value.wanted == {("things", "a")}


def test_what_does_not_exist_is_known_not_to() -> None:
    things = records()
    things.add("a", None)
    assert things.get("a") is None
    assert (things.peek("a"), list(things.values()), "a" in things) == (None, [], True)


def test_a_command_sees_what_it_changes_and_changes_have_it_once_it_is_kept() -> None:
    things, changes = records(), Changes()
    things.add("a", "old")
    things.put("a", "new")
    things.put("b", None)
    assert (things.get("a"), things.get("b"), changes.peek(THINGS)) == ("new", None, {})
    things.keep(changes)
    assert (things.get("a"), changes.peek(THINGS)) == ("new", {"a": "new", "b": None})
    things.discard()
    assert things.get("a") == "new", "what was kept is not undone"


def test_a_kind_is_noted_as_changed_once() -> None:
    changed: list[Records[Any, Any]] = []
    things, others = Records(THINGS, changed), Records(THINGS, changed)
    others.add("a", "loaded")
    assert changed == []
    things.put("a", "new")
    things.put("b", "new")
    assert changed == [things]


def test_what_is_discarded_is_as_it_was() -> None:
    things = records()
    things.add("loaded", "old")
    things.add("absent", None)
    for key in ("loaded", "absent", "unknown"):
        things.put(key, "new")
        things.put(key, "newer")
    things.discard()
    assert (things.get("loaded"), things.get("absent"), "unknown" in things) == ("old", None, False)


def test_what_is_known_is_not_loaded_over() -> None:
    things = records()
    things.add("a", "first")
    things.add("a", "second")
    assert things.get("a") == "first"


def test_only_what_did_not_exist_is_new() -> None:
    things, changes = records(), Changes()
    things.add("loaded", "old")
    things.add("absent", None)
    for key in ("loaded", "absent", "unknown"):
        things.put(key, "made")
    assert [things.is_new(key) for key in ("loaded", "absent", "unknown", "other")] == [False, True, True, False]
    things.keep(changes)
    things.put("unknown", "changed by the next command")
    things.keep(changes)
    assert changes.peek(THINGS).new == {"absent", "unknown"}


def test_a_draft_is_a_copy_and_the_same_one_for_the_whole_command() -> None:
    things, original = records(), work_item()
    things.add("work", original)
    draft = things.draft("work")
    draft.message = "changed"
    assert things.draft("work") is draft is things.get("work")
    things.discard()
    assert things.get("work") is original
    assert original.message is None


def test_a_draft_of_what_does_not_exist_is_a_bug() -> None:
    things = records()
    things.add("a", None)
    with pytest.raises(Missing, match="things a"):
        things.draft("a")
    with pytest.raises(NotLoaded):
        things.draft("b")
