"""``counterfoil doctor``: check the invariants of a database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from counterfoil.cli.commands.serve import settings_from
from counterfoil.cli.output import CommandFailed, print_json, stdout_console

if TYPE_CHECKING:
    from counterfoil.app import Finding

ADVICE = {
    "schema": "if the database is newer, use the counterfoil that wrote it; if older, run `counterfoil store migrate`",
    "file": "stop the engine and restore the file from a backup; the disk may be failing",
    "stuck_flow": "cancel it with `counterfoil flow cancel` and start it again",
    "not_completed": "cancel the flow with `counterfoil flow cancel` and start it again",
    "active": "cancel the flow with `counterfoil flow cancel` and start it again",
}
OTHER_ADVICE = "a bug in the engine: keep a copy of the database and report it with this line"


@click.command(short_help="Check the invariants of a database.")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="The engine's data directory.")
@click.option("--store", help="Database URL: sqlite:///path or postgresql://...")
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="Settings file (TOML).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(data: Path | None, store: str | None, config: Path | None, as_json: bool) -> None:
    """Check the invariants of a database, in use or not; exit code 1 if there are findings.

    The check is read-only. Without --data or --store, the database of the settings is checked.
    """
    if data is not None and store is not None:
        raise click.UsageError("give --data or --store, not both")
    from counterfoil.app import run_doctor
    from counterfoil.store.group_commit.commit import StoreFailure

    # --data says which database is meant, so a store configured elsewhere must not win over it
    settings = settings_from(config, data=data, store="" if data is not None else store)
    if not settings.is_shared and not settings.store_path.exists():
        raise CommandFailed(f"there is no database at {settings.store_path}; give the engine's directory with --data")
    try:
        findings = run_doctor(settings)
    except StoreFailure as error:
        raise CommandFailed(str(error)) from None
    if as_json:
        print_json({"clean": not findings, "findings": [_document(finding) for finding in findings]})
    else:
        _tell(findings)
    if findings:
        raise click.exceptions.Exit(1)


def _document(finding: Finding) -> dict[str, Any]:
    return {
        "invariant": finding.invariant,
        "subject": finding.subject,
        "message": finding.message,
        "advice": ADVICE.get(finding.invariant, OTHER_ADVICE),
    }


def _tell(findings: list[Finding]) -> None:
    from rich.text import Text

    console = stdout_console()
    for finding in findings:
        head = Text.assemble(("✗ ", "red"), (finding.invariant, "bold"), f"  {finding.subject}: {finding.message}")
        console.print(head, soft_wrap=True)
        console.print(Text(f"  → {ADVICE.get(finding.invariant, OTHER_ADVICE)}", style="dim"), soft_wrap=True)
    if findings:
        console.print("1 finding" if len(findings) == 1 else f"{len(findings)} findings")
    else:
        console.print("[green]✓[/green] the database is clean: every invariant holds")
