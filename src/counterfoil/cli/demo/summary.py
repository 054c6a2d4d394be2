"""Summary of the demo: expected and actual results of each step, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from counterfoil.cli.demo.fitting import Column, fitting_table
from counterfoil.cli.demo.scenarios import CHARGE, Scenario, answer_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

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
class Charges:
    """The charges that the card provider has made, by flow, the approvals for them, and the deaths of their worker."""

    by_flow: Counter[str] = field(default_factory=Counter)
    approvals: int = 0
    deaths: int = 0

    def verdict(self, tally: Tally) -> tuple[bool, str]:
        """Whether each flow was charged exactly once, and how that came about."""
        wrong = [flow_id for flow_id, times in self.by_flow.items() if times != 1]
        if wrong or len(self.by_flow) != tally.flows:
            made = self.by_flow.total()
            return False, f"{tally.flows} cards were to be charged once, and {made} charges were made"
        sent = f"{tally.attempts} attempts, {self.approvals} approvals"
        return True, f"{tally.flows} cards charged once each; the worker died {self.deaths} times: {sent}"


@dataclass(slots=True)
class Summary:
    """The results of the whole demo; ``good`` decides its exit code."""

    tallies: Sequence[Tally]
    seconds: float
    refused: Counter[str]
    taken_twice: int
    findings: Sequence[str] = ()
    charges: Charges = field(default_factory=Charges)

    @property
    def good(self) -> bool:
        return all(good for good, _ in self._verdicts())

    def show(self, console: Console) -> None:
        console.print("[bold]Counterfoil demo[/bold]: expected and actual results\n")
        console.print(self._table(console.width))
        console.print()
        for good, line in self._verdicts():
            console.print(f"[green]✓[/green] {line}" if good else f"[bold red]✗ {line}[/bold red]", soft_wrap=True)

    def _table(self, width: int) -> Table:
        columns = [
            Column(""),
            Column("step", "bold"),
            Column("worker behaviour", "dim", left_out=2),
            Column("expected"),
            Column("actual", least=len("5 completed")),
            Column("attempts", justify="right"),
            Column("retries", justify="right", left_out=1),
            Column("refused", justify="right"),
        ]
        return fitting_table(columns, map(self._cells, filter(lambda tally: tally.flows, self.tallies)), width)

    def _cells(self, tally: Tally) -> list[Text]:
        from rich.text import Text

        style = "green" if tally.good else "bold red"
        actual = ", ".join(f"{count} {status}" for status, count in sorted(tally.statuses.items()))
        return [
            Text("✓" if tally.good else "✗", style),
            Text(tally.scenario.step_id),
            Text(tally.scenario.story),
            Text(f"{tally.flows} {tally.scenario.expected}"),
            Text(actual, style),
            Text(str(tally.attempts)),
            _count(tally.retries),
            _count(self.refused[tally.scenario.step_id]),
        ]

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
        verdicts += [self.charges.verdict(tally) for tally in self.tallies if tally.scenario is CHARGE and tally.flows]
        verdicts.extend((False, f"doctor: {finding}") for finding in self.findings)
        if not self.findings:
            verdicts.append((True, "doctor: the live database is clean, every invariant holds"))
        return verdicts


def _count(number: int) -> Text:
    from rich.text import Text

    return Text(str(number)) if number else Text("·", "dim")
