"""The live display of the demo, built from the engine's event stream."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from counterfoil.cli.demo.fitting import Column, fitting_table
from counterfoil.cli.demo.reviewing import is_held
from counterfoil.cli.demo.scenarios import Scenario
from counterfoil.cli.events import event_note

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from counterfoil.client import Event

WORK_STATE_OF = {
    "work_created": "pending",
    "work_held": "held",
    "work_cleared": "pending",
    "work_dispatched": "active",
    "work_not_completed": "not_completed",
    "work_succeeded": "succeeded",
    "work_failed": "failed",
    "work_cancelled": "failed",
}
FLOW_ENDS = frozenset({"flow_completed", "flow_failed", "flow_cancelled"})
EVENT_STYLES = {
    "work_succeeded": "green",
    "flow_completed": "green",
    "step_completed": "green",
    "work_failed": "red",
    "flow_failed": "red",
    "step_failed": "red",
    "work_not_completed": "yellow",
    "work_heartbeat": "blue",
    "work_held": "magenta",
    "approval_approved": "magenta",
    "work_reconciled": "magenta",
}
TOLD_EVENTS = frozenset(EVENT_STYLES) - {"step_completed", "step_failed"} | {"work_dispatched", "work_acknowledged"}
HELD = "held"
SHOWN_EVENTS = 10
WIDE = 100
NARROW_NOTE = 20
"""What an event line of 80 columns has room for, beside time, flow, step, event and attempt."""

OTHER_LINES = 7
"""Title, heads of the table, progress bar, empty lines, and the line of the cursor."""


@dataclass(slots=True)
class Row:
    """One step on the board."""

    flows: int = 0
    attempts: int = 0
    last: str = ""
    work: dict[str, str] = field(default_factory=dict)


class Board:
    """The totals of all events so far, by step. Only ``see`` changes it."""

    def __init__(self, scenarios: Sequence[Scenario], flows: int) -> None:
        self.scenarios = scenarios
        self.flows = flows
        self.rows = {scenario.step_id: Row() for scenario in scenarios}
        self.ended: set[str] = set()
        self.latest: deque[Event] = deque(maxlen=SHOWN_EVENTS)
        self.held: dict[str, Event] = {}
        """The events since which items wait for a person, by work item."""

    def see(self, event: Event) -> None:
        """Count one event of a flow of this demo."""
        kind, work_id = event["type"], event["work_id"]
        if kind in TOLD_EVENTS:
            self.latest.append(event)
        if kind in FLOW_ENDS:
            self.ended.add(event["flow_id"])
        row = self.rows.get(event["step_id"] or "")
        if row is None:
            return
        if kind == "step_started":
            row.flows += 1
        if kind == "work_dispatched":
            row.attempts += 1
        if work_id and kind in WORK_STATE_OF:
            row.work[work_id] = HELD if is_held(event) else WORK_STATE_OF[kind]
            self.held.pop(work_id, None)
            if is_held(event):
                self.held[work_id] = event
        if work_id:
            row.last = kind

    @property
    def done(self) -> bool:
        return len(self.ended) >= self.flows

    @property
    def attempts(self) -> int:
        return sum(row.attempts for row in self.rows.values())

    def progress_line(self, elapsed: float, refused: Counter[str]) -> str:
        """The totals in one line, for output without a terminal."""
        started = sum(row.flows for row in self.rows.values())
        return (
            f"{elapsed:5.1f} s  {started} of {self.flows} flows started, {len(self.ended)} ended, "
            f"{self.attempts} attempts, {refused.total()} duplicates refused"
        )

    def render(self, url: str, elapsed: float, refused: Counter[str], width: int, height: int) -> RenderableType:
        """The board as a live display that fits the terminal."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        title = Text.assemble(("Counterfoil demo", "bold"), "  engine at ", (url, "cyan"))
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(total=self.flows, completed=len(self.ended), width=min(40, width // 3)),
            f"{len(self.ended)} of {self.flows} flows ended",
            f"{self.attempts} attempts",
            f"{elapsed:.1f} s",
        )
        above = len(self.scenarios) + OTHER_LINES
        shown = self.shown_events(max(1, height - above))
        return Group(title, "", self._table(refused, width), "", bar, "", *(_event(event, width) for event in shown))

    def shown_events(self, room: int) -> list[Event]:
        """The latest events that have room; an event since which an item is held stays as long as the item is."""
        held = list(self.held.values())[:room]
        others = [event for event in self.latest if event not in held]
        kept = others[len(others) - min(len(others), room - len(held)) :]
        return sorted([*held, *kept], key=lambda event: event["seq"])

    def _table(self, refused: Counter[str], width: int) -> Table:
        columns = [
            Column("step", "bold"),
            Column("worker behaviour", "dim", left_out=2),
            *(Column(name, justify="right") for name in ("flows", "open", "held", "retry", "ok", "failed", "sent")),
            Column("refused", justify="right"),
            Column("last event", left_out=1),
        ]
        return fitting_table(columns, map(partial(self._cells, refused), self.scenarios), width)

    def _cells(self, refused: Counter[str], scenario: Scenario) -> list[Text]:
        from rich.text import Text

        row = self.rows[scenario.step_id]
        states = Counter(row.work.values())
        return [
            Text(scenario.step_id),
            Text(scenario.story),
            _count(row.flows, ""),
            _count(states["active"] + states["pending"], "cyan"),
            _count(states["held"], "magenta"),
            _count(states["not_completed"], "yellow"),
            _count(states["succeeded"], "green"),
            _count(states["failed"], "red"),
            _count(row.attempts, ""),
            _count(refused[scenario.step_id], "magenta"),
            _styled(row.last),
        ]


def _count(number: int, style: str) -> Text:
    from rich.text import Text

    return Text(str(number), style=style) if number else Text("·", style="dim")


def _styled(kind: str) -> Text:
    from rich.text import Text

    return Text(_named(kind), style=EVENT_STYLES.get(kind, ""))


def _named(kind: str) -> str:
    return kind.removeprefix("work_").removeprefix("approval_")


def _short(event: Event, note: str) -> str:
    """What a narrow line says of an event: why its outcome is unknown, the code of its error, or a short note."""
    data = event["data"] or {}
    error = data.get("error")
    if data.get("hold") and data.get("cause"):
        return str(data["cause"])
    return error["code"] if error else note if len(note) <= NARROW_NOTE else ""


def _event(event: Event, width: int) -> Text:
    """One event on one line; on a narrow terminal without milliseconds, and with the code of an error only."""
    from rich.text import Text

    wide = width >= WIDE
    kind = event["type"]
    attempt, note = f"attempt {event['attempt']}" if event["attempt"] else "", event_note(event)
    if not wide:
        note = _short(event, note)
    line = Text.assemble(
        (event["at"][11 : 23 if wide else 19], "dim"),
        f" {event['flow_id']:<14} ",
        (f"{event['step_id'] or '':<10} ", "bold"),
        (f"{_named(kind):<14} ", EVENT_STYLES.get(kind, "")),
        f"{attempt:<9} ",
        (note, "dim"),
    )
    line.no_wrap, line.overflow = True, "ellipsis"
    return line
