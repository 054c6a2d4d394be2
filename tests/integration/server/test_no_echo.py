"""No error repeats a value that a caller sent: it may be a secret in the wrong place."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.testing import StepEndpoint
from tests.integration.scenario import PATH, STEP
from tests.wire import Api

VALUE = "zebra-7f3a9c"
V1 = "/api/v1"
ACTION = {"type": "block", "reason": "no"}


def step(**changes: Any) -> Any:
    return {"endpoint": "http://worker.test/", **changes}


def policy(**changes: Any) -> Any:
    return {"name": "p", "action": ACTION, **changes}


def condition(**changes: Any) -> Any:
    return policy(conditions=[{"field": "step.gate_count", "operator": "equals", "value": 1, **changes}])


def schedule(**changes: Any) -> Any:
    return {"flow": {"goals": [STEP]}, **changes}


REQUESTS: list[tuple[str, str, Any]] = [
    *(("GET", f"{V1}/{kind}/{VALUE}", None) for kind in ("steps", "flows", "work", "schedules", "approvals")),
    *(("GET", f"{V1}/{kind}/{VALUE}", None) for kind in ("policies", "subscriptions", "workflows", VALUE)),
    *(("DELETE", f"{V1}/{kind}/{VALUE}", None) for kind in ("steps", "schedules", "policies", "subscriptions")),
    *(("GET", f"{V1}/flows/{VALUE}/{what}", None) for what in ("result", "events", "stream")),
    *(("POST", f"{V1}/flows/{VALUE}/{what}", {}) for what in ("cancel", "redrive")),
    *(("POST", f"{V1}/approvals/{VALUE}/{what}", {}) for what in ("approve", "reject")),
    *(("POST", f"{V1}/workflows/{VALUE}/{what}", {}) for what in ("complete", "fail", "abort", "resume")),
    *(("POST", f"{V1}/workflows/wf/steps/{VALUE}/{what}", {}) for what in ("gate", "complete", "approve", "reject")),
    *(("POST", f"{V1}/workflows/{{workflow}}/steps/{VALUE}/{what}", {}) for what in ("complete", "approve")),
    ("GET", f"{V1}/workflows/{{workflow}}/steps/{VALUE}", None),
    ("POST", f"{V1}/workflows/{{workflow}}/steps/{VALUE}/heartbeat", {"holder": VALUE, "lease_seconds": 5}),
    ("POST", f"{V1}/work/{VALUE}/redrive", {}),
    ("GET", f"{V1}/subscriptions/{VALUE}/deliveries", None),
    ("POST", f"/webhook/{VALUE}/{VALUE}/{VALUE}", {"success": True}),
    ("POST", f"/webhook/{VALUE}/{VALUE}/{VALUE}", {"success": VALUE}),
    ("POST", f"{V1}/flows", {"goals": [VALUE]}),
    ("POST", f"{V1}/flows", {"goals": [STEP], "flow_id": f"/{VALUE}"}),
    ("POST", f"{V1}/flows", {"goals": [STEP], "init": {"n": VALUE}}),
    ("POST", f"{V1}/flows", {"goals": [STEP], "labels": {"a": [VALUE]}, "on_conflict": VALUE}),
    ("POST", f"{V1}/plan", {"goals": [STEP, VALUE]}),
    *(("GET", f"{V1}/flows?{name}={VALUE}", None) for name in ("status", "label", "since", "cursor", "limit")),
    *(("GET", f"{V1}/work?{name}={VALUE}", None) for name in ("status", "overdue", "cursor", "limit")),
    ("GET", f"{V1}/approvals?status={VALUE}", None),
    ("GET", f"{V1}/workflows?status={VALUE}", None),
    ("PUT", f"{V1}/steps/-{VALUE}", step()),
    ("PUT", f"{V1}/steps/new", step(kind=VALUE)),
    ("PUT", f"{V1}/steps/new", step(endpoint=f"ftp://u:{VALUE}@worker.test/")),
    ("PUT", f"{V1}/steps/new", step(cancel_url=VALUE, status_url=VALUE, duplicate_status=VALUE)),
    ("PUT", f"{V1}/steps/new", step(attributes={"a": {"role": VALUE, "type": VALUE}})),
    ("PUT", f"{V1}/steps/new", step(attributes={"a": {"role": "const", "type": "number", "value": VALUE}})),
    ("PUT", f"{V1}/steps/new", step(work={"backoff_type": VALUE, "max_retries": VALUE})),
    ("PUT", f"{V1}/steps/new", step(control={"approval": {"severity": VALUE}})),
    ("PUT", f"{V1}/schedules/-{VALUE}", schedule(every_ms=60_000)),
    ("PUT", f"{V1}/schedules/new", schedule(cron=VALUE)),
    ("PUT", f"{V1}/schedules/new", schedule(cron="* * * * *", timezone=VALUE)),
    ("PUT", f"{V1}/schedules/new", schedule(every_ms=VALUE, catch_up=VALUE)),
    ("PUT", f"{V1}/policies/-{VALUE}", policy()),
    ("PUT", f"{V1}/policies/new", policy(action={"type": VALUE})),
    ("PUT", f"{V1}/policies/new", condition(field=VALUE)),
    ("PUT", f"{V1}/policies/new", condition(operator=VALUE)),
    ("PUT", f"{V1}/policies/new", condition(value=VALUE)),
    ("PUT", f"{V1}/policies/new", condition(field="step.id", operator="regex", value=f"({VALUE}")),
    ("PUT", f"{V1}/subscriptions/-{VALUE}", {"url": "http://chat.test/", "events": ["*"]}),
    ("PUT", f"{V1}/subscriptions/new", {"url": f"ftp://{VALUE}", "events": ["*"]}),
    ("PUT", f"{V1}/subscriptions/new", {"url": "http://chat.test/", "events": [VALUE]}),
    ("POST", f"{V1}/workflows", {"workflow_name": [VALUE], "total_steps": VALUE}),
    (VALUE.replace("-", "").upper(), f"{V1}/flows", None),
]


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS, ids=lambda part: str(part)[:60])
@pytest.mark.sqlite_only  # the store has no part in it
async def test_no_refusal_repeats_what_was_sent(
    api: Api, endpoint: StepEndpoint, method: str, path: str, body: Any
) -> None:
    number = {"n": {"role": "required", "type": "number"}}
    await api.put_step(STEP, endpoint.url(PATH), attributes=number)
    if "{workflow}" in path:
        made = (await api.post(f"{V1}/workflows", {"workflow_name": "w"})).ok(201)
        path = path.format(workflow=made["workflow_id"])
    reply = await api.request(method, path, json=body)
    assert 400 <= reply.status < 500, reply.content
    assert reply.code
    assert VALUE.encode() not in reply.content.lower()
    assert VALUE.encode() not in str(dict(reply.headers)).encode().lower()


@pytest.mark.parametrize("header", ["Content-Type", "Expect", "Authorization", "Origin", "Last-Event-ID", "Host"])
@pytest.mark.sqlite_only
async def test_no_refusal_repeats_a_header(api: Api, header: str) -> None:
    for method, path in (("POST", f"{V1}/flows"), ("GET", f"{V1}/stream?last_event_id={VALUE}")):
        reply = await api.request(method, path, data=b"{}", headers={header: VALUE})
        assert 400 <= reply.status < 500, reply.content
        assert VALUE.encode() not in reply.content
