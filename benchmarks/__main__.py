"""``make bench``: run the measures and print each ratio beside its target.

Measure with nothing else running. Absolute figures are not printed: they would describe the machine, not the engine.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks import before, clients, contracts, effects, gates, measures, nodes, reservations, shapes
from benchmarks.load import stand_back
from benchmarks.measures import QUICK, Outcome, Size

MODULES = (measures, effects, reservations, contracts, gates, nodes, shapes, clients)
MEASURES = {name: measure for module in MODULES for name, measure in module.MEASURES.items()}


async def _run(names: list[str], size: Size, console: Console, checkout: Path | None) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for name in names:
        with console.status(f"measuring {name}"):
            found = await (MEASURES[name](size) if checkout is None else before.compare(name, size, checkout))
        for outcome in found:
            rounds = ", ".join(f"{ratio:.2f}" for ratio in outcome.rounds)
            console.print(f"{outcome.name}: {outcome.ratio:.2f}{f' ({rounds})' if rounds else ''}", highlight=False)
        outcomes += found
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench ARGS=", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*MEASURES, []], help="which measures; all by default")
    parser.add_argument(
        "--before",
        type=Path,
        metavar="DIR",
        help=f"measure over the engine of this checkout: {', '.join(before.MEASURES)}",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    arguments = parser.parse_args()
    console = Console()
    stand_back()
    size = QUICK if arguments.quick else Size()
    known = MEASURES if arguments.before is None else before.MEASURES
    names = arguments.names or list(known)
    if not set(names) <= set(known):
        parser.error(f"over another checkout, only these are measured: {', '.join(known)}")
    outcomes = uvloop.run(_run(names, size, console, arguments.before))
    table = Table("measure", "ratio", "target", "reached")
    for outcome in outcomes:
        sign = "at least" if outcome.at_least else "at most"
        reached = "yes" if outcome.reached else "no"
        target = ("", "") if outcome.target is None else (f"{sign} {outcome.target}", reached)
        table.add_row(outcome.name, f"{outcome.ratio:.2f}", *target)
    console.print(table)
    return 1 if arguments.check and not all(outcome.reached for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
