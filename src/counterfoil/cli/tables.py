"""Layout of tables and facts for a terminal: every word, and so every id, stays in one piece and can be copied.

Columns that do not fit beside each other go to a second line of their row, with their names. Text is wrapped between
words only; a word that is wider than the terminal is left to the terminal, which does not put a newline into it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

GAP = 2
READABLE = 24
"""A column of longer text is not made narrower than this."""

MOST = 10_000
"""The width of a line that is not wrapped."""


def table_lines(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], width: int | None) -> Iterator[Text]:
    """The lines of a table; without a width, every row is one line."""
    from rich.text import Text

    cells = [[_one_line(cell) for cell in row] for row in rows]
    heads = [Text(name, style="bold") for name in columns]
    widths = _widths([heads, *cells], MOST if width is None else width)
    shown = len(widths)
    yield from _row_lines(heads[:shown], widths)
    for row in cells:
        yield from _row_lines(row[:shown], widths)
        if width is not None:
            yield from _second_lines(columns[shown:], row[shown:], width)


def fact_lines(facts: Iterable[tuple[str, str | Text]], width: int | None) -> Iterator[Text]:
    """Names and values, a fact for each line; a long value continues below its beginning."""
    from rich.text import Text

    found = [(Text(name, style="dim"), _one_line(value)) for name, value in facts]
    column = max((name.cell_len for name, _ in found), default=0)
    room = MOST if width is None else max(width - column - GAP, READABLE)
    for name, value in found:
        yield from _row_lines([name, value], [column, room])


def wrapped_lines(text: Text, width: int | None, hang: int) -> Iterator[Text]:
    """A line that continues below its column ``hang``, if it is wider than the terminal."""
    if width is None or text.cell_len <= width:
        yield text
        return
    head, tail = text.divide([hang])
    yield from _row_lines([head, tail], [hang - GAP, max(width - hang, READABLE)])


def _widths(rows: Sequence[Sequence[Text]], width: int) -> list[int]:
    """The widths of the columns that fit beside each other, at least of the first one."""
    columns = list(zip(*rows, strict=True))
    natural = [max(cell.cell_len for cell in column) for column in columns]
    widths: list[int] = []
    for column, most in zip(columns, natural, strict=True):
        least = max(*map(_longest_word, column), min(most, READABLE))
        if widths and sum(widths) + len(widths) * GAP + least > width:
            break
        widths.append(least)
    free = width - sum(widths) - (len(widths) - 1) * GAP
    for number, most in enumerate(natural[: len(widths)]):
        more = max(0, min(most - widths[number], free))
        widths[number] += more
        free -= more
    return widths


def _row_lines(cells: Sequence[Text], widths: Sequence[int]) -> Iterator[Text]:
    from rich.text import Text

    wrapped = [_wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    for parts in zip_longest(*wrapped):
        line = Text()
        for part, width in zip(parts, widths, strict=True):
            cell = Text() if part is None else part
            line.append_text(cell)
            line.append(" " * (width - cell.cell_len + GAP))
        line.rstrip()
        yield line


def _second_lines(names: Sequence[str], cells: Sequence[Text], width: int) -> Iterator[Text]:
    """The other columns of a row, each with its name; those without a value are left out."""
    from rich.text import Text

    indent = " " * GAP
    line = Text(indent)
    for name, cell in zip(names, cells, strict=True):
        if not cell.cell_len:
            continue
        told = Text.assemble((f"{name.lower()} ", "dim"), cell)
        if line.cell_len > GAP and line.cell_len + told.cell_len > width:
            line.rstrip()
            yield line
            line = Text(indent)
        *full, last = _wrap(told, width - 2 * GAP)
        for part in full:
            yield line.append_text(part)
            line = Text(2 * indent)
        line.append_text(last).append(indent)
    if line.cell_len > GAP:
        line.rstrip()
        yield line


def _wrap(cell: Text, width: int) -> list[Text]:
    """Lines of at most the width, broken between words only."""
    breaks, begin = [], 0
    for word in re.finditer(r"\S+", cell.plain):
        if begin < word.start() and cell[begin : word.end()].cell_len > width:
            begin = word.start()
            breaks.append(begin)
    lines = list(cell.divide(breaks))
    for line in lines:
        line.rstrip()
    return lines


def _longest_word(cell: Text) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, cell.plain.split()), default=0)


def _one_line(cell: str | Text) -> Text:
    from rich.text import Text

    text = Text(cell) if isinstance(cell, str) else cell
    return Text(" ").join(text.split()) if "\n" in text.plain else text
