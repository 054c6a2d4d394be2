"""The live display of the demo, built from the engine's event stream."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from counterfoil.cli.demo.scenarios import Scenario
from counterfoil.cli.events import event_note

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from counterfoil.client import Event

WORK_STATE_OF = {
    "work_created": "pending",
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
}
TOLD_EVENTS = frozenset(EVENT_STYLES) - {"step_completed", "step_failed"} | {"work_dispatched", "work_acknowledged"}
SHOWN_EVENTS = 10


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
            row.work[work_id] = WORK_STATE_OF[kind]
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

    def render(self, url: str, elapsed: float, refused: Counter[str]) -> RenderableType:
        """The board as a live display."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        title = Text.assemble(("Counterfoil demo", "bold"), "  engine at ", (url, "cyan"))
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(total=self.flows, completed=len(self.ended), width=40),
            f"{len(self.ended)} of {self.flows} flows ended",
            f"{self.attempts} attempts",
            f"{elapsed:.1f} s",
        )
        return Group(title, "", self._table(refused), "", bar, "", *(_event(event) for event in self.latest))

    def _table(self, refused: Counter[str]) -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0))
        table.add_column("step", style="bold", no_wrap=True)
        table.add_column("worker behaviour", style="dim", no_wrap=True)
        for name in ("flows", "active", "retry", "ok", "failed", "attempts", "refused"):
            table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
        table.add_column("last event", no_wrap=True, min_width=13)
        for scenario in self.scenarios:
            row = self.rows[scenario.step_id]
            states = Counter(row.work.values())
            table.add_row(
                scenario.step_id,
                scenario.story,
                _count(row.flows, ""),
                _count(states["active"] + states["pending"], "cyan"),
                _count(states["not_completed"], "yellow"),
                _count(states["succeeded"], "green"),
                _count(states["failed"], "red"),
                _count(row.attempts, ""),
                _count(refused[scenario.step_id], "magenta"),
                _styled(row.last),
            )
        return table


def _count(number: int, style: str) -> Text:
    from rich.text import Text

    return Text(str(number), style=style) if number else Text("·", style="dim")


def _styled(kind: str) -> Text:
    from rich.text import Text

    return Text(kind.removeprefix("work_"), style=EVENT_STYLES.get(kind, ""))


def _event(event: Event) -> Text:
    from rich.text import Text

    kind = event["type"]
    attempt = f"attempt {event['attempt']}" if event["attempt"] else ""
    line = Text.assemble(
        (f"{event['at'][11:23]}  ", "dim"),
        f"{event['flow_id']:<16} ",
        (f"{event['step_id'] or '':<11}", "bold"),
        (f"{kind:<19}", EVENT_STYLES.get(kind, "")),
        (f"{attempt:<10} ", ""),
        (event_note(event), "dim"),
    )
    line.no_wrap, line.overflow = True, "ellipsis"
    return line
