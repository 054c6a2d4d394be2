"""Output of the commands: tables for people, JSON for scripts, and errors as one line with advice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any

import click

from counterfoil.cli.tables import fact_lines, table_lines, wrapped_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from counterfoil.client import ApiError, ClientError

STATUS_STYLES = {
    "active": "cyan",
    "pending": "dim",
    "held": "magenta",
    "not_completed": "yellow",
    "compensating": "yellow",
    "succeeded": "green",
    "completed": "green",
    "failed": "red",
    "cancelled": "dim red",
    "skipped": "dim",
    "allow": "green",
    "require_approval": "magenta",
    "block": "red",
    "approved": "green",
    "rejected": "red",
    "expired": "yellow",
    "void": "dim",
    "in_progress": "cyan",
    "running": "cyan",
    "gated_not_completed": "yellow",
    "aborted": "dim red",
    "disabled": "dim",
    "deleted": "dim",
    "high": "yellow",
    "critical": "bold red",
}

ADVICE = {
    "UNKNOWN_STEP": "`counterfoil step list` lists the registered steps",
    "UNKNOWN_FLOW": "`counterfoil flow list` lists the flows",
    "UNKNOWN_WORK": "`counterfoil work list` lists the work items",
    "UNKNOWN_SCHEDULE": "`counterfoil schedule list` lists the schedules",
    "UNKNOWN_WORKFLOW": "`counterfoil workflow list` lists the workflows",
    "UNKNOWN_APPROVAL": "`counterfoil approvals list` lists the pending approvals",
    "UNKNOWN_POLICY": "`counterfoil policy list` lists the policies",
    "UNKNOWN_CALLBACK": "`counterfoil callbacks list` lists the callbacks that are kept",
    "UNREACHABLE_GOAL": "give the missing inputs with --init NAME=VALUE",
    "PLAN_CYCLE": "give one of the missing values with --init NAME=VALUE",
    "INVALID_INPUT": "correct the named fields and try again",
    "INVALID_STEP": "correct the named fields and put the step again",
    "UNSAFE_ONCE_REQUIRES_CONTROL": "add control.approval to the step, or first put a policy that names it",
    "INVALID_SCHEDULE": "correct the named fields and put the schedule again",
    "INVALID_POLICY": "correct the named fields and put the policy again",
    "WORKFLOW_TERMINAL": "`counterfoil workflow show` shows how it ended; a new run needs a new workflow",
    "IDEMPOTENCY_KEY_MISMATCH": "give the key of the first call: `counterfoil workflow show` shows it",
    "IDEMPOTENCY_KEY_IN_USE": "another workflow uses this key: look at that workflow",
    "STEP_INPUT_MISMATCH": "give the same --input, or --reevaluate",
    "STEP_IN_FLIGHT": "another agent is running it: wait until that agent reports or its claim expires",
    "APPROVAL_HOLD": "`counterfoil approvals list --status any` shows the reviews",
    "NOT_PENDING": "`counterfoil approvals show` shows how it was decided",
    "APPROVAL_EXPIRED": "the requester must ask again",
    "SAME_REVIEWER": "another reviewer must run this command, with their own API key",
    "SELF_APPROVAL": "another reviewer must run this command, with their own API key",
    "FLOW_EXISTS": "choose another --id, or look at the existing flow with `counterfoil flow show`",
    "FLOW_FINAL": "`counterfoil flow result` shows how it ended",
    "RUN_KEY_CONFLICT": "`counterfoil flow list --idempotency-key` shows its flows, --on-conflict says what else to do",
    "RUN_KEY_REUSED": "take another --idempotency-key, or repeat the start with the goals and inputs of its owner",
    "FLOW_NOT_FAILED": "`counterfoil flow list --status failed` lists the flows that can be redriven",
    "WORK_NOT_FAILED": "`counterfoil work list --status failed` lists the work that can be redriven",
    "NOT_WAITING_FOR_RECONCILIATION": "`counterfoil work show` shows what became of it",
    "UNAUTHENTICATED": "give the secret of an API key with --key or COUNTERFOIL_KEY",
    "FORBIDDEN": "use an API key with a role that allows this (`counterfoil keys new` generates one)",
    "PAYLOAD_TOO_LARGE": "send less, or raise max_body_bytes of the engine",
    "INTERNAL": "the cause is in the engine's log",
}


class CommandFailed(click.ClickException):
    """Ends a command with one line on stderr and exit code 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: {' '.join(self.message.split())}", file=file, err=file is None)


def failure(error: ClientError) -> CommandFailed:
    """A client error as one line: its code, its message and advice."""
    from counterfoil.client import ApiError

    return CommandFailed(_api_failure(error) if isinstance(error, ApiError) else str(error))


def _api_failure(error: ApiError) -> str:
    if error.code == "UNAVAILABLE":
        return f"{error}; try again in {error.retry_after or 1:g} s"
    advice = ADVICE.get(error.code)
    return f"{error}; {advice}" if advice else str(error)


def print_json(document: Any, *, indent: int | None = 2) -> None:
    click.echo(json.dumps(document, indent=indent, ensure_ascii=False))


def print_warnings(document: Mapping[str, Any]) -> None:
    """Print the warnings of a response to stderr."""
    for warning in document.get("warnings", ()):
        click.echo(f"warning: {warning['code']}: {warning['message']}", err=True)


def stdout_console() -> Console:
    """A console on stdout; without a terminal, lines are not wrapped."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=400)


def text_width() -> int:
    """The width of graphs: that of the terminal, or 80 columns without one."""
    console = stdout_console()
    return min(max(console.width, 40), 120) if console.is_terminal else 80


def is_narrow() -> bool:
    """Whether the terminal is too narrow for long texts beside ids."""
    console = stdout_console()
    return console.is_terminal and console.width < 120


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, empty: str) -> None:
    """Print a table; on a terminal it is as wide as the terminal, elsewhere every row is one line."""
    listed = list(rows)
    if not listed:
        click.echo(empty, err=True)
        return
    _print_lines(lambda width: table_lines(columns, listed, width))


def print_more(page: Mapping[str, Any]) -> None:
    """Print how to list the next page, if there is one."""
    if page["next_cursor"]:
        click.echo(f"more: --cursor {page['next_cursor']}", err=True)


def print_facts(facts: Iterable[tuple[str, str | Text | None]]) -> None:
    """Print names and values, one per line; None is left out."""
    known = [(name, value) for name, value in facts if value is not None]
    _print_lines(lambda width: fact_lines(known, width))


def print_value(name: str, value: Any) -> None:
    """Print a JSON value below its name, indented."""
    lines = json.dumps(value, indent=2, ensure_ascii=False).splitlines()
    click.echo("\n".join(["", name, *(f"  {line}" for line in lines)]))


def print_line(text: Text, *, hang: int) -> None:
    """Print a line; on a terminal its end is wrapped below the column ``hang``."""
    _print_lines(lambda width: wrapped_lines(text, width, hang))


def _print_lines(lines_for: Callable[[int | None], Iterable[Text]]) -> None:
    console = stdout_console()
    for line in lines_for(console.width if console.is_terminal else None):
        console.print(line, soft_wrap=True)


def status_text(status: str) -> Text:
    from rich.text import Text

    return Text(status, style=STATUS_STYLES.get(status, ""))


def compact(value: Any, limit: int = 120) -> str:
    """A JSON value on one line, truncated to the limit; empty for null and {}."""
    if value is None or value == {}:
        return ""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def error_text(error: Mapping[str, Any] | None) -> str:
    """The error of a work item or flow as text."""
    if not error:
        return ""
    return f"{error.get('code', 'ERROR')}: {error.get('message', '')}".rstrip(": ")


def when(moment: str | None, now: datetime | None = None) -> str:
    """A timestamp relative to now."""
    if not moment:
        return ""
    try:
        then = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    seconds = (then - (now or datetime.now(UTC))).total_seconds()
    return f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"


def span(seconds: float) -> str:
    """A duration in at most two units."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for unit, size, lower, lower_size in (("d", 86_400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // lower_size
            return f"{whole // size} {unit} {rest} {lower}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"
