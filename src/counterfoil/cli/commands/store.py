"""``counterfoil store``: migrate a database, or copy it to PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from counterfoil.cli.commands.serve import settings_from
from counterfoil.cli.output import CommandFailed, print_table, stdout_console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from counterfoil.settings import Settings
    from counterfoil.store.maintenance.copying import Fingerprint, Table, Watch
    from counterfoil.store.maintenance.migrating import Migrated

PASSES = 3
"""How often a copy processes every row: one copy, and one read on each side."""
SHOWN_DIGITS = 16


@click.group()
def store() -> None:
    """Migrate a database, or copy it to PostgreSQL."""


@store.command(short_help="Migrate a database to this program's schema version.")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="The engine's data directory.")
@click.option("--store", "url", help="Database URL: sqlite:///path or postgresql://...")
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="Settings file (TOML).")
def migrate(data: Path | None, url: str | None, config: Path | None) -> None:
    """Migrate a database to this program's schema version; a missing one is created.

    Stop all engines on this database first. Without --data or --store, the database of the settings is migrated.
    """
    if data is not None and url is not None:
        raise click.UsageError("give --data or --store, not both")
    from counterfoil.engine import system_clock
    from counterfoil.store.group_commit.commit import StoreFailure
    from counterfoil.store.maintenance.migrating import migrate_store

    # --data says which database is meant, so a store configured elsewhere must not win over it
    settings = settings_from(config, data=data, store="" if data is not None else url)
    try:
        done = asyncio.run(migrate_store(settings, system_clock()))
    except (StoreFailure, OSError) as error:
        raise CommandFailed(str(error)) from None
    click.echo(told(done))


def told(done: Migrated) -> str:
    """The result of a migration in one line."""
    if done.found == 0:
        return f"schema version {done.version}: created"
    if done.found == done.version:
        return f"schema version {done.version}: up to date"
    return f"migrated from schema version {done.found} to {done.version}"


@store.command(short_help="Copy a SQLite database to PostgreSQL.")
@click.argument("source")
@click.argument("target")
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of receipt.secret, if not that of the database.",
)
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="Settings file (TOML) of the engine.")
def copy(source: str, target: str, data: Path | None, config: Path | None) -> None:
    """Copy a SQLite database to PostgreSQL in one transaction.

    SOURCE is sqlite:///path or the data directory of a stopped engine; it is not changed. TARGET is
    postgresql://user@host/database and must be empty. Every table is read back and compared before the commit.
    Outstanding receipts stay valid.
    """
    from counterfoil.engine import system_clock
    from counterfoil.store.group_commit.commit import StoreFailure
    from counterfoil.store.maintenance.copying import open_source

    path = _source_path(source)
    _check_target(target)
    settings = settings_from(config)
    try:
        with open_source(path) as opened:
            from counterfoil.store.postgres.copying import copy as copy_to_postgres

            secret = _receipt_secret(path, data, settings)
            total = sum(table.rows for table in opened.tables)
            with _progress(total * PASSES) as watch:
                copied = asyncio.run(copy_to_postgres(opened, target, system_clock(), secret, watch))
    except (StoreFailure, OSError) as error:
        raise CommandFailed(str(error)) from None
    _tell(copied, configured=bool(settings.receipt_secret_list))


def _source_path(text: str) -> Path:
    """The database file, given by its URL, by a data directory, or by its path."""
    from counterfoil.settings import Settings

    url = "sqlite:///"
    if "://" in text and (not text.startswith(url) or text == url):
        raise click.BadParameter("must be sqlite:///path, or an engine's data directory", param_hint="SOURCE")
    path = Path(text.removeprefix(url))
    return Settings(data=path).store_path if path.is_dir() else path


def _check_target(text: str) -> None:
    """What is wrong with it is said without repeating it: there may be a password in it."""
    from urllib.parse import urlsplit

    from counterfoil.settings.values import is_postgres_url

    if not is_postgres_url(text):
        raise click.BadParameter("must be postgresql://user@host/database", param_hint="TARGET")
    if "@" in urlsplit(text)._replace(netloc="").geturl():
        raise click.BadParameter("a / ? # or @ in the password must be written as %2F %3F %23 %40", param_hint="TARGET")


def _receipt_secret(path: Path, data: Path | None, settings: Settings) -> str | None:
    """The secret that signed the outstanding receipts; None: it is only in the settings."""
    from counterfoil.store.maintenance.copying import kept_secret

    directories = [data] if data is not None else [path.parent]
    if data is None and not settings.is_shared and settings.store_path.resolve() == path.resolve():
        directories.append(settings.data)
    secret = kept_secret(directories)
    if secret is None and not settings.receipt_secret_list:
        raise CommandFailed(
            f"there is no receipt.secret in {directories[0]}, so outstanding receipts would become invalid: name its "
            "directory with --data, or the engine's settings, if they have receipt_secrets, with --config"
        )
    return secret


def _tell(copied: dict[str, Fingerprint], *, configured: bool) -> None:
    rows = [(name, f"{found.rows:,}", found.digest[:SHOWN_DIGITS]) for name, found in copied.items()]
    print_table(("TABLE", "ROWS", "DIGEST"), rows, empty="there was no table to copy")
    total = sum(found.rows for found in copied.values())
    click.echo(f"\ncopied and verified: {total:,} rows, the same on both sides")
    if configured:
        click.echo("receipts stay valid if the new nodes have the same receipt_secrets in their settings")
    else:
        click.echo("the receipt secret was copied too: outstanding receipts stay valid")
    click.echo("serve only the new database from now on: an engine on the old one does not see changes in the new one")


# ---------------------------------------------------------------------------------------------------- progress


@contextmanager
def _progress(steps: int) -> Iterator[Watch]:
    """A progress bar on a terminal, otherwise one line per table."""
    console = stdout_console()
    if not console.is_terminal:
        yield _Lines()
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bar(progress, progress.add_task("", total=steps))


class _Lines:
    def begins(self, stage: str, table: Table) -> None:
        click.echo(f"{stage} {table.name}: {table.rows:,} rows")

    def advanced(self, rows: int) -> None:
        pass


class _Bar:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def begins(self, stage: str, table: Table) -> None:
        self._progress.update(self._task, description=f"{stage} {table.name}")

    def advanced(self, rows: int) -> None:
        self._progress.advance(self._task, rows)
