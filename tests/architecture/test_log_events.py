"""Log events have names: one word of small letters and underscores, with fields beside it, and no prose."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source_tree import ROOT

SOURCE = ROOT / "src" / "counterfoil"
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def events_of(path: Path) -> Iterator[tuple[int, str, set[str]]]:
    """The line, the event and the names of the fields of each log call with a literal event."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        logger = node.func.value
        if not isinstance(logger, ast.Name) or logger.id not in ("log", "_log"):
            continue
        texts = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        assert node.func.attr in LEVELS | {"log"}, (path, node.lineno)
        if texts:
            yield node.lineno, texts[0], {keyword.arg for keyword in node.keywords if keyword.arg is not None}


MODULES = sorted(path for path in SOURCE.rglob("*.py") if list(events_of(path)))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_events_are_names_and_fields(path: Path) -> None:
    for line, event, fields in events_of(path):
        assert NAME.fullmatch(event), (line, event)
        assert "note" not in fields, f"line {line}: what there is to say of {event} belongs into the reference"


def test_there_are_events() -> None:
    assert len(MODULES) > 10
