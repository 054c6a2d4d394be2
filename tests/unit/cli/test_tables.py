from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from counterfoil.cli.tables import fact_lines, table_lines, wrapped_lines

ID = "01a1edfeb618729699865c8eabc9acfa"
COLUMNS = ("WORK", "STEP", "STATUS", "ATTEMPT", "WAITS FOR", "FLOW")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    return [line.plain for line in table_lines(columns, rows, width)]


def test_a_table_that_fits_has_a_line_for_each_row() -> None:
    assert table(("FLOW", "RESULT"), [("hello", "done"), ("a", "")], 80) == ["FLOW   RESULT", "hello  done", "a"]


def test_columns_that_do_not_fit_go_to_a_second_line() -> None:
    row = (ID, "translate", "active", "1", "deadline in 59 m 58 s", ID[::-1])
    assert table(COLUMNS, [row], 80) == [
        "WORK                              STEP       STATUS  ATTEMPT",
        f"{ID}  translate  active  1",
        f"  waits for deadline in 59 m 58 s  flow {ID[::-1]}",
    ]


def test_a_second_line_is_only_for_values() -> None:
    rows = [(ID, ID, ""), (ID, ID, "long text " * 8)]
    lines = table(("A", "B", "RESULT"), rows, 80)
    assert [line.split()[0] for line in lines] == ["A", ID, ID, "result", "long"]


def test_text_is_wrapped_in_its_column_where_there_is_room() -> None:
    assert table(("STEP", "NOTE"), [("pay", "waits for the approval of a reviewer")], 30) == [
        "STEP  NOTE",
        "pay   waits for the approval",
        "      of a reviewer",
    ]


def test_a_word_that_is_wider_than_the_terminal_is_left_to_the_terminal() -> None:
    assert table(("FLOW", "STATUS"), [("f" * 100, "active")], 40) == ["FLOW", "f" * 100, "  status active"]
    assert [line.plain for line in fact_lines([("flow", "f" * 100)], 40)] == [f"flow  {'f' * 100}"]


def test_without_a_terminal_a_row_is_one_line() -> None:
    assert table(("FLOW", "RESULT"), [("f" * 300, "one\ntwo " * 100)], None)[1].count("one two") == 100


def test_facts_go_on_below_their_beginning() -> None:
    lines = fact_lines([("status", Text("failed", "red")), ("error", "the endpoint answered 404")], 32)
    assert [line.plain for line in lines] == ["status  failed", "error   the endpoint answered", "        404"]


def test_a_line_goes_on_below_its_column() -> None:
    line = Text("12:00:00.000  work_failed  the endpoint answered 404")
    assert [part.plain for part in wrapped_lines(line, 51, hang=27)] == [
        "12:00:00.000  work_failed  the endpoint answered",
        "                           404",
    ]
    assert [part.plain for part in wrapped_lines(line, None, hang=27)] == [line.plain]


WORDS = st.text("abc✓é", max_size=40)
CELLS = st.lists(WORDS, max_size=6).map(" ".join)


@given(st.lists(st.tuples(WORDS, CELLS, CELLS, WORDS), min_size=1, max_size=4), st.integers(20, 120))
def test_no_width_loses_or_breaks_a_word(rows: list[tuple[str, ...]], width: int) -> None:
    lines = table(("A", "B", "C", "D"), rows, width)
    shown = " ".join(lines).split()
    for row in rows:
        assert {word for cell in row for word in cell.split()} <= set(shown)
    longest = max((len(word) for word in shown), default=0)
    assert max(map(len, lines)) <= max(width, longest + 4)
