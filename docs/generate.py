"""Generates parts of the reference from the code, so that they cannot become outdated.

A generated part of a page lies between two comments, ``<!-- generated: NAME -->`` and ``<!-- end -->``; everything
around it is written by hand.

    python docs/generate.py            regenerate every part
    python docs/generate.py --check    change nothing; exit code 1 if a part is stale
"""  # noqa: INP001 - a script beside the pages, not a package

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import click

from counterfoil.cli.main import cli
from counterfoil.domain.callbacks.accept import SignatureRule
from counterfoil.domain.callbacks.presets import PRESETS
from counterfoil.domain.errors import BadRequest, CounterfoilError, Forbidden, Unauthenticated, Unavailable, error_types
from counterfoil.domain.states import (
    APPROVAL_MOVES,
    FINAL_FLOWS,
    FINAL_STEPS,
    FINAL_WORK,
    FLOW_MOVES,
    REDRIVEN_FLOWS,
    REDRIVEN_STEPS,
    STEP_MOVES,
    WORK_MOVES,
    ApprovalStatus,
    FlowStatus,
    StepStatus,
    WorkStatus,
)
from counterfoil.domain.subscriptions.definitions import NAMES
from counterfoil.domain.work.replies import ReplyCode
from counterfoil.engine import Engine
from counterfoil.observability.metrics import Metrics
from counterfoil.server.app import api_routes
from counterfoil.server.auth import READERS
from counterfoil.server.openapi import TAGS
from counterfoil.server.problems import status_of
from counterfoil.server.routes import Route
from counterfoil.settings import describe_settings

HERE = Path(__file__).resolve().parent
PART = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->\n)", re.DOTALL)

WORK_WHEN: dict[tuple[WorkStatus, WorkStatus], str] = {
    (
        WorkStatus.PENDING,
        WorkStatus.ACTIVE,
    ): "claimed for its first attempt, started as a sub-flow, or granted to an agent",
    (WorkStatus.PENDING, WorkStatus.HELD): "an approval is required before its first attempt",
    (
        WorkStatus.PENDING,
        WorkStatus.NOT_COMPLETED,
    ): "an item with the same key was cancelled after it was sent: whether it had an effect is unknown",
    (
        WorkStatus.PENDING,
        WorkStatus.SUCCEEDED,
    ): "it takes the result of an item with the same key; or approved, and its agent reports it without a gate call",
    (
        WorkStatus.PENDING,
        WorkStatus.FAILED,
    ): "a policy blocks it, its control was removed, or it takes the failure of an item with the same key",
    (WorkStatus.PENDING, WorkStatus.CANCELLED): "its predicate is false, or it is no longer needed",
    (WorkStatus.HELD, WorkStatus.PENDING): "approved",
    (WorkStatus.HELD, WorkStatus.SUCCEEDED): "a late success of an earlier attempt: the approval becomes void",
    (WorkStatus.HELD, WorkStatus.FAILED): "rejected, expired, or a late failure",
    (WorkStatus.HELD, WorkStatus.CANCELLED): "no longer needed: the approval becomes void",
    (WorkStatus.ACTIVE, WorkStatus.SUCCEEDED): "a success was reported",
    (WorkStatus.ACTIVE, WorkStatus.FAILED): "a failure was reported, or no retry is left",
    (
        WorkStatus.ACTIVE,
        WorkStatus.NOT_COMPLETED,
    ): "reported as not completed, not delivered, unknown outcome, or a deadline passed",
    (WorkStatus.ACTIVE, WorkStatus.CANCELLED): "no longer needed: the flow or the step has ended",
    (
        WorkStatus.NOT_COMPLETED,
        WorkStatus.ACTIVE,
    ): "claimed for its next attempt when it is due, granted again, or its worker has the attempt after all",
    (
        WorkStatus.NOT_COMPLETED,
        WorkStatus.HELD,
    ): "an approval is required before the retry, or before an `unsafe_once` item is sent again",
    (
        WorkStatus.NOT_COMPLETED,
        WorkStatus.SUCCEEDED,
    ): "a late success of an earlier attempt, found by `status_url`, or settled as applied",
    (
        WorkStatus.NOT_COMPLETED,
        WorkStatus.FAILED,
    ): "a late failure of an earlier attempt, settled as failed, no retry is left, or a policy blocks the retry",
    (WorkStatus.NOT_COMPLETED, WorkStatus.CANCELLED): "no longer needed, as above",
}
STEP_WHEN: dict[tuple[StepStatus, StepStatus], str] = {
    (StepStatus.PENDING, StepStatus.ACTIVE): "its inputs are available, and its predicate is true",
    (
        StepStatus.PENDING,
        StepStatus.SKIPPED,
    ): "its predicate is false, or an input cannot be produced, without a failure",
    (
        StepStatus.PENDING,
        StepStatus.CANCELLED,
    ): "an input cannot be produced because a step failed, or the flow has ended",
    (StepStatus.ACTIVE, StepStatus.COMPLETED): "all its work has ended, and none failed (or failures are collected)",
    (StepStatus.ACTIVE, StepStatus.FAILED): "a work item failed, or its inputs or predicate are not valid",
    (StepStatus.ACTIVE, StepStatus.CANCELLED): "the flow has ended, or enough other steps have completed",
    (StepStatus.COMPLETED, StepStatus.PENDING): "redriven after it was compensated",
    (StepStatus.FAILED, StepStatus.PENDING): "redriven",
    (StepStatus.CANCELLED, StepStatus.PENDING): "redriven",
}
FLOW_WHEN: dict[tuple[FlowStatus, FlowStatus], str] = {
    (FlowStatus.ACTIVE, FlowStatus.COMPLETED): "every step has ended, and no goal failed",
    (
        FlowStatus.ACTIVE,
        FlowStatus.FAILED,
    ): "a goal failed, or the deadline has passed, and there is nothing to compensate",
    (FlowStatus.ACTIVE, FlowStatus.CANCELLED): "cancelled by a caller, or by its deadline",
    (FlowStatus.ACTIVE, FlowStatus.COMPENSATING): "it fails, or is cancelled, and steps must be compensated first",
    (FlowStatus.COMPENSATING, FlowStatus.FAILED): "compensation has ended",
    (FlowStatus.COMPENSATING, FlowStatus.CANCELLED): "compensation has ended, or was cancelled too",
    (FlowStatus.FAILED, FlowStatus.ACTIVE): "redriven",
    (FlowStatus.CANCELLED, FlowStatus.ACTIVE): "it is a sub-flow, and the outer flow was redriven",
}
APPROVAL_WHEN: dict[tuple[ApprovalStatus, ApprovalStatus], str] = {
    (ApprovalStatus.PENDING, ApprovalStatus.APPROVED): "the last required approval was given",
    (ApprovalStatus.PENDING, ApprovalStatus.REJECTED): "a reviewer rejected it",
    (ApprovalStatus.PENDING, ApprovalStatus.EXPIRED): "its deadline has passed",
    (ApprovalStatus.PENDING, ApprovalStatus.VOID): "the work item has ended without it",
}
REPLY_WHEN: dict[ReplyCode, str] = {
    ReplyCode.ENDPOINT_UNAVAILABLE: "the endpoint answered 408, 425, 429 or 5xx",
    ReplyCode.ENDPOINT_REJECTED: "the endpoint answered another 4xx",
    ReplyCode.ENDPOINT_REDIRECT: "the endpoint answered 3xx; redirects are not followed",
    ReplyCode.INVALID_RESPONSE: "a sync step answered 2xx with a body that is not a StepResult",
    ReplyCode.INVALID_ENDPOINT: "the endpoint's URL cannot be called at all",
    ReplyCode.EGRESS_DENIED: "the egress rules forbid the endpoint's address",
    ReplyCode.NOT_DELIVERED: "the request certainly did not arrive: connection refused, no such host",
    ReplyCode.NOT_SENT: "this machine lacked descriptors, memory, ports or threads; it does not count as an attempt",
    ReplyCode.UNKNOWN_OUTCOME: "the request was sent, and no complete response arrived",
}
COMMON_ERRORS: frozenset[type[CounterfoilError]] = frozenset({BadRequest, Forbidden, Unauthenticated, Unavailable})


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; what would end a cell or begin a tag is escaped."""
    names = list(head)
    lines = [names, ["---"] * len(names), *(list(row) for row in rows)]
    return "".join(f"| {' | '.join(_escaped(cell) for cell in line)} |\n" for line in lines)


def _escaped(cell: str) -> str:
    parts = cell.replace("|", "&#124;").split("`")
    return "`".join(part if place % 2 else part.replace("<", "&lt;") for place, part in enumerate(parts))


def states(
    moves: Mapping[Any, frozenset[Any]], final: frozenset[Any], when: Mapping[tuple[Any, Any], str], start: StrEnum
) -> str:
    """The picture and the table of one state machine; KeyError for a move without an explanation."""
    pairs = [(before, after) for before, afters in moves.items() for after in moves if after in afters]
    if set(pairs) != set(when):
        raise KeyError(f"explained, but no move: {set(when) - set(pairs)}; not explained: {set(pairs) - set(when)}")
    lines = [f"    {before} --> {after}" for before, after in pairs]
    lines += [f"    {status} --> [*]" for status in moves if status in final and f" {status}" in " ".join(lines)]
    picture = "\n".join(
        ["<!-- picture -->", "```mermaid", "stateDiagram-v2", f"    [*] --> {start}", *lines, "```", "", ""]
    )
    return picture + table(
        ("from", "to", "when"), ((f"`{before}`", f"`{after}`", when[before, after]) for before, after in pairs)
    )


def work_states() -> str:
    return states(WORK_MOVES, FINAL_WORK, WORK_WHEN, WorkStatus.PENDING)


def step_states() -> str:
    again = frozenset({StepStatus.PENDING})
    moves = {before: after | again if before in REDRIVEN_STEPS else after for before, after in STEP_MOVES.items()}
    return states(moves, FINAL_STEPS, STEP_WHEN, StepStatus.PENDING)


def flow_states() -> str:
    again = frozenset({FlowStatus.ACTIVE})
    moves = {before: after | again if before in REDRIVEN_FLOWS else after for before, after in FLOW_MOVES.items()}
    return states(moves, FINAL_FLOWS, FLOW_WHEN, FlowStatus.ACTIVE)


def approval_states() -> str:
    final = frozenset(ApprovalStatus) - {ApprovalStatus.PENDING}
    return states(APPROVAL_MOVES, final, APPROVAL_WHEN, ApprovalStatus.PENDING)


def errors() -> str:
    found = sorted(error_types(), key=lambda error: (status_of(error), error.code))
    rows = ((str(status_of(error)), f"`{error.code}`", error.default_message) for error in found)
    return table(("status", "code", "message"), rows)


def replies() -> str:
    return table(("code", "when"), ((f"`{code}`", REPLY_WHEN[code]) for code in ReplyCode))


def settings() -> str:
    rows = (
        (f"`{item.name}`", f"`{_toml(item.default)}`", f"`{item.variable}`", item.description)
        for item in describe_settings()
    )
    return table(("setting", "default", "environment variable", "what it is"), rows)


def presets() -> str:
    """Each preset as the fields that it stands for."""
    fields = [field for field in SignatureRule.model_fields if any(field in preset for preset in PRESETS.values())]
    rows = ((f"`{field}`", *(_code(preset.get(field)) for preset in PRESETS.values())) for field in fields)
    return table(("field", *(f"`{name}`" for name in PRESETS)), rows)


def _code(value: Any) -> str:
    return "" if value is None else f"`{value}`"


def _toml(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, int | list) else f'"{value}"'


def metrics() -> str:
    """Names, kinds and labels, read off the exposition; what the library adds (``_created``) is left out."""
    text = _used_metrics().render()[0].decode()
    helps = dict(re.findall(r"^# HELP (counterfoil_\w+) (.+)$", text, re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (counterfoil_\w+) (\w+)$", text, re.MULTILINE))
    samples = dict(re.findall(r"^(counterfoil_\w+)\{(.+?)\} ", text, re.MULTILINE))
    labels = {name: re.findall(r"(\w+)=", samples.get(name, "")) for name in helps}
    return table(
        ("metric", "kind", "labels", "what it is"),
        (
            (f"`{name}`", kinds[name], ", ".join(f"`{label}`" for label in labels[name]), about)
            for name, about in helps.items()
            if not name.endswith("_created")
        ),
    )


def _used_metrics() -> Metrics:
    """A label shows only on what was counted once."""
    used = Metrics()
    used.dispatched("acknowledged")
    used.swept("requeue", 0)
    used.cancel_called("delivered")
    used.set_oldest_waiting({"step": 0.0})
    return used


def command_line() -> str:
    """The help of every command, as it prints it."""
    return "".join(_help(cli, ["counterfoil"], None))


def _help(command: click.Command, path: list[str], parent: click.Context | None) -> Iterator[str]:
    context = command.make_context(
        path[-1], [], parent=parent, resilient_parsing=True, terminal_width=100, max_content_width=100
    )
    name = " ".join(path)
    text = command.get_help(context)
    yield f"{'#' * min(len(path) + 1, 3)} `{name}`\n\n<!-- picture -->\n```text\n{text}\n```\n\n"
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from _help(child, [*path, str(child.name)], context)


def routes() -> str:
    """Every route of the OpenAPI document, by tag; KeyError for a tag without an explanation."""
    found = api_routes(cast(Engine, None))
    if untold := {route.tag for route in found} - TAGS.keys():
        raise KeyError(f"routes that no heading would show: {untold}")
    parts = []
    for tag, about in TAGS.items():
        members = [route for route in found if route.tag == tag]
        parts += [f"## {tag.capitalize()}\n\n{about}\n\n", *(_route(route) for route in members)]
    return "".join(parts)


def _route(route: Route) -> str:
    lines = [f"### `{route.method} {route.path}`\n", f"{route.summary}. {route.description}".strip() + "\n"]
    lines.append(f"Role: {_roles(route)}.{_body(route)}\n")
    headers = [(f"`{header.name}`", "header", header.description) for header in route.headers]
    parameters = [*_query_rows(route), *headers]
    if parameters:
        lines.append(table(("parameter", "in", "what it is"), parameters))
    by_status = {str(status): answer.description for status, answer in route.answers.items()}
    if route.other_success is not None:
        by_status["2XX"] = route.other_success.description
    for error in sorted(route.errors, key=lambda each: each.code):
        if error not in COMMON_ERRORS:
            status = str(status_of(error))
            by_status[status] = f"{by_status[status]}, `{error.code}`" if status in by_status else f"`{error.code}`"
    lines.append(table(("status", "when"), ((status, by_status[status]) for status in sorted(by_status))))
    return "\n".join(lines) + "\n"


def _roles(route: Route) -> str:
    if route.bare:
        return "none; the receipt is the credential"
    roles = "any" if route.roles == READERS else ", ".join(sorted(route.roles or {"none is needed"}))
    return roles + ("; no key is needed from the same machine" if route.open_on_loopback else "")


def _body(route: Route) -> str:
    if route.request is None:
        return ""
    return f" Body: `{route.request.__name__}`{' (optional)' if route.request_optional else ''}."


def _query_rows(route: Route) -> Iterator[tuple[str, str, str]]:
    for name, field in route.query.model_fields.items() if route.query is not None else ():
        default = f"; default {_toml(field.default)}" if field.default is not None else ""
        yield f"`{name}`", "query", f"{field.description or ''}{default}"


def notification_events() -> str:
    """What can be subscribed to, by what it is about."""
    about: dict[str, list[str]] = {}
    for name in sorted(NAMES):
        about.setdefault(name.partition(".")[0], []).append(f"`{name}`")
    return "\n".join(f"- {', '.join(names)}" for names in about.values())


PARTS: dict[str, Callable[[], str]] = {
    "work-states": work_states,
    "step-states": step_states,
    "flow-states": flow_states,
    "approval-states": approval_states,
    "errors": errors,
    "replies": replies,
    "settings": settings,
    "presets": presets,
    "metrics": metrics,
    "command-line": command_line,
    "routes": routes,
    "notification-events": notification_events,
}


def renewed(page: str) -> str:
    """The page with every generated part regenerated."""
    return PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]().strip()}\n\n{part[3]}", page)


def main(arguments: list[str]) -> int:
    stale = [page for page in sorted(HERE.rglob("*.md")) if renewed(page.read_text("utf-8")) != page.read_text("utf-8")]
    for page in stale:
        if "--check" in arguments:
            sys.stderr.write(f"{page.relative_to(HERE.parent)} is stale: run python docs/generate.py\n")
        else:
            page.write_text(renewed(page.read_text("utf-8")), "utf-8")
            sys.stdout.write(f"renewed {page.relative_to(HERE.parent)}\n")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
