"""How tests run commands, and documents that an engine would answer with."""

from __future__ import annotations

import asyncio

from click.testing import CliRunner, Result

from counterfoil.cli.main import cli

AT = "2026-11-16T14:26:10.123Z"
WORK = {
    "work_id": "wk-1",
    "flow_id": "f-1",
    "step_id": "resize",
    "status": "not_completed",
    "attempt": 2,
    "next_attempt_at": AT,
    "deadline_at": None,
    "hold": None,
    "progress": None,
    "message": None,
    "outputs": None,
    "error": {"code": "ENDPOINT_UNAVAILABLE", "message": "the endpoint answered 503"},
    "created_at": AT,
    "recorded_at": None,
}
FLOW = {
    "flow_id": "f-1",
    "status": "active",
    "goals": ["resize"],
    "init": {"width": 640},
    "outputs": {},
    "error": None,
    "metadata": {},
    "labels": {"team": "a"},
    "created_at": AT,
    "finished_at": None,
    "pruned_at": None,
    "steps": {"resize": {"status": "active", "work": [WORK]}},
}


async def run(*arguments: str, stdin: str | None = None) -> Result:
    """Run a command beside the server: it has an event loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, cli, arguments, input=stdin)
