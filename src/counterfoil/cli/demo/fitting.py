"""Tables of the demo that fit the terminal: the gaps become narrower first, then whole columns are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

GAPS = (2, 1)


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``left_out``: the order in which columns are left out; 0 is never left out.

    ``least``: a column with this width wraps its text; without it, a column is as wide as its longest cell.
    """

    name: str
    style: str = ""
    justify: Literal["left", "right"] = "left"
    left_out: int = 0
    least: int | None = None


def fitting_table(columns: Sequence[Column], rows: Iterable[Sequence[Text]], width: int) -> Table:
    """The table with every column that has room."""
    from rich.table import Table

    listed = list(rows)
    widths = [_width(column, [row[place] for row in listed]) for place, column in enumerate(columns)]
    shown, gap = _shown(columns, widths, width)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, gap, 0, 0))
    for place in shown:
        column = columns[place]
        table.add_column(
            column.name,
            style=column.style,
            justify=column.justify,
            no_wrap=column.least is None,
            min_width=widths[place],
        )
    for row in listed:
        table.add_row(*(row[place] for place in shown))
    return table


def _width(column: Column, cells: Iterable[Text]) -> int:
    return max(len(column.name), column.least or max((cell.cell_len for cell in cells), default=0))


def _shown(columns: Sequence[Column], widths: Sequence[int], width: int) -> tuple[list[int], int]:
    """The places of the columns that fit, and the gap between them."""
    shown = list(range(len(columns)))
    optional = sorted((place for place in shown if columns[place].left_out), key=lambda place: columns[place].left_out)
    while True:
        for gap in GAPS:
            if sum(widths[place] for place in shown) + gap * (len(shown) - 1) <= width:
                return shown, gap
        if not optional:
            return shown, GAPS[-1]
        shown.remove(optional.pop(0))
