"""Summary of the demo: expected and actual results of each step, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from counterfoil.cli.demo.scenarios import Scenario, answer_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from counterfoil.client import Flow


@dataclass(slots=True)
class Tally:
    """The results of one step's flows."""

    scenario: Scenario
    flows: int = 0
    as_expected: int = 0
    attempts: int = 0
    retries: int = 0
    statuses: Counter[str] = field(default_factory=Counter)

    def add(self, flow: Flow, number: int) -> None:
        """Count a flow; its outputs must be the correct ones, regardless of duplicate results."""
        work = [item for run in flow["steps"].values() for item in run["work"]]
        attempts = sum(item["attempt"] for item in work)
        outputs = answer_of(number) if self.scenario.expected == "completed" else {}
        right = flow["status"] == self.scenario.expected and flow["outputs"] == outputs
        enough = attempts > 1 or not self.scenario.retried
        self.flows += 1
        self.as_expected += right and enough
        self.attempts += attempts
        self.retries += attempts - sum(1 for item in work if item["attempt"])
        self.statuses[flow["status"]] += 1

    @property
    def good(self) -> bool:
        return self.as_expected == self.flows


@dataclass(slots=True)
class Summary:
    """The results of the whole demo; ``good`` decides its exit code."""

    tallies: Sequence[Tally]
    seconds: float
    refused: Counter[str]
    taken_twice: int
    findings: Sequence[str] = ()

    @property
    def good(self) -> bool:
        return all(tally.good for tally in self.tallies) and not self.taken_twice and not self.findings

    def show(self, console: Console) -> None:
        console.print("[bold]Counterfoil demo[/bold]: expected and actual results\n")
        console.print(self._table())
        console.print()
        for good, line in self._verdicts():
            console.print(f"[green]✓[/green] {line}" if good else f"[bold red]✗ {line}[/bold red]", soft_wrap=True)

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        table.add_column("", no_wrap=True)
        table.add_column("step", style="bold", no_wrap=True)
        table.add_column("worker behaviour", style="dim", no_wrap=True)
        table.add_column("expected", no_wrap=True)
        table.add_column("actual", no_wrap=True)
        for name in ("attempts", "retries", "refused"):
            table.add_column(name, justify="right", no_wrap=True)
        for tally in self.tallies:
            if not tally.flows:
                continue
            style = "green" if tally.good else "bold red"
            actual = ", ".join(f"{count} {status}" for status, count in sorted(tally.statuses.items()))
            table.add_row(
                f"[{style}]{'✓' if tally.good else '✗'}[/{style}]",
                tally.scenario.step_id,
                tally.scenario.story,
                f"{tally.flows} {tally.scenario.expected}",
                f"[{style}]{actual}[/{style}]",
                str(tally.attempts),
                _or_dot(tally.retries),
                _or_dot(self.refused[tally.scenario.step_id]),
            )
        return table

    def _verdicts(self) -> list[tuple[bool, str]]:
        flows = sum(tally.flows for tally in self.tallies)
        right = sum(tally.as_expected for tally in self.tallies)
        attempts = sum(tally.attempts for tally in self.tallies)
        retries = sum(tally.retries for tally in self.tallies)
        duplicates = self.refused.total()
        verdicts = [
            (right == flows, f"{right} of {flows} flows ended as expected, in {self.seconds:.1f} s"),
            (True, f"{attempts} attempts, {retries} of them retries"),
        ]
        if self.taken_twice:
            verdicts.append((False, f"{self.taken_twice} second results were accepted"))
        else:
            verdicts.append((True, f"{duplicates} duplicate or conflicting results refused, none changed an outcome"))
        verdicts.extend((False, f"doctor: {finding}") for finding in self.findings)
        if not self.findings:
            verdicts.append((True, "doctor: the live database is clean, every invariant holds"))
        return verdicts


def _or_dot(number: int) -> str:
    return str(number) if number else "[dim]·[/dim]"
