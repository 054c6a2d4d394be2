"""Pages of the documentation as tests read them: code blocks, each with the mark that says how it is proven.

A mark is a comment in the line above a block, ``<!-- mark -->`` or ``<!-- mark: more -->``:

    (none)              bash: run; toml: settings; everything else needs a mark
    fails               bash: run, and it ends with an error, as the page says
    background: TEXT    bash: run in a terminal of its own, ready when it has printed TEXT
    file: NAME          written to a file of this name, for the commands below it
    output              what the block above prints; ids, times and receipts may differ, ``...`` is anything
    model: NAME         JSON that this model takes
    metrics             names of metrics in it exist
    picture             a drawing, nothing to run
    not run: REASON     cannot be run here, and why

``<!-- runs beside: engine, by_hand -->`` anywhere in a page: what a reader of it has running already.
``<!-- needs: axonflow -->`` anywhere in a page: a package that its commands import and that may not be installed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [README, *DOCS]
MARKS = frozenset({"", "fails", "background", "file", "output", "model", "metrics", "picture", "not run"})

_COMMENT = re.compile(r"<!-- ([a-z ]+?)(?:: (.+))? -->")
_FENCE = re.compile(r"```(\w*)")
_BESIDE = re.compile(r"^<!-- runs beside: (.+) -->$", re.MULTILINE)
_NEEDS = re.compile(r"^<!-- needs: (.+) -->$", re.MULTILINE)

_VOLATILE = (
    (re.compile(r"\b[0-9a-f]{32}\.[A-Za-z0-9_-]{43}"), "RECEIPT"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "DIGEST"),
    (re.compile(r"(?:\b|(?<=[a-z]_))[0-9a-f]{32}\b"), "ID"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"), "TIME"),
    (re.compile(r"\b\d\d:\d\d:\d\d\.\d{3}\b"), "CLOCK"),
    (re.compile(r"\bcf_[A-Za-z0-9_-]{43}"), "SECRET"),
    (re.compile(r"\b(in )?[0-9.]+ [smhd]( [0-9]+ [smh])?\b"), "SPAN"),
    (re.compile(r" {2,}"), " "),  # columns are as wide as what is in them
)


@dataclass(frozen=True)
class Block:
    """One code block of a page."""

    page: Path
    line: int
    language: str
    text: str
    mark: str
    argument: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def runs(self) -> bool:
        return self.language == "bash" and self.mark in ("", "fails", "background")


def blocks_of(page: Path) -> Iterator[Block]:
    """Every code block of a page, in order."""
    lines = page.read_text("utf-8").splitlines()
    above = ""
    opened: tuple[int, str, str] | None = None
    inside: list[str] = []
    for number, line in enumerate(lines, start=1):
        fence = _FENCE.fullmatch(line)
        if opened is not None:
            if line == "```":
                comment = _COMMENT.fullmatch(opened[2])
                mark, argument = (comment[1], comment[2] or "") if comment else ("", "")
                yield Block(page, opened[0], opened[1], "\n".join(inside) + "\n", mark, argument)
                opened, inside = None, []
            else:
                inside.append(line)
        elif fence:
            opened = (number, fence[1], above)
        above = line
    assert opened is None, f"{page}: a code block is not closed"


def beside(page: Path) -> list[str]:
    """What must be running for the page's commands."""
    found = _BESIDE.search(page.read_text("utf-8"))
    return found[1].split(", ") if found else []


def needs(page: Path) -> list[str]:
    """Packages that the page's commands import."""
    found = _NEEDS.search(page.read_text("utf-8"))
    return found[1].split(", ") if found else []


def same_output(shown: str, printed: str) -> bool:
    """Whether a command printed what the page shows, apart from what is different every time."""
    try:
        wanted, got = json.loads(shown), json.loads(printed)
    except ValueError:
        wanted_lines = [_settled(line).rstrip() for line in shown.strip().splitlines()]
        pattern = "\n".join(r"(?s:.*?)" if line == "..." else re.escape(line) for line in wanted_lines)
        return (
            re.fullmatch(pattern, "\n".join(_settled(line).rstrip() for line in printed.strip().splitlines()))
            is not None
        )
    return _same_value(wanted, got)


def _same_value(wanted: Any, got: Any) -> bool:
    if isinstance(wanted, dict) and isinstance(got, dict):
        more = "..." in wanted
        names = set(wanted) - {"..."}
        return (names <= set(got) if more else names == set(got)) and all(
            _same_value(wanted[name], got[name]) for name in names
        )
    if isinstance(wanted, list) and isinstance(got, list):
        return len(wanted) == len(got) and all(map(_same_value, wanted, got))
    if isinstance(wanted, str) and isinstance(got, str):
        return _settled(wanted) == _settled(got)
    return bool(wanted == got) and type(wanted) is type(got)


def _settled(text: str) -> str:
    """The text with what is different every time replaced by its name."""
    for pattern, name in _VOLATILE:
        text = pattern.sub(name, text)
    return text
