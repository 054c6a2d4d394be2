"""Records of one kind in a batch: loaded, drafted, kept or dropped."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.store.unit_of_work.read_set import NotLoaded
from counterfoil.store.unit_of_work.shelf import Shelf


def test_what_was_not_loaded_is_asked_for_by_its_kind() -> None:
    with pytest.raises(NotLoaded) as missing:
        Shelf[str]("things", set()).get("a")
    assert missing.value.wanted == {("things", "a")}


def test_what_does_not_exist_is_known_not_to() -> None:
    shelf = Shelf[str]("things", set())
    shelf.add("a", None)
    assert shelf.get("a") is None


class Noted:
    """What a batch notes of each kind."""

    def __init__(self) -> None:
        self.things: dict[str, str | None] = {}

    def note(self, kind: str, records: dict[str, str | None]) -> None:
        assert kind == "things"
        self.things.update(records)


def test_a_command_sees_its_own_drafts_and_others_see_them_when_they_are_kept() -> None:
    shelf, changes = Shelf[str]("things", set()), Noted()
    shelf.add("a", "old")
    shelf.put("a", "new")
    shelf.put("b", None)
    assert (shelf.get("a"), shelf.get("b"), changes.things) == ("new", None, {})
    shelf.keep(changes)
    shelf.drafts = {}
    assert (shelf.get("a"), changes.things) == ("new", {"a": "new", "b": None})


def test_a_shelf_is_touched_once_something_is_put_on_it() -> None:
    touched: set[Shelf[Any]] = set()
    shelf, other = Shelf[str]("things", touched), Shelf[str]("others", touched)
    other.add("a", "loaded")
    assert touched == set()
    shelf.put("a", "new")
    assert touched == {shelf}


def test_drafts_that_are_dropped_leave_nothing() -> None:
    shelf = Shelf[str]("things", set())
    shelf.add("a", "old")
    shelf.put("a", "new")
    shelf.drafts = {}
    assert shelf.get("a") == "old"


def test_what_the_batch_knows_is_not_loaded_over() -> None:
    shelf = Shelf[str]("things", set())
    shelf.add("a", "first")
    shelf.add("a", "second")
    assert shelf.get("a") == "first"
