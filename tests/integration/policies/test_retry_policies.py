"""Seed 000, statement by statement: policies over retry state, reevaluation, the old fields, and cooperation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.eventually import eventually
from tests.integration.agents import Gatehouse, where

pytestmark = pytest.mark.asyncio(loop_scope="module")

AGAIN: dict[str, Any] = {"retry_policy": "reevaluate"}

# ------------------------------------------------------------------------------------------------ tiers


async def test_the_primitives_need_no_licence(house: Gatehouse) -> None:
    """
    > The primitives described above — retry_context on the response, idempotency_key on the request,
    > 409 IDEMPOTENCY_KEY_MISMATCH enforcement — are available on every tier, including Community. They are purely
    > wire-level: agents can read and write them on any license.
    """
    agent = await house.agent()
    assert (await agent.context("step-2", idempotency_key="k"))["idempotency_key"] == "k"
    (await agent.ask("step-2")).refused(409, "IDEMPOTENCY_KEY_MISMATCH")


SEVEN: dict[str, tuple[str, Any]] = {
    "step.gate_count": ("greater_than", 3),
    "step.completion_count": ("at_least", 1),
    "step.prior_completion_status": ("equals", "gated_not_completed"),
    "step.prior_output_available": ("equals", True),
    "step.last_decision": ("in", ["allow", "block", "require_approval"]),
    "step.first_attempt_age_seconds": ("less_than", 30),
    "step.idempotency_key": ("equals", ""),
}


@pytest.mark.parametrize("field", SEVEN)
async def test_all_seven_fields_need_no_licence(house: Gatehouse, field: str) -> None:
    """
    > What requires an Evaluation license or higher is authoring dynamic policies that reference retry state as a
    > condition. In other words: the policy engine resolving step.gate_count > 3 or
    > step.prior_completion_status == "gated_not_completed" at evaluation time. Seven new step.* condition fields are
    > added in this release:

    > On a Community license, attempting to create or update a dynamic policy that references any step.* field is
    > rejected at create time with HTTP 403 Forbidden and the error code FEATURE_REQUIRES_EVALUATION_LICENSE:

    > The check fires before the tenant policy-count query, so the rejection is immediate and does not consume a DB
    > roundtrip. Evaluation and Enterprise tiers accept these fields at create and evaluate them at runtime.

    Here there are no tiers: every field is taken when a policy is created and when it is updated.
    """
    agent = await house.agent()
    operator, value = SEVEN[field]
    definition = {"name": "n", "conditions": [where(field, operator, value)], "match": {"step_id": "nobody"}}
    policy_id = await agent.rule("block", **definition)
    changed = {**definition, "action": {"type": "allow"}}
    (await house.api.request("PUT", f"/api/v1/policies/{policy_id}", json=changed)).ok(200)


# ------------------------------------------------------------------------------------------------ the seven fields


async def decisions(house: Gatehouse, *conditions: dict[str, Any], calls: int = 3, **body: Any) -> list[str]:
    """What is decided call by call, each evaluated anew, when a policy blocks under these conditions."""
    agent = await house.agent()
    await agent.rule("block", *conditions)
    return [(await agent.gate("step-2", **AGAIN, **body))["decision"] for _ in range(calls)]


async def test_field_gate_count(house: Gatehouse) -> None:
    """
    > step.gate_count | Integer attempt counter |
    """
    assert await decisions(house, where("step.gate_count", "greater_than", 2)) == ["allow", "allow", "block"]


async def test_field_completion_count(house: Gatehouse) -> None:
    """
    > step.completion_count | Integer successful-complete counter |
    """
    agent = await house.agent()
    await agent.rule("block", where("step.completion_count", "equals", 1))
    assert (await agent.gate("step-2", **AGAIN))["decision"] == "allow"
    assert (await agent.gate("step-2", **AGAIN))["decision"] == "allow"
    await agent.complete("step-2")
    assert (await agent.gate("step-2", **AGAIN))["decision"] == "block"


async def test_field_prior_completion_status(house: Gatehouse) -> None:
    """
    > step.prior_completion_status | Enum: "none", "completed", "gated_not_completed" |
    """
    agent = await house.agent()
    field = "step.prior_completion_status"
    rules = {
        status: await agent.rule("allow", where(field, "equals", status))
        for status in ("none", "gated_not_completed", "completed")
    }
    matched = [(await agent.gate("step-2", **AGAIN))["policy_ids"] for _ in range(2)]
    await agent.complete("step-2")
    matched.append((await agent.gate("step-2", **AGAIN))["policy_ids"])
    assert matched == [[policy_id] for policy_id in rules.values()]


async def test_field_prior_output_available(house: Gatehouse) -> None:
    """
    > step.prior_output_available | Bool |
    """
    agent = await house.agent()
    await agent.rule("block", where("step.prior_output_available", "equals", True))
    assert [(await agent.gate("step-2", **AGAIN))["decision"] for _ in range(2)] == ["allow", "allow"]
    await agent.complete("step-2", output={"n": 1})
    assert (await agent.gate("step-2", **AGAIN))["decision"] == "block"


async def test_field_last_decision(house: Gatehouse) -> None:
    """
    > step.last_decision | Enum: "allow", "block", "require_approval" |
    """
    assert await decisions(house, where("step.last_decision", "equals", "allow")) == ["allow", "block", "allow"]


async def test_field_first_attempt_age_seconds(house: Gatehouse) -> None:
    """
    > step.first_attempt_age_seconds | Seconds between the first gate call and now |
    """
    agent = await house.agent()
    await agent.rule("block", where("step.first_attempt_age_seconds", "at_least", 30))
    assert [(await agent.gate("step-2", **AGAIN))["decision"] for _ in range(2)] == ["allow", "allow"]
    house.clock.advance(seconds=30)
    assert (await agent.gate("step-2", **AGAIN))["decision"] == "block"


async def test_field_idempotency_key(house: Gatehouse) -> None:
    """
    > step.idempotency_key | The caller-supplied key, empty string if none |
    """
    condition = where("step.idempotency_key", "equals", "")
    assert await decisions(house, condition, calls=1) == ["block"]
    assert await decisions(house, condition, calls=1, idempotency_key="k") == ["allow"]


async def test_rule_approval_from_the_third_attempt(house: Gatehouse) -> None:
    """
    > Policies using any of these fields unlock rule patterns that used to require custom code — for example "if a prior
    > completion failed and this is attempt 3 or more, require approval"
    """
    agent = await house.agent()
    unfinished = where("step.prior_completion_status", "equals", "gated_not_completed")
    await agent.rule("require_approval", unfinished, where("step.gate_count", "at_least", 3))
    seen = [(await agent.gate("step-2", **AGAIN))["decision"] for _ in range(3)]
    assert seen == ["allow", "allow", "require_approval"]


async def test_rule_no_rapid_retries(house: Gatehouse) -> None:
    """
    > "block when rapid retries happen within 30 seconds"
    """
    agent = await house.agent()
    rapid = where("step.first_attempt_age_seconds", "less_than", 30)
    await agent.rule("block", where("step.gate_count", "greater_than", 1), rapid)
    assert [(await agent.gate("step-2", **AGAIN))["decision"] for _ in range(2)] == ["allow", "block"]
    house.clock.advance(seconds=30)
    assert (await agent.gate("step-2", **AGAIN))["decision"] == "allow"


async def test_rule_severity_of_what_is_never_completed(house: Gatehouse) -> None:
    """
    > "escalate severity when a step keeps hitting gated_not_completed"
    """
    agent = await house.agent()
    await agent.rule({"type": "require_approval", "severity": "low"})
    unfinished = where("step.prior_completion_status", "equals", "gated_not_completed")
    await agent.rule({"type": "require_approval", "severity": "critical"}, unfinished)
    severities = []
    for number in range(2):
        answer = await agent.gate("step-2", **AGAIN, step_input={"number": number})
        severities.append((await house.api.get(f"/api/v1/approvals/{answer['approval_id']}")).ok()["severity"])
    assert severities == ["low", "critical"]


# ------------------------------------------------------------------------------------------------ reevaluate


async def test_a_retry_repeats_the_decision_and_asks_no_policy(house: Gatehouse) -> None:
    """
    > By default, WCP step gates are idempotent on retry — a second /gate call with the same (workflow_id, step_id)
    > returns the cached decision from the database without re-running the policy engine. That is exactly what you want
    > for consistent auditability most of the time, but it means a retry-aware policy like "block after 3 attempts" will
    > never re-fire on attempt 4 if the attempt-3 response was cached.
    """
    agent = await house.agent()
    await agent.rule("block", where("step.gate_count", "greater_than", 3))
    answers = [await agent.gate("step-2") for _ in range(5)]
    assert [answer["decision"] for answer in answers] == ["allow"] * 5
    assert [answer["cached"] for answer in answers] == [False, True, True, True, True]
    assert len({answer["decision_id"] for answer in answers}) == 1


async def test_reevaluate_asks_the_policies_each_time(house: Gatehouse) -> None:
    """
    > To make retry-aware policies evaluate on each attempt, callers must pass retry_policy: "reevaluate" on the /gate
    > request (or the SDK equivalent).
    """
    agent = await house.agent()
    await agent.rule("block", where("step.gate_count", "greater_than", 3))
    answers = [await agent.gate("step-2", **AGAIN) for _ in range(4)]
    assert [answer["decision"] for answer in answers] == ["allow", "allow", "allow", "block"]
    assert {answer["decision_source"] for answer in answers} == {"fresh"}
    assert len({answer["decision_id"] for answer in answers}) == 4


# ------------------------------------------------------------------------------------------------ migration


async def test_the_old_fields_remain(house: Gatehouse) -> None:
    """
    > cached and decision_source remain on the gate response and continue to return the same values they did in earlier
    > releases. They are deprecated but not removed; SDKs will keep exposing them for the foreseeable future, and no
    > breaking change is planned in this release.

    > The new fields give you more detail — prior decision, prior completion time, prior output — but the old booleans
    > still work if all you need is "did the gate re-evaluate this time?".
    """
    agent = await house.agent()
    answers = [await agent.gate("step-2"), await agent.gate("step-2"), await agent.gate("step-2", **AGAIN)]
    assert [answer["cached"] for answer in answers] == [False, True, False]
    assert [answer["decision_source"] for answer in answers] == ["fresh", "cached", "fresh"]


async def test_the_direct_replacements(house: Gatehouse) -> None:
    """
    > gate.cached == true | gate.retry_context.gate_count > 1 |

    > gate.cached == false | gate.retry_context.gate_count == 1 |

    > gate.decision_source == "fresh" | gate.retry_context.prior_completion_status == "none" or resolved policy
    > re-evaluation |

    > "was there a prior run?" | Branch on gate.retry_context.prior_completion_status |
    """
    agent = await house.agent()
    first, second = await agent.gate("step-2"), await agent.gate("step-2")
    assert (first["cached"], first["retry_context"]["gate_count"]) == (False, 1)
    assert (first["decision_source"], first["retry_context"]["prior_completion_status"]) == ("fresh", "none")
    assert second["cached"] is True
    assert second["retry_context"]["gate_count"] > 1
    assert second["retry_context"]["prior_completion_status"] != "none"


# ------------------------------------------------------------------------------------------------ cooperative


async def test_outcomes_are_learned_from_the_agent(house: Gatehouse) -> None:
    """
    > retry_context surfaces state that AxonFlow already tracks internally on the step row. It does not change the fact
    > that the Workflow Control Plane is a cooperative control plane: AxonFlow only learns about step outcomes when the
    > agent or orchestrator calls /gate and /complete.
    """
    agent = await house.agent()
    await agent.gate("step-2")
    house.clock.advance(hours=2)
    await eventually(lambda: _lapsed(agent, "step-2"), what="the end of the gate's patience")
    step = await agent.step("step-2")
    assert (step["completion_count"], step["prior_completion_status"]) == (0, "gated_not_completed")
    await agent.complete("step-2", output={"n": 1})
    assert (await agent.step("step-2"))["completion_count"] == 1


async def _lapsed(agent: Any, step_id: str) -> Any:
    return await agent.history(step_id, "work_not_completed")


async def test_a_crashed_agent_is_noticed_and_can_be_reconciled(house: Gatehouse) -> None:
    """
    > A step whose agent crashed between /gate and /complete shows up as prior_completion_status ==
    > "gated_not_completed" forever — there is no background reconciliation, no automatic completion, and no
    > cross-workflow deduplication within the scope of this release.

    The field says the same here, and nothing is completed by itself. But a sweep journals the silence, the step is
    listed for reconciliation, and a late report is taken.
    """
    agent = await house.agent()
    await agent.gate("step-2", claim={"lease_seconds": 60, "holder": "crashed"})
    house.clock.advance(seconds=61)
    [lapse] = await eventually(lambda: _lapsed(agent, "step-2"), what="the lapse of the claim")
    assert lapse["data"]["error"]["code"] == "NOT_REPORTED"
    listed = (await house.api.get("/api/v1/work", status="gated_not_completed", limit="1000")).ok()["work"]
    assert agent.workflow_id in [work["flow_id"] for work in listed]
    assert (await agent.context("step-2"))["prior_completion_status"] == "gated_not_completed"
    await agent.complete("step-2")


async def test_a_key_stops_contradictory_completions(house: Gatehouse) -> None:
    """
    > In other words: idempotency_key prevents the agent from accidentally calling /complete twice with contradictory
    > keys on the same step.
    """
    agent = await house.agent()
    await agent.gate("step-2", idempotency_key="one")
    await agent.complete("step-2", idempotency_key="one")
    (await agent.report("step-2", idempotency_key="other")).refused(409, "IDEMPOTENCY_KEY_MISMATCH")
    assert (await agent.step("step-2"))["completion_count"] == 1


async def test_a_determined_caller_is_stopped_by_a_global_key(house: Gatehouse) -> None:
    """
    > It does not stop a determined caller from re-creating the workflow with a new workflow_id and re-submitting the
    > same business transaction. Stronger cross-workflow guarantees are a planned future enhancement.

    A key whose scope is the step stops no agent here either; one whose scope is global does.
    """
    for scope, statuses in (("step", [200, 200]), ("global", [200, 409])):
        agents = [await house.agent() for _ in range(2)]
        key: dict[str, Any] = {"idempotency_key": f"transaction-of-{agents[0].case}", "idempotency_scope": scope}
        replies = await asyncio.gather(*(agent.ask("step-2", **key) for agent in agents))
        assert sorted(reply.status for reply in replies) == statuses
