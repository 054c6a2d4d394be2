"""Seed 000, statement by statement: ``retry_context``, its fields, and the first call.

Each docstring quotes what its test proves, in the lines that begin with ``>``; test_seed_000_quotations.py compares
them with the seed.
"""

from __future__ import annotations

import pytest

from tests.integration.agents import Gatehouse, where
from tests.wire import moment

pytestmark = pytest.mark.asyncio(loop_scope="module")

PRIOR = {"include_prior_output": "true"}
FIELDS: dict[str, type | tuple[type, ...]] = {
    "gate_count": int,
    "completion_count": int,
    "prior_completion_status": str,
    "prior_output_available": bool,
    "prior_output": (dict, type(None)),
    "prior_completion_at": (str, type(None)),
    "first_attempt_at": str,
    "last_attempt_at": str,
    "last_decision": str,
    "idempotency_key": str,
}


# ------------------------------------------------------------------------------------------------ why


async def test_a_retry_is_no_new_decision_and_a_duplicate_complete_does_nothing(house: Gatehouse) -> None:
    """
    > Production workflows retry. Agents crash and resume, upstream callers double-fire requests, message queues
    > redeliver, network acknowledgements vanish mid-flight. When that happens, your policy decisions, audit trail, and
    > downstream side-effects need to stay coherent — a retried step should not look like a brand-new decision, and a
    > duplicate complete should not book a second payment.
    """
    agent = await house.agent()
    first = await agent.gate("step-2")
    again = await agent.gate("step-2")
    assert again["decision_id"] == first["decision_id"]
    await agent.complete("step-2", output={"transfer_id": "txn-88f210"})
    await agent.complete("step-2", output={"transfer_id": "txn-88f210"}, replayed=True)
    assert len(await agent.history("step-2", "work_succeeded")) == 1
    assert len(await agent.history("step-2", "gate_decided")) == 2


async def test_two_primitives_on_the_endpoints_that_are_there(house: Gatehouse) -> None:
    """
    > retry_context— a structured object returned on every/gateresponse that tells callers exactly which attempt this
    > is, whether a prior attempt completed, and what the prior decision was.

    > idempotency_key— an optional caller-supplied business-level key that is recorded on the step and must match
    > across/gateand/completefor the same(workflow_id, step_id).

    > The Workflow Control Plane exposes two first-class primitives for this:

    > Both are available on the same POST /api/v1/workflows/{workflow_id}/steps/{step_id}/gate and
    > POST /api/v1/workflows/{workflow_id}/steps/{step_id}/complete endpoints you already use. No new endpoints, no new
    > lifecycle. This page covers the wire shape, the rules, and how to migrate
    """
    agent = await house.agent()
    path = f"/api/v1/workflows/{agent.workflow_id}/steps/step-2"
    answer = (await house.api.post(f"{path}/gate", {"idempotency_key": "k"})).ok()
    assert answer["retry_context"]["idempotency_key"] == "k"
    (await house.api.post(f"{path}/complete", {"idempotency_key": "other"})).refused(409, "IDEMPOTENCY_KEY_MISMATCH")
    assert (await house.api.post(f"{path}/complete", {"idempotency_key": "k"})).status == 204


async def test_it_answers_what_two_booleans_did_not(house: Gatehouse) -> None:
    """
    > Before retry_context, callers had two booleans to work with: cached (true when the gate returned a memoized
    > decision) and decision_source ("fresh" or "cached"). Those answer one narrow question: "did you re-evaluate?" They
    > do not tell you:

    > - how many times the step has been gated

    > /completeever landed for this step

    > - what the prior decision actually was

    > - whether a prior attempt left state that a resumed agent should reuse

    > retry_context answers all of those explicitly. cached and decision_source are preserved for backward compatibility
    > and will remain on the response
    """
    agent = await house.agent()
    await agent.gate("step-2")
    await agent.complete("step-2", output={"n": 1})
    answer = await agent.gate("step-2", PRIOR)
    assert (answer["cached"], answer["decision_source"]) == (True, "cached")
    context = answer["retry_context"]
    assert (context["gate_count"], context["prior_completion_status"]) == (2, "completed")
    assert (context["last_decision"], context["prior_output"]) == ("allow", {"n": 1})


# ------------------------------------------------------------------------------------------------ the object


async def test_the_first_answer_is_the_one_that_the_seed_shows(house: Gatehouse) -> None:
    """
    > Every /gate response — including the very first call on a step — carries a populated retry_context object:

    > { "decision": "allow", "step_id": "step-2", "decision_id": "dec_7c41...", "cached": false,
    > "decision_source": "fresh", "retry_context": { "gate_count": 1, "completion_count": 0,
    > "prior_completion_status": "none", "prior_output_available": false, "prior_output": null,
    > "prior_completion_at": null, "first_attempt_at": "2026-04-21T15:30:45.123Z",
    > "last_attempt_at": "2026-04-21T15:30:45.123Z", "last_decision": "allow", "idempotency_key": "" } }
    """
    answer = await (await house.agent()).gate("step-2")
    shown = {name: answer[name] for name in ("decision", "step_id", "cached", "decision_source")}
    assert shown == {"decision": "allow", "step_id": "step-2", "cached": False, "decision_source": "fresh"}
    assert answer["decision_id"].startswith("dec_")
    context = answer["retry_context"]
    at = context["first_attempt_at"]
    assert len(at) == len("2026-04-21T15:30:45.123Z")
    assert context == {
        "gate_count": 1,
        "completion_count": 0,
        "prior_completion_status": "none",
        "prior_output_available": False,
        "prior_output": None,
        "prior_completion_at": None,
        "first_attempt_at": at,
        "last_attempt_at": at,
        "last_decision": "allow",
        "idempotency_key": "",
    }


@pytest.mark.parametrize("decision", ["allow", "block", "require_approval"])
async def test_every_answer_has_all_ten_fields(house: Gatehouse, decision: str) -> None:
    """
    > Every /gate response — including the very first call on a step — carries a populated retry_context object:
    """
    agent = await house.agent()
    await agent.rule(decision)
    for _ in range(2):
        answer = await agent.gate("step-2")
        assert answer["decision"] == decision
        context = answer["retry_context"]
        assert context.keys() == FIELDS.keys()
        assert all(isinstance(context[name], kinds) for name, kinds in FIELDS.items()), context


@pytest.mark.parametrize("decision", ["allow", "block", "require_approval"])
async def test_gate_count(house: Gatehouse, decision: str) -> None:
    """
    > gate_count | integer ≥ 1 | Number of times /gate has been called for this (workflow_id, step_id), including the
    > current call. First call returns 1. Increments on every gate call regardless of decision. |
    """
    agent = await house.agent()
    await agent.rule(decision)
    assert [(await agent.context("step-2"))["gate_count"] for _ in range(3)] == [1, 2, 3]
    assert (await agent.context("step-3"))["gate_count"] == 1


async def test_completion_count(house: Gatehouse) -> None:
    """
    > completion_count | integer ≥ 0 | Number of times /complete has been successfully called for this step. Typically 0
    > on the first gate call, 1 after the step completes. |

    A repeated complete of the same outcome is answered like the first one, and counts as one call with it.
    """
    agent = await house.agent()
    assert (await agent.context("step-2"))["completion_count"] == 0
    assert (await agent.context("step-2"))["completion_count"] == 0
    await agent.complete("step-2")
    assert (await agent.context("step-2"))["completion_count"] == 1
    await agent.complete("step-2", replayed=True)
    assert (await agent.context("step-2"))["completion_count"] == 1


async def test_prior_completion_status_is_one_of_three(house: Gatehouse) -> None:
    """
    > prior_completion_status | enum string | One of "none", "completed", "gated_not_completed". See status values. |
    """
    agent = await house.agent()
    seen = [(await agent.context("step-2"))["prior_completion_status"] for _ in range(2)]
    await agent.complete("step-2")
    seen.append((await agent.context("step-2"))["prior_completion_status"])
    assert seen == ["none", "gated_not_completed", "completed"]


async def test_prior_output_available(house: Gatehouse) -> None:
    """
    > prior_output_available | bool | true iff prior_completion_status == "completed". Mirrors whether prior_output
    > could be returned if the caller opts in. |
    """
    agent = await house.agent()
    contexts = [await agent.context("step-2"), await agent.context("step-2")]
    await agent.complete("step-2", output={"n": 1})
    contexts += [await agent.context("step-2"), await agent.context("step-2", PRIOR)]
    assert [context["prior_output_available"] for context in contexts] == [False, False, True, True]
    for context in contexts:
        assert context["prior_output_available"] == (context["prior_completion_status"] == "completed")


async def test_prior_output_field(house: Gatehouse) -> None:
    """
    > prior_output | object or null | Always present in the schema. Populated only when the gate call set
    > ?include_prior_output=true and the prior attempt completed. Otherwise null. |
    """
    agent = await house.agent()
    contexts = [await agent.context("step-2", PRIOR), await agent.context("step-2", PRIOR)]
    await agent.complete("step-2", output={"n": 1})
    contexts += [await agent.context("step-2"), await agent.context("step-2", PRIOR)]
    assert [context["prior_output"] for context in contexts] == [None, None, None, {"n": 1}]


async def test_prior_completion_at(house: Gatehouse) -> None:
    """
    > prior_completion_at | ISO 8601 string or null | Timestamp of the prior /complete, if any. null otherwise. |
    """
    agent = await house.agent()
    gated = moment((await agent.context("step-2"))["last_attempt_at"])
    assert (await agent.context("step-2"))["prior_completion_at"] is None
    house.clock.advance(seconds=1)
    await agent.complete("step-2")
    house.clock.advance(seconds=1)
    context = await agent.context("step-2")
    assert (moment(context["prior_completion_at"]) - gated).total_seconds() >= 1
    assert (moment(context["last_attempt_at"]) - moment(context["prior_completion_at"])).total_seconds() >= 1
    assert (await agent.context("step-2"))["prior_completion_at"] == context["prior_completion_at"]


async def test_first_and_last_attempt(house: Gatehouse) -> None:
    """
    > first_attempt_at | ISO 8601 string | Timestamp of the first gate call on this step. On the first call, equals
    > last_attempt_at. |

    > last_attempt_at | ISO 8601 string | Timestamp of the current gate call — the one that produced this response. |

    > All timestamps are RFC 3339 / ISO 8601 with a timezone offset (typically Z for UTC).
    """
    agent = await house.agent()
    first = await agent.context("step-2")
    assert first["first_attempt_at"] == first["last_attempt_at"]
    house.clock.advance(seconds=2)
    second = await agent.context("step-2")
    assert second["first_attempt_at"] == first["first_attempt_at"]
    assert (moment(second["last_attempt_at"]) - moment(second["first_attempt_at"])).total_seconds() >= 2
    house.clock.advance(seconds=1)
    third = await agent.context("step-2", retry_policy="reevaluate")
    assert third["first_attempt_at"] == first["first_attempt_at"]
    assert moment(third["last_attempt_at"]) > moment(second["last_attempt_at"])


async def test_last_decision(house: Gatehouse) -> None:
    """
    > last_decision | enum string | Decision of the immediately prior gate call. One of "allow", "block",
    > "require_approval". On the first call, equals the current response's decision. |
    """
    agent = await house.agent()
    await agent.rule("block", where("step.gate_count", "equals", 2))
    await agent.rule("require_approval", where("step.gate_count", "equals", 3))
    answers = [await agent.gate("step-2", retry_policy="reevaluate") for _ in range(3)]
    answers.append(await agent.gate("step-2"))
    decisions = [answer["decision"] for answer in answers]
    assert decisions == ["allow", "block", "require_approval", "require_approval"]
    last = [answer["retry_context"]["last_decision"] for answer in answers]
    assert last == ["allow", "allow", "block", "require_approval"]


async def test_the_key_is_shown_for_the_life_of_the_step(house: Gatehouse) -> None:
    """
    > idempotency_key | string | Idempotency key the caller supplied on the first gate call, if any. Empty string "" if
    > the caller never supplied one. Once set on a step, it is immutable for the lifetime of that step.
    """
    agent = await house.agent()
    assert (await agent.context("step-1"))["idempotency_key"] == ""
    assert (await agent.context("step-2", idempotency_key="k"))["idempotency_key"] == "k"
    (await agent.ask("step-2", idempotency_key="other")).refused(409, "IDEMPOTENCY_KEY_MISMATCH")
    await agent.complete("step-2", idempotency_key="k")
    assert (await agent.context("step-2", idempotency_key="k"))["idempotency_key"] == "k"


# ------------------------------------------------------------------------------------------------ the first call


@pytest.mark.parametrize("decision", ["allow", "block", "require_approval"])
@pytest.mark.parametrize("key", [None, "payment:wire:acct4471:invoice-7721"])
async def test_the_first_call_is_fully_determined(house: Gatehouse, decision: str, key: str | None) -> None:
    """
    > When gate_count == 1, the response is fully determined:

    > completion_count == 0prior_completion_status == "none"prior_output_available == falseprior_output ==
    > nullprior_completion_at == nullfirst_attempt_at == last_attempt_atlast_decisionequals the current
    > call'sdecisionidempotency_keyis whatever the caller passed, or""if none was supplied
    """
    agent = await house.agent()
    await agent.rule(decision)
    answer = await agent.gate("step-2", PRIOR, **({} if key is None else {"idempotency_key": key}))
    context = answer["retry_context"]
    assert context["gate_count"] == 1
    assert context["completion_count"] == 0
    assert context["prior_completion_status"] == "none"
    assert context["prior_output_available"] is False
    assert context["prior_output"] is None
    assert context["prior_completion_at"] is None
    assert context["first_attempt_at"] == context["last_attempt_at"]
    assert context["last_decision"] == answer["decision"] == decision
    assert context["idempotency_key"] == (key or "")


async def test_gate_count_and_not_cached_tells_a_fresh_step(house: Gatehouse) -> None:
    """
    > Callers that want to detect "fresh step, never seen before" should branch on gate_count == 1, not on
    > cached == false. cached is a hint about memoization; gate_count is the authoritative attempt counter.
    """
    agent = await house.agent()
    await agent.gate("step-2")
    again = await agent.gate("step-2", retry_policy="reevaluate")
    assert again["cached"] is False
    assert again["retry_context"]["gate_count"] == 2
