"""What both settle commands have in common: how an unknown outcome is settled."""

from __future__ import annotations

from typing import Literal

import click

Outcome = Literal["applied", "not_applied", "failed"]

CHOICES = ("--applied", "--not-applied", "--failed")


def chosen_outcome(
    *, applied: bool, not_applied: bool, failed: bool, success: str, result: str | None, error: str | None
) -> Outcome:
    """The one outcome that was chosen. ``success`` names the option of ``result``, which only --applied takes."""
    if applied + not_applied + failed != 1:
        raise click.UsageError(f"give one of {', '.join(CHOICES)}")
    if result is not None and not applied:
        raise click.UsageError(f"{success} needs --applied")
    if error is not None and not failed:
        raise click.UsageError("--error needs --failed")
    return "applied" if applied else "failed" if failed else "not_applied"


def print_choices(command: str) -> None:
    """Print the commands that settle what was just shown."""
    click.echo("\nfind out what happened, then settle it by one of these:", err=True)
    for choice in CHOICES:
        click.echo(f"  counterfoil {command} {choice}", err=True)
