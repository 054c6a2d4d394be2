"""Records of one kind in a batch: loaded, drafted, kept or dropped."""

from __future__ import annotations

import pytest

from counterfoil.store.needs import NotLoaded
from counterfoil.store.shelf import Shelf


def test_what_was_not_loaded_is_asked_for_by_its_kind() -> None:
    with pytest.raises(NotLoaded) as missing:
        Shelf[str]("things").get("a")
    assert missing.value.wanted == {("things", "a")}


def test_what_does_not_exist_is_known_not_to() -> None:
    shelf = Shelf[str]("things")
    shelf.add("a", None)
    assert shelf.get("a") is None


def test_a_command_sees_its_own_drafts_and_others_see_them_when_they_are_kept() -> None:
    shelf, changes = Shelf[str]("things"), dict[str, str | None]()
    shelf.add("a", "old")
    shelf.put("a", "new")
    shelf.put("b", None)
    assert (shelf.get("a"), shelf.get("b"), changes) == ("new", None, {})
    shelf.keep(changes)
    shelf.drafts = {}
    assert (shelf.get("a"), changes) == ("new", {"a": "new", "b": None})


def test_drafts_that_are_dropped_leave_nothing() -> None:
    shelf = Shelf[str]("things")
    shelf.add("a", "old")
    shelf.put("a", "new")
    shelf.drafts = {}
    assert shelf.get("a") == "old"


def test_what_the_batch_knows_is_not_loaded_over() -> None:
    shelf = Shelf[str]("things")
    shelf.add("a", "first")
    shelf.add("a", "second")
    assert shelf.get("a") == "first"
