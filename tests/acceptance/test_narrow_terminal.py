"""Tables of the commands in a terminal of 80 columns: nothing is cut off, and every id is in one piece."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from counterfoil.testing import Answer, StepEndpoint
from tests.acceptance.conftest import ClientOf
from tests.acceptance.processes import EngineProcess, environment
from tests.acceptance.screen import in_terminal
from tests.wire import Api

COLUMNS = 80
REASON = "the amount is larger than what an agent may transfer without the consent of a reviewer"

See = Callable[..., Awaitable[str]]

pytestmark = pytest.mark.sqlite_only


@pytest.fixture
async def api(engine: EngineProcess, client_of: ClientOf) -> Api:
    return client_of(engine)


@pytest.fixture
def see(engine: EngineProcess, tmp_path: Path) -> See:
    """Runs a command in a terminal of 80 columns; returns its screen, on which no line was broken by the terminal."""

    async def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "counterfoil", *arguments, "--url", engine.url]
        async with in_terminal(command, COLUMNS, environment(), tmp_path) as terminal:
            assert await terminal.ended() == 0
        assert terminal.screen.copied.strip() == terminal.text.strip()
        assert "…" not in terminal.text
        return terminal.text

    return run


async def test_flows_and_work(api: Api, see: See, endpoint: StepEndpoint) -> None:
    endpoint.answer("/gone", Answer(status=404))
    await api.put_step("translate-into-french", endpoint.url("/work"))
    await api.put_step("gone", endpoint.url("/gone"), name="a step whose endpoint has moved to another place")
    waiting, failed = await api.start("translate-into-french"), await api.start("gone")
    await api.until_acknowledged(waiting)
    await api.final(failed)
    work = [(await api.work(flow_id))["work_id"] for flow_id in (waiting, failed)]

    flows = await see("flow", "list")
    assert words(flows) >= {waiting, failed, "active", "failed", "translate-into-french", "ENDPOINT_REJECTED:", "404"}
    listed = await see("work", "list")
    assert words(listed) >= {*work, waiting, failed, "active", "failed", "translate-into-french", "deadline"}
    shown = await see("flow", "show", failed)
    assert words(shown) >= {failed, work[1], "ENDPOINT_REJECTED:", "404"}
    item = await see("work", "show", work[1])
    assert words(item) >= {failed, work[1], "ATTEMPT", "OUTCOME", "DELIVERY", "STARTED", "ENDPOINT_REJECTED:"}
    steps = await see("step", "list")
    assert words(steps) >= {"translate-into-french", endpoint.url("/work"), endpoint.url("/gone"), "moved", "place"}
    events = await see("flow", "events", failed)
    assert words(events) >= {"flow_started", "work_failed", "ENDPOINT_REJECTED:", "flow_failed"}


async def test_unknown_outcomes(api: Api, see: See, endpoint: StepEndpoint) -> None:
    endpoint.answer("/charge", Answer(status=500))
    endpoint.answer("/status", Answer(200, {"state": "unknown"}))
    effect = {"effect": {"policy": "reconcile"}, "status_url": endpoint.url("/status")}
    await api.put_step("charge-the-customer", endpoint.url("/charge"), kind="sync", **effect)
    flow_id = await api.start("charge-the-customer", init={"amount": 7})
    work_id = (await api.until_work(flow_id, "not_completed", hold="reconcile"))["work_id"]
    await endpoint.received("/status", 2)  # the first answer is recorded then

    listed = await see("reconcile", "list")
    assert words(listed) >= {work_id, "charge-the-customer", "ago", "server_error", "unknown,", "reconcile"}
    assert "counterfoil reconcile settle WORK --applied | --not-applied | --failed" in listed
    shown = await see("reconcile", "show", work_id)
    assert words(shown) >= {work_id, flow_id, "server_error:", endpoint.url("/status"), '"amount":', "--not-applied"}
    item = await see("work", "show", work_id)
    assert words(item) >= {work_id, "reconciliation", "delivered", "server_error", "OUTCOME_UNKNOWN:"}
    assert words(await see("work", "list")) >= {work_id, "reconciliation"}
    assert words(await see("flow", "show", flow_id)) >= {work_id, "reconcile", "show"}


async def test_workflows_and_approvals(api: Api, see: See) -> None:
    action = {"type": "require_approval", "reason": REASON}
    policy = {"name": "large transfers", "match": {"step_id": "transfer*"}, "action": action}
    (await api.request("PUT", "/api/v1/policies/large-transfers", json=policy)).ok(201)
    workflow_id = (await api.post("/api/v1/workflows", {"workflow_name": "payout"})).ok(201)["workflow_id"]
    asked = (await api.post(f"/api/v1/workflows/{workflow_id}/steps/transfer-to-vienna/gate", {})).ok()
    approval_id = asked["approval_id"]

    for command in (("approvals", "list"), ("approvals", "show", approval_id)):
        assert words(await see(*command)) >= {approval_id, "pending,", *REASON.split()}
    shown = await see("workflow", "show", workflow_id)
    assert words(shown) >= {workflow_id, "require_approval", f"{approval_id}:", *REASON.split()}
    assert words(await see("workflow", "list")) >= {workflow_id, "payout", "in_progress"}
    assert words(await see("policy", "show", "large-transfers", "--versions")) >= {"require_approval", "VERSION"}
    assert words(await see("work", "list")) >= {workflow_id, "held"}


def words(screen: str) -> set[str]:
    return set(screen.split())
