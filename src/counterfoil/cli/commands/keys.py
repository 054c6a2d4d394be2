"""``counterfoil keys``: generate API keys, and list the configured ones."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

import click

from counterfoil.cli.commands.serve import settings_from
from counterfoil.cli.output import print_json, print_table

ROLES = {
    "viewer": "reads everything",
    "operator": "reads, starts and cancels flows",
    "reviewer": "reads, approves and rejects",
    "admin": "does all of this, and registers steps",
}
SECRET_BYTES = 32

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@click.group()
def keys() -> None:
    """Generate API keys, and list the configured ones."""


@keys.command(short_help="Generate an API key with a strong secret.")
@click.option("--name", required=True, help="Name of the key's owner: letters, digits, dot, dash and underscore.")
@click.option("--role", required=True, type=click.Choice(list(ROLES)), help="What the key may do.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def new(name: str, role: str, as_json: bool) -> None:
    """Generate an API key with a strong secret and print its entry for COUNTERFOIL_API_KEYS.

    The secret is shown only once and is not stored.
    """
    if not _NAME.fullmatch(name):
        raise click.BadParameter(
            "must be at most 64 letters, digits, dots, dashes and underscores", param_hint="--name"
        )
    secret = f"cf_{secrets.token_urlsafe(SECRET_BYTES)}"  # a prefix that scanners for leaked secrets can find
    entry = f"{name}:{role}:{secret}"
    if as_json:
        print_json({"name": name, "role": role, "secret": secret, "entry": entry})
        return
    click.echo(entry)
    click.echo(
        f"\nThis key {ROLES[role]}. The secret is shown only once.\n"
        "\nOn the engine, add the line above to COUNTERFOIL_API_KEYS (entries are separated by commas) and restart it."
        "\nOn the client:\n"
        f"  export COUNTERFOIL_KEY={secret}\n"
        '  curl -H "Authorization: Bearer $COUNTERFOIL_KEY" http://127.0.0.1:8080/api/v1/flows',
        err=True,
    )


@keys.command("list")
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="Settings file (TOML).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_keys(config: Path | None, as_json: bool) -> None:
    """Show names and roles of the configured keys, never their secrets."""
    configured = [(key.name, key.role) for key in settings_from(config).keys]
    if as_json:
        print_json({"keys": [{"name": name, "role": role} for name, role in configured]})
        return
    rows = [(name, role, ROLES[role]) for name, role in configured]
    print_table(
        ("NAME", "ROLE", "WHAT IT DOES"), rows, empty="no key is configured: `counterfoil keys new` generates one"
    )
