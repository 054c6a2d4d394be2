"""The reference of the command line has every command, every option, and says which commands need an engine."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from counterfoil.cli.main import cli
from tests.pages import ROOT

PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^#{2,3} `(.+?)`\n(.*?)(?=^#{2,3} `|\Z)", PAGE, re.MULTILINE | re.DOTALL))


def commands(command: click.Command = cli, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that can be typed, groups included."""
    typed = (*path, str(command.name) if path else "counterfoil")
    yield " ".join(typed), command
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from commands(child, *typed)


TREE = dict(commands())


def test_the_page_has_every_command_and_no_other() -> None:
    assert list(SECTIONS) == list(TREE)
    assert len(TREE) > 40


@pytest.mark.parametrize("name", TREE)
def test_a_command_is_shown_with_its_options_and_commands(name: str) -> None:
    command, text = TREE[name], SECTIONS[name]
    options = [
        option for parameter in command.params if isinstance(parameter, click.Option) for option in parameter.opts
    ]
    children = list(command.commands) if isinstance(command, click.Group) else []
    assert all(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) for word in [*options, *children])
    first = (command.help or "").partition(".")[0]
    assert first
    assert " ".join(first.split()) in " ".join(text.split())


def test_the_commands_that_need_no_engine_are_named() -> None:
    """Each of them has no ``--url``."""
    introduction = PAGE.partition("work on this machine")[0]
    local = {
        name.split()[1]
        for name, command in TREE.items()
        if name != "counterfoil"
        and not isinstance(command, click.Group)
        and not any(parameter.name == "url" for parameter in command.params)
    }
    assert {name.removeprefix("counterfoil ") for name in re.findall(r"`([a-z ]+)`", introduction)} == local
