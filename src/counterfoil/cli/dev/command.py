"""The group of commands for development."""

from __future__ import annotations

import click

from counterfoil.cli.dev.relay import relay
from counterfoil.cli.dev.send import send


@click.group(short_help="Complete steps by hand, and connect a worker behind NAT.")
def dev() -> None:
    """Complete steps by hand, and connect a worker that the engine cannot reach."""


dev.add_command(send)
dev.add_command(relay)
