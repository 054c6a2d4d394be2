"""Entry point: registers every command."""

from __future__ import annotations

import click

from counterfoil.cli.commands.approvals import approvals
from counterfoil.cli.commands.callbacks import callbacks
from counterfoil.cli.commands.doctor import doctor
from counterfoil.cli.commands.effects.reconciliations import reconcile
from counterfoil.cli.commands.effects.reservations import effects
from counterfoil.cli.commands.flows import flow
from counterfoil.cli.commands.gate.calls import gate
from counterfoil.cli.commands.gate.workflows import workflow
from counterfoil.cli.commands.hooks import hooks
from counterfoil.cli.commands.keys import keys
from counterfoil.cli.commands.plans import plan
from counterfoil.cli.commands.policies import policy
from counterfoil.cli.commands.schedules import schedule
from counterfoil.cli.commands.serve import serve
from counterfoil.cli.commands.steps import step
from counterfoil.cli.commands.store import store
from counterfoil.cli.commands.work import work
from counterfoil.cli.demo.command import demo
from counterfoil.cli.dev.command import dev
from counterfoil.version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="counterfoil", message="%(prog)s %(version)s")
def cli() -> None:
    """Async steps completed by webhook: one receipt, one outcome, despite retries, duplicates and late results.

    `counterfoil demo` runs a demonstration; `counterfoil serve` runs an engine. Client commands find the
    engine by --url or COUNTERFOIL_URL, and use the API key in --key or COUNTERFOIL_KEY.
    """


COMMANDS = (
    *(serve, demo, step, plan, flow, work, hooks, reconcile, effects, schedule),
    *(workflow, gate, approvals, policy, callbacks, dev, doctor, store, keys),
)

for command in COMMANDS:
    cli.add_command(command)


def main() -> None:
    """Run the command line: exit code 0 for success, 1 for a failure, 2 for a usage error."""
    cli(prog_name="counterfoil")
