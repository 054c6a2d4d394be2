"""Compares the quotations of a test with the document that the test walks through.

The documents stand beside the checkout; where they do not, there is nothing to compare with, and the test is skipped.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

DOCUMENTS = Path(__file__).parents[2] / "shared" / "seeds"


def words(text: str) -> str:
    return " ".join(text.split())


def document(number: str) -> str:
    """The text of a document, by the number that its file name begins with."""
    files = sorted(DOCUMENTS.glob(f"{number}_*.txt"))
    if not files:
        pytest.skip("the documents are not here")
    return files[0].read_text(encoding="utf-8")


def quotations(paths: Iterable[Path]) -> list[str]:
    """Each run of lines that begin with ``>``, of the docstrings of all functions in these files."""
    return [quotation for path in paths for quotation in _quoted_in(path)]


def _quoted_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
            text = "\n".join(line.strip() for line in (ast.get_docstring(node) or "").splitlines())
            for run in re.findall(r"(?:^>.*\n?)+", text, re.MULTILINE):
                yield words(re.sub(r"^> ?", "", run, flags=re.MULTILINE))


def not_in(text: str, quoted: Iterable[str]) -> list[str]:
    """Quotations that the document does not have to the letter."""
    whole = words(text)
    return [quotation for quotation in quoted if quotation not in whole]


def left_out(text: str, quoted: Iterable[str], apart: tuple[str, ...]) -> list[str]:
    """Lines of the document that are not quoted, and that do not begin as one of ``apart``.

    A line counts as quoted when most of it is: links in the middle of a sentence are left out.
    """
    longest_first = sorted(quoted, key=len, reverse=True)
    lines = filter(None, map(words, text.splitlines()))
    return [line for line in lines if not line.startswith(apart) and not _is_quoted(line, longest_first)]


def statements(text: str) -> Iterator[str]:
    """The sentences of a document, and the comments of its programs, each in one line; never a line of a program."""
    for line in text.splitlines():
        if re.match(r"(\s*• )?[A-Z]", line):
            yield from re.split(r"(?<=[.?:])\s+(?=[A-Z])", line.strip())
        elif re.match(r"\s*//", line):
            yield line.strip()


def _is_quoted(line: str, longest_first: list[str]) -> bool:
    rest = line
    for quotation in longest_first:
        if line in quotation:
            return True
        rest = rest.replace(quotation, "")
    return len(rest) <= max(len(line) // 2, 3)
