"""Every code block of the documentation has a mark that says how it is proven; what needs no process is proven here."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter

from counterfoil.client import Receipt
from counterfoil.domain.effects.reconciling import Settlement
from counterfoil.domain.flows.ending import _cancel_call
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.records import Work
from counterfoil.domain.states import WorkStatus
from counterfoil.domain.steps.definitions import StepDefinition
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.settings import Settings
from counterfoil.wire.errors import ErrorAnswer
from counterfoil.wire.journal import JournalEvent
from tests.pages import MARKS, PAGES, ROOT, Block, beside, blocks_of, same_output

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
LANGUAGES = {
    "bash": {"", "fails", "background", "not run"},
    "text": {"output", "picture"},
    "json": {"output", "model", "file"},
    "python": {"file"},
    "toml": {""},
    "yaml": {"metrics"},
    "ini": {"not run"},
    "nginx": {"not run"},
    "mermaid": {"picture"},
    "ts": {"not run"},
}
"""Which marks prove a block of a language; anything else would be an example that is never tried."""


def cancellation(value: Any) -> None:
    work = Work("w", "f", "s", 0, "v", WorkStatus.ACTIVE, 1, "key", "s@host", 0)
    told = _cancel_call(work, "http://worker/cancel", 0, "the flow was cancelled").body
    assert value.keys() == told.keys()
    assert value["metadata"].keys() == told["metadata"].keys()


MODELS: dict[str, Callable[[Any], object]] = {
    "StepDefinition": StepDefinition.model_validate,
    "StartFlow": StartFlow.model_validate,
    "StepResult": StepResult.model_validate,
    "Heartbeat": Heartbeat.model_validate,
    "Settlement": Settlement.model_validate,
    "ErrorAnswer": TypeAdapter(ErrorAnswer).validate_python,
    "JournalEvent": TypeAdapter(JournalEvent).validate_python,
    "Dispatch": Receipt.from_request,
    "Cancellation": cancellation,
}


def chosen(**wanted: str) -> pytest.MarkDecorator:
    found = [block for block in BLOCKS if all(getattr(block, name) == value for name, value in wanted.items())]
    assert found, f"no block is {wanted}: is the documentation read at all?"
    return pytest.mark.parametrize("block", found, ids=lambda block: block.place)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_block_has_a_mark_that_proves_it(block: Block) -> None:
    assert block.mark in MARKS
    assert block.mark in LANGUAGES.get(block.language, set()), f"{block.language or 'no language'}: {block.mark!r}"
    if block.mark in ("not run", "background", "file", "model"):
        assert block.argument, f"{block.mark}: what, or why?"


@chosen(language="json", mark="model")
def test_an_example_of_a_document_is_one(block: Block) -> None:
    MODELS[block.argument](json.loads(block.text))


@chosen(language="toml")
def test_an_example_of_settings_is_valid(block: Block) -> None:
    Settings(**tomllib.loads(block.text))


@chosen(language="python")
def test_an_example_of_a_program_is_one(block: Block) -> None:
    compile(block.text, block.place, "exec")
    assert all(len(line) <= 100 for line in block.text.splitlines()), "lines of examples are short"


@chosen(language="bash")
def test_commands_can_be_parsed(block: Block) -> None:
    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)


def test_the_thirty_lines_of_the_tutorial_are_about_thirty() -> None:
    (worker,) = (block for block in BLOCKS if block.argument == "worker.py")
    assert len(worker.text.splitlines()) <= 30


def test_what_pages_need_beside_them_is_known() -> None:
    assert {name for page in PAGES for name in beside(page)} <= {"engine", "by_hand", "worker"}


def test_commands_in_the_readme_of_the_examples_name_files_that_exist() -> None:
    page = ROOT / "examples" / "README.md"
    words = {word for block in blocks_of(page) for line in block.text.splitlines() for word in line.split()}
    named = [word for word in words if word.startswith("examples/")]
    assert named
    assert all((ROOT / word).is_file() for word in named)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("201\n", "201\n", True),
        ("201\n", "200\n", False),
        ("one\n...\nfour\n", "one\ntwo\nthree\nfour\n", True),
        ("one\n...\nfour\n", "one\ntwo\nthree\n", False),
        ("at 2026-11-16T15:08:14.912Z", "at 2031-01-01T00:00:00.000Z", True),
        ("at 2026-11-16T15:08:14.912Z", "at noon", False),
        ("in 59 m 58 s  ago", "in 2 h ago", True),
        ('{"a": 1, "...": "..."}', '{"b": 2, "a": 1}', True),
        ('{"a": 1}', '{"b": 2, "a": 1}', False),
        ('{"a": 1}', '{"a": true}', False),
        ('{"a": null}', '{"a": "x"}', False),
        ('["01a1e4e6d2c0700297197792bc9322e1"]', '["ffffffffffffffffffffffffffffffff"]', True),
        ('["01a1e4e6d2c0700297197792bc9322e1"]', '["mine"]', False),
        ('{"a": {"b": [1]}}', '{"a": {"b": [1, 2]}}', False),
    ],
)
def test_what_is_shown_is_compared_with_what_is_printed(shown: str, printed: str, same: bool) -> None:
    assert same_output(shown, printed) is same
