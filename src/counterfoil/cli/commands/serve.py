"""``counterfoil serve``: run an engine."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from counterfoil.cli.output import CommandFailed

if TYPE_CHECKING:
    from counterfoil.settings import Settings


@click.command()
@click.option("--host", help="Address to listen on (default 127.0.0.1; a non-loopback address requires API keys).")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen on (default 8080; 0: any free port).")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Directory for database and secrets.")
@click.option("--store", help="sqlite:///path or postgresql://... (default: a SQLite file in the data directory).")
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="Settings file (TOML).")
@click.option(
    "--new-receipt-secret",
    is_flag=True,
    help="Start although the secret that signed receipts is missing; outstanding receipts become invalid.",
)
def serve(
    host: str | None,
    port: int | None,
    data: Path | None,
    store: str | None,
    config: Path | None,
    new_receipt_secret: bool,
) -> None:
    """Run the engine until SIGTERM or Ctrl-C.

    Settings come from these flags, then the environment (COUNTERFOIL_*), then the file, then defaults.
    """
    gc.disable()  # until the engine runs: what is loaded stays, and looking through it takes a tenth of the start
    from counterfoil.app import serve as serve_until_stopped

    settings = settings_from(config, host=host, port=port, data=data, store=store)
    raise click.exceptions.Exit(serve_until_stopped(settings, new_receipt_secret=new_receipt_secret))


def settings_from(config: Path | None, **flags: Any) -> Settings:
    """The settings of this process; an invalid one ends the command with a message that says what is allowed."""
    from counterfoil.settings import SettingsError, load_settings

    try:
        return load_settings(config, **flags)
    except SettingsError as error:
        raise CommandFailed("; ".join(error.faults)) from None
