"""Approvals that cannot be given: the answer and the log warn when they are asked for, and everything else goes on."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.running import Connect, StartNode
from tests.wire import Api

SECRET = "secret-0123456789"
ENDPOINT = "http://127.0.0.1:9/work"

pytestmark = pytest.mark.sqlite_only  # the store has no part in it


def keys(*names_and_roles: str) -> str:
    return ",".join(f"{each}:{each.partition(':')[0]}-{SECRET}" for each in names_and_roles)


async def put(api: Api, kind: str, **terms: Any) -> dict[str, Any]:
    """Put a policy or a step that wants an approval on these terms; what is answered."""
    if kind == "policy":
        body = {"name": "people", "action": {"type": "require_approval", **terms}}
        reply = await api.request("PUT", "/api/v1/policies/people", json=body)
    else:
        body = {"endpoint": ENDPOINT, "control": {"approval": terms}}
        reply = await api.request("PUT", "/api/v1/steps/people", json=body)
    document: dict[str, Any] = reply.ok(201)
    return document


@pytest.mark.parametrize("kind", ["policy", "step"])
@pytest.mark.parametrize(
    ("api_keys", "terms", "reviewers"),
    [
        ("", {"approvals": 2}, 1),
        ("", {"separate_requester": True}, 0),
        (keys("ada:admin", "olga:operator"), {"approvals": 2}, 1),
        (keys("ada:admin", "rita:reviewer"), {"approvals": 2, "separate_requester": True}, 1),
        (keys("ada:admin", "rita:reviewer", "rob:reviewer", "vic:viewer"), {"approvals": 4}, 3),
    ],
)
async def test_too_few_reviewers_are_warned_of(
    start_node: StartNode, connect: Connect, kind: str, api_keys: str, terms: dict[str, Any], reviewers: int
) -> None:
    api = connect(await start_node(api_keys=api_keys))
    api.headers["Authorization"] = f"Bearer ada-{SECRET}"
    with capture_logs() as logged:
        document = await put(api, kind, **terms)
    [warning] = document["warnings"]
    assert warning["code"] == "approval_unreachable"
    assert f"the API keys allow {reviewers}:" in warning["message"]
    [entry] = [entry for entry in logged if entry["event"] == "approval_unreachable"]
    expected = {"log_level": "warning", f"{kind}_id": "people", "reviewers": reviewers}
    assert entry.items() >= {**expected, "approvals": terms.get("approvals", 1)}.items()


@pytest.mark.parametrize("kind", ["policy", "step"])
@pytest.mark.parametrize(
    ("api_keys", "terms"),
    [
        ("", {}),
        (keys("ada:admin", "olga:operator"), {"separate_requester": True}),
        (keys("ada:admin", "rita:reviewer"), {"approvals": 2}),
        (keys("ada:admin", "rita:reviewer"), {"separate_requester": True}),
    ],
)
async def test_enough_reviewers_are_not(
    start_node: StartNode, connect: Connect, kind: str, api_keys: str, terms: dict[str, Any]
) -> None:
    api = connect(await start_node(api_keys=api_keys))
    api.headers["Authorization"] = f"Bearer ada-{SECRET}"
    with capture_logs() as logged:
        document = await put(api, kind, **terms)
    assert "warnings" not in document
    assert not [entry for entry in logged if entry["event"] == "approval_unreachable"]


async def test_a_policy_that_asks_for_no_approval_needs_no_reviewers(api: Api) -> None:
    for action, enabled in (("block", True), ("require_approval", False)):
        body = {"name": "people", "enabled": enabled, "action": {"type": action, "approvals": 9}}
        assert "warnings" not in (await api.request("PUT", f"/api/v1/policies/{action}", json=body)).ok(201)
