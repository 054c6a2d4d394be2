"""Names that the documentation uses are names that the code knows: codes, variables, metrics, routes, commands."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import cast

import click
import pytest

from counterfoil.cli.main import cli
from counterfoil.contracts.errors import OWN_CODES
from counterfoil.domain.effects.policies import Cause
from counterfoil.domain.errors import error_types
from counterfoil.domain.journal.events import EventType
from counterfoil.domain.work.replies import ReplyCode
from counterfoil.engine import Engine
from counterfoil.engine.wakeups import SweepName
from counterfoil.observability.metrics import Metrics
from counterfoil.server.app import api_routes
from counterfoil.settings import CLIENT_VARIABLES, ROLES, describe_settings
from counterfoil.transport.exhaustion import DESCRIPTORS, MEMORY, PORTS, THREADS
from tests.pages import PAGES, ROOT

SOURCE = ROOT / "src" / "counterfoil"
REFERENCE = ROOT / "docs" / "reference"
_CODE = re.compile(r"[A-Z][A-Z0-9]*(?:_+[A-Z0-9]+)+")
_INLINE = re.compile(r"`([^`\n]+)`")


def constants(path: Path) -> set[str]:
    """Every text in a module that looks like an error code."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in texts if re.fullmatch(r"[A-Z_]{4,}", text)}


def first_cells(page: Path, heading: str) -> list[str]:
    """What the first column of the table under a heading names in backticks."""
    text = page.read_text("utf-8")
    part = text[text.index(heading) :]
    rows = re.findall(r"^\|(.+?)\|", part, re.MULTILINE)
    return [name for row in rows for name in _INLINE.findall(row)]


WORK_CODES = {
    code
    for name in (
        "domain/work/decisions.py",
        "domain/effects/clearing.py",
        "domain/effects/probing.py",
        "domain/flows/running.py",
        "domain/hooks/completing.py",
        "domain/hooks/ownership.py",
        "domain/gate/decisions.py",
        "domain/gate/completion.py",
        "domain/policies/guarding.py",
        "domain/approvals/decisions.py",
        "domain/gate/workflows.py",
        "engine/work/expire.py",
        "engine/flows/clocks.py",
    )
    for code in constants(SOURCE / name) - {"CHILD_"} - {str(code) for code in ReplyCode}
} | {"CHILD_FAILED", "CHILD_CANCELLED"}  # these two are made from the state of the flow inside
ARGUMENTS = {
    argument.human_readable_name
    for command in cli.commands.values()
    for child in (command.commands.values() if isinstance(command, click.Group) else [command])
    for argument in child.params
    if isinstance(argument, click.Argument)
}
API_CODES = {error.code for error in error_types()}
VARIABLES = {item.variable for item in describe_settings()} | CLIENT_VARIABLES | {"COUNTERFOIL_CONFIG"}
WORKERS = [ROOT / "examples" / name for name in ("worker.ts", "worker.go", "worker.sh")]
WORKER_VARIABLES = set.intersection(*(set(_CODE.findall(path.read_text("utf-8"))) for path in WORKERS))
"""Those that the example workers of all languages read."""
OF_OTHERS = {"AXONFLOW_TELEMETRY", "TOOL_CALL"}
"""Names of the axonflow client, in its how-to."""
OF_EXAMPLES = {"CARD_EXPIRED", "PAYMENTS_PORT", "PAYMENTS_URL", "RATE_LIMITED", "SHOP_PORT"}
"""Error codes and variables of tools that the pages about tool contracts write."""
ROUTES = [re.sub(r"\{\w+\}", "[^/]+", route.path) for route in api_routes(cast(Engine, None))]
METRICS = set(re.findall(r"^# TYPE (counterfoil_\w+) ", Metrics().render()[0].decode(), re.MULTILINE))

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@every_page
def test_codes_and_variables_exist(page: Path) -> None:
    known = API_CODES | WORK_CODES | {str(code) for code in ReplyCode} | VARIABLES | {"WEBHOOK_BASE_URL"}
    known |= WORKER_VARIABLES | OF_OTHERS | OF_EXAMPLES | OWN_CODES
    used = {name for name in _CODE.findall(page.read_text("utf-8")) if not name.startswith("COUNTERFOIL_SECRET")}
    assert used - known <= ARGUMENTS, "these are arguments of commands, all else must exist"


@every_page
def test_metrics_exist(page: Path) -> None:
    assert set(re.findall(r"\bcounterfoil_\w+", page.read_text("utf-8"))) <= METRICS


@every_page
def test_routes_exist(page: Path) -> None:
    text = re.sub(r":9000/\S*", "", page.read_text("utf-8"))  # the worker's own paths
    for path in set(re.findall(r"/(?:api/v1|webhook)/[\w{}/.:~-]*[\w}]", text)):
        assert any(re.fullmatch(route, path) for route in ROUTES), path


@every_page
def test_commands_exist(page: Path) -> None:
    for line in re.findall(r"(?:^|`|\$\()counterfoil ([a-z]+(?: [a-z]+)?)\b", page.read_text("utf-8"), re.MULTILINE):
        name, _, child = line.partition(" ")
        command = cli.commands.get(name)
        assert command is not None, line
        if isinstance(command, click.Group) and child:
            assert child in command.commands, line


def test_the_reference_of_errors_has_the_codes_of_work() -> None:
    listed = first_cells(REFERENCE / "errors.md", "Codes from reports, deadlines")
    assert set(listed) == WORK_CODES
    assert len(listed) == len(WORK_CODES)


def test_the_reference_of_errors_has_every_cause_of_an_unknown_outcome() -> None:
    text = (REFERENCE / "errors.md").read_text("utf-8")
    assert set(re.findall(r"^- `(\w+)`: ", text, re.MULTILINE)) == {str(cause) for cause in Cause}


def test_the_reference_of_the_journal_has_every_event() -> None:
    listed = first_cells(REFERENCE / "journal.md", "| type | what happened")
    assert set(listed) == {str(kind) for kind in EventType}
    assert len(listed) == len(EventType)


def test_the_architecture_page_has_every_sweep() -> None:
    listed = first_cells(REFERENCE.parent / "explanation" / "architecture.md", "| sweep | finds")
    assert sorted(listed) == sorted(SweepName)


def test_the_reference_of_metrics_has_every_sweep() -> None:
    text = (REFERENCE / "metrics.md").read_text("utf-8")
    assert all(f"`{name}`" in text for name in SweepName)


def test_the_page_for_operators_has_every_invariant_of_the_doctor() -> None:
    found: set[str] = set()
    for path in (SOURCE / "store").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                assert isinstance(node.args[0], ast.Constant)
                found.add(str(node.args[0].value))
    assert set(first_cells(ROOT / "docs" / "how-to" / "operate.md", "| invariant |")) == found


def test_the_page_on_deployment_has_every_role() -> None:
    text = (ROOT / "docs" / "how-to" / "deploy.md").read_text("utf-8")
    part = text[text.index("| role | may |") : text.index("The webhook needs no key")]
    assert tuple(_INLINE.findall(part)) == ROLES


def test_what_readiness_can_name_is_documented() -> None:
    """``error.details.failed`` of ``/readyz``."""
    calls = [
        node
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Unavailable"
    ]
    named = {
        keyword.value.value
        for call in calls
        for keyword in call.keywords
        if keyword.arg == "failed" and isinstance(keyword.value, ast.Constant)
    }
    resources = {lack.replace(" ", "_") for lack in (DESCRIPTORS, MEMORY, PORTS, THREADS)}
    assert {"store", "sweeps"} <= named
    health = (
        (ROOT / "docs" / "how-to" / "operate.md").read_text("utf-8").partition("## Health")[2].partition("\n## ")[0]
    )
    assert {str(name) for name in named | resources} <= set(_INLINE.findall(health))
