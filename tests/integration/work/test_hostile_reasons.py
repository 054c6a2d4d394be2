"""A reason that no column can hold is taken all the same, and the store refuses nothing because of it."""

from __future__ import annotations

from typing import Any

from counterfoil.testing import StepEndpoint
from tests.integration.people import begin, call_gate, policy, put_policy
from tests.wire import Api

NUL = "look\0first"
KEPT = "look\N{REPLACEMENT CHARACTER}first"


async def pending(api: Api) -> list[dict[str, Any]]:
    approvals: list[dict[str, Any]] = (await api.get("/api/v1/approvals", status="pending")).ok()["approvals"]
    return approvals


async def test_of_a_policy_at_the_gate(api: Api) -> None:
    await put_policy(api, "p", policy("pay", reason=NUL))
    answer = (await call_gate(api, await begin(api))).ok()
    assert answer["decision"] == "require_approval"
    assert [approval["reason"] for approval in await pending(api)] == [KEPT]


async def test_of_a_step_that_the_engine_sends(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step("job", endpoint.url("/job"), control={"approval": {"reason": NUL}})
    flow_id = await api.start("job")
    await api.until_event(flow_id, "approval_requested")
    assert [approval["reason"] for approval in await pending(api)] == [KEPT]
