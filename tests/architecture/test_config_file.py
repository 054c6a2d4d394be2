"""``config/counterfoil.toml`` is the reference of the settings: each with its default and its explanation."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from counterfoil.settings import Settings, describe_settings
from tests.architecture.source_tree import ROOT

FILE = ROOT / "config" / "counterfoil.toml"


def listed() -> dict[str, tuple[str, Any]]:
    """Setting -> (the comment above it, its value); None for one that stands there as a comment."""
    settings: dict[str, tuple[str, Any]] = {}
    table, above = "", ""
    for line in FILE.read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("# ")
        name, equals, value = text.partition(" = ")
        if line.startswith("["):
            table = line.strip("[]") + "."
        elif equals and name.isidentifier():
            default = None if text != line else tomllib.loads(f"value = {value}")["value"]
            assert f"{table}{name}" not in settings
            settings[f"{table}{name}"] = (above, default)
        above = text
    return settings


def described() -> dict[str, tuple[str, Any]]:
    return {
        item.name: (item.description, str(item.default) if isinstance(item.default, Path) else item.default)
        for item in describe_settings()
    }


def test_the_file_lists_every_setting_once_and_nothing_else_in_the_order_of_the_model() -> None:
    assert list(listed()) == list(described())


def test_each_setting_stands_there_with_its_default_under_its_description() -> None:
    assert listed() == described()


def test_every_description_is_one_sentence_in_one_line() -> None:
    assert not [name for name, (text, _) in described().items() if not text.endswith(".") or "\n" in text]


def test_the_file_as_it_stands_changes_nothing() -> None:
    assert Settings(**tomllib.loads(FILE.read_text(encoding="utf-8"))) == Settings()


def test_the_examples_in_comments_are_valid() -> None:
    text = FILE.read_text(encoding="utf-8")
    for name in ("heartbeat_timeout_ms", "parallelism", "rate_limit"):
        text = text.replace(f"# {name} =", f"{name} =")
    work = tomllib.loads(text)["work"]
    assert Settings(work=work).work.model_dump() == work
