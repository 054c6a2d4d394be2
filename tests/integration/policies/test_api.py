"""``/api/v1/policies``: kept in versions, refused with the place of each fault, tried out, and obeyed at once."""

from __future__ import annotations

from typing import Any

from counterfoil.testing import Answer, StepEndpoint
from tests.integration.people import (
    KEYED,
    Document,
    again,
    approvals,
    approve,
    asked,
    begin,
    clients,
    complete,
    gate,
    policy,
    put_policy,
)
from tests.integration.scenario import PATH, STEP
from tests.running import StartNode
from tests.wire import Api, Reply

P = "/api/v1/policies"
SEVEN = (
    "step.gate_count",
    "step.completion_count",
    "step.prior_completion_status",
    "step.prior_output_available",
    "step.last_decision",
    "step.first_attempt_age_seconds",
    "step.idempotency_key",
)


async def put(api: Api, policy_id: str, definition: Any) -> Reply:
    return await api.request("PUT", f"{P}/{policy_id}", json=definition)


async def versions(api: Api, policy_id: str) -> list[Document]:
    """The oldest first."""
    found: list[Document] = (await api.get(f"{P}/{policy_id}/versions")).ok()["versions"]
    return found[::-1]


def when(field: str, operator: str, value: Any = None) -> dict[str, Any]:
    return {"field": field, "operator": operator, "value": value}


async def test_a_policy_is_made_changed_listed_removed_and_made_again(start_node: StartNode, session: Any) -> None:
    api = clients(session, (await start_node(**KEYED)).url)["ada"]
    definition = policy("pay", priority=3, reason="money")
    made = (await put(api, "p1", definition)).ok(201)
    assert (made["policy_id"], made["version"], made["changed_by"], made["source"]) == ("p1", 1, "ada", "api")
    assert (made["priority"], made["action"]["reason"], made["enabled"]) == (3, "money", True)
    assert (await put(api, "p1", definition)).ok(200)["version"] == 1, "the same again is no change"
    assert (await put(api, "p1", {**definition, "conditions": []})).ok(200)["version"] == 1, "nor is a default"
    assert (await put(api, "p1", {**definition, "priority": 4})).ok(200)["version"] == 2
    assert (await api.get(f"{P}/p1")).ok()["priority"] == 4
    (await put(api, "p0", definition)).ok(201)
    page = (await api.get(P, limit="1")).ok()
    assert [each["policy_id"] for each in page["policies"]] == ["p0"]
    page = (await api.get(P, cursor=page["next_cursor"])).ok()
    assert ([each["policy_id"] for each in page["policies"]], page["next_cursor"]) == (["p1"], None)
    assert (await api.request("DELETE", f"{P}/p1")).status == 204
    for reply in (await api.get(f"{P}/p1"), await api.request("DELETE", f"{P}/p1"), await api.get(f"{P}/no/versions")):
        reply.refused(404, "UNKNOWN_POLICY")
    assert [each["policy_id"] for each in (await api.get(P)).ok()["policies"]] == ["p0"]
    made_again = (await put(api, "p1", definition)).ok(201)
    assert made_again["version"] == 4, "numbers are never used twice: what matched once can be looked up"
    kept = await versions(api, "p1")
    assert [(each["version"], each["deleted"]) for each in kept] == [(1, False), (2, False), (3, True), (4, False)]
    assert [(each["definition"] or {}).get("priority") for each in kept] == [3, 4, None, 3]
    assert {each["changed_by"] for each in kept} == {"ada"}


FAULTY: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown field": ({"conditions": [when("step.gatecount", "equals", 1)]}, "conditions.0.field"),
    "an unknown operator": ({"conditions": [when("step.id", "is", 1)]}, "conditions.0.operator"),
    "a value of the wrong type": ({"conditions": [when("step.gate_count", "greater_than", "x")]}, "conditions.0.value"),
    "a pattern that is none": ({"conditions": [when("step.id", "regex", "(")]}, "conditions.0.value"),
    "an expression that is none": ({"expression": "step.gate_count >"}, "expression"),
    "an expression of another type": ({"expression": "step.gate_count + 1"}, "expression"),
    "an action that is none": ({"action": {"type": "deny"}}, "action.type"),
    "no approvals": ({"action": {"type": "require_approval", "approvals": 0}}, "action.approvals"),
    "a duration that is none": ({"action": {"type": "require_approval", "expires_in": "soon"}}, "action.expires_in"),
    "something unknown": ({"when": []}, "when"),
    "no name": ({"name": ""}, "name"),
}


async def test_what_makes_no_sense_is_refused_with_its_place(api: Api) -> None:
    for what, (fault, place) in FAULTY.items():
        details = (await put(api, "p1", {**policy("pay"), **fault})).refused(422, "INVALID_POLICY")
        assert [error["place"] for error in details["errors"]] == [place], (what, details)
    (await put(api, "-p", policy("pay"))).refused(422, "INVALID_POLICY")
    (await put(api, "p1", [])).refused(422, "INVALID_POLICY")
    (await api.request("PUT", f"{P}/p1", data=b"{}")).refused(415, "UNSUPPORTED_MEDIA_TYPE")
    (await api.get(f"{P}/p1")).refused(404, "UNKNOWN_POLICY")


async def test_a_policy_is_tried_out_before_it_is_in_force(api: Api) -> None:
    fourth = policy("transfer*", conditions=[when("step.gate_count", "greater_than", 3)], reason="the fourth")

    async def tried(**body: Any) -> Document:
        answer: Document = (await api.post(f"{P}/test", body)).ok()
        return answer

    call = {"step_id": "transfer-1", "attempt": {"gate_count": 4}}
    answer = await tried(policy=fourth, call=call)
    assert (answer["decision"], answer["matched"], answer["reason"]) == ("require_approval", True, "the fourth")
    assert answer["subject"]["attempt"]["prior_completion_status"] == "gated_not_completed"
    assert not (await tried(policy=fourth, call={**call, "attempt": {"gate_count": 3}}))["matched"]
    assert not (await tried(call=call))["matched"], "it is not in force"
    await put_policy(api, "large", policy("pay", "block", conditions=[when("step.input.amount", "at_least", 10)]))
    workflow_id = await begin(api)
    await gate(api, workflow_id, step_input={"amount": 3})
    recorded = {"workflow_id": workflow_id, "step_id": "pay"}
    assert (await tried(recorded=recorded))["decision"] == "allow"
    second = policy("pay", "block", conditions=[when("step.gate_count", "equals", 2)])
    for _ in range(2):
        answer = await tried(policy=second, recorded=recorded)
        assert (answer["decision"], answer["subject"]["attempt"]["gate_count"]) == ("block", 2), "it counts nothing"
    (await api.post(f"{P}/test", {"policy": second})).refused(422, "INVALID_POLICY")
    (await api.post(f"{P}/test", {"call": call, "recorded": recorded})).refused(422, "INVALID_POLICY")
    (await api.post(f"{P}/test", {"recorded": {**recorded, "workflow_id": "wf_no"}})).refused(404, "UNKNOWN_WORKFLOW")
    (await api.post(f"{P}/test", {"recorded": {**recorded, "step_id": "no"}})).refused(404, "UNKNOWN_STEP")
    (await api.post(f"{P}/test", {"policy": {"name": "x"}, "call": call})).refused(422, "INVALID_POLICY")


async def test_block_beats_approval_beats_allow_whatever_the_priorities_and_all_are_told(api: Api) -> None:
    await put_policy(api, "a-allow", policy("pay", "allow", priority=100, reason="fine"))
    await put_policy(api, "b-ask", policy("pay", priority=50, reason="ask", severity="low", approvals=2))
    workflow_id = await begin(api, labels={"region": "eu"})
    answer = await gate(api, workflow_id)
    assert (answer["decision"], answer["reason"], answer["policy_ids"]) == (
        "require_approval",
        "ask",
        ["a-allow", "b-ask"],
    )
    await put_policy(api, "c-ask", policy("p*", priority=60, severity="critical", expires_in="1m"))
    (shown,) = await asked(api, workflow_id)
    assert (shown["severity"], shown["approvals_needed"]) == ("low", 2), "a question stays as it was asked"
    answer = await again(api, workflow_id, step_input={"other": 1})
    assert answer["policy_ids"] == ["a-allow", "c-ask", "b-ask"]
    (shown,) = await asked(api, workflow_id)
    assert (shown["severity"], shown["approvals_needed"]) == ("critical", 2), "of several demands the strictest of each"
    match = {"flow_labels": {"region": "eu"}, "step_type": "tool_*"}
    await put_policy(api, "d-block", policy(match=match, action="block", priority=-5, reason="not in the EU"))
    answer = await again(api, workflow_id, step_input={"other": 2})
    assert (answer["decision"], answer["reason"]) == ("block", "not in the EU")
    assert answer["policy_ids"] == ["a-allow", "c-ask", "b-ask", "d-block"]
    assert await approvals(api, status="pending") == [], "what is blocked waits for no approval"
    assert (await gate(api, workflow_id, "look"))["decision"] == "block"
    assert (await gate(api, workflow_id, "call", step_type="llm_call"))["decision"] == "allow"
    elsewhere = await begin(api, labels={"region": "us"})
    assert (await gate(api, elsewhere))["decision"] == "require_approval"


async def test_what_cannot_be_evaluated_blocks_and_says_so(api: Api, endpoint: StepEndpoint) -> None:
    await put_policy(api, "sums", policy("pay", "allow", name="sums", expression="step.input.a / step.input.b > 1"))
    workflow_id = await begin(api)
    assert (await gate(api, workflow_id, step_input={"a": 4, "b": 2}))["decision"] == "allow"
    answer = await again(api, workflow_id, step_input={"a": 4, "b": 0})
    assert answer["decision"] == "block"
    assert answer["reason"].startswith("policy sums could not be evaluated")
    assert [(each["policy_id"], each["failed"]) for each in answer["policies_matched"]] == [("sums", True)]
    await api.put_step("pay", endpoint.url(PATH))
    error = (await api.final(await api.start("pay", init={"a": 4})))["error"]
    assert (error["code"], error["policies"]) == ("POLICY_BLOCKED", ["sums"])
    assert "could not be evaluated" in error["message"]
    assert endpoint.requests(PATH) == []


async def test_all_seven_fields_of_the_step_are_available_on_both_sides(api: Api, endpoint: StepEndpoint) -> None:
    """By condition and by expression; each of them must hold for the second attempt, and for no other."""
    second = [
        when("step.gate_count", "equals", 2),
        when("step.completion_count", "equals", 0),
        when("step.prior_completion_status", "equals", "gated_not_completed"),
        when("step.prior_output_available", "equals", False),
        when("step.last_decision", "equals", "allow"),
        when("step.first_attempt_age_seconds", "less_than", 60),
        when("step.idempotency_key", "exists"),
    ]
    assert [each["field"] for each in second] == list(SEVEN)
    written = (
        'step.gate_count == 2 && step.completion_count == 0 && step.prior_completion_status == "gated_not_completed"'
        ' && !step.prior_output_available && step.last_decision == "allow" && step.first_attempt_age_seconds < 60.0'
        ' && step.idempotency_key != ""'
    )
    await put_policy(api, "conditions", policy(conditions=second, reason="by condition"))
    await put_policy(api, "expression", policy(expression=written, reason="by expression"))
    workflow_id = await begin(api)
    assert (await gate(api, workflow_id, idempotency_key="k"))["decision"] == "allow"
    answer = await again(api, workflow_id, idempotency_key="k")
    assert (answer["decision"], answer["policy_ids"]) == ("require_approval", ["conditions", "expression"])
    endpoint.answer(PATH, Answer(503), Answer())
    await api.put_step(STEP, endpoint.url(PATH), work={"init_backoff_ms": 5})
    flow_id = await api.start(STEP)
    (question,) = await asked(api, flow_id)
    assert question["reason"] == "by condition; by expression"
    assert (question["attempt"], len(endpoint.requests(PATH))) == (2, 1)
    (await approve(api, question["approval_id"])).ok()
    await api.succeed(await endpoint.received(PATH, 2))
    await put_policy(api, "done", policy("pay", "block", conditions=[when("step.completion_count", "at_least", 1)]))
    (await approve(api, answer["approval_id"])).ok()
    assert (await complete(api, workflow_id, output={"a": 1}, idempotency_key="k")).status == 204
    assert (await again(api, workflow_id, idempotency_key="k"))["decision"] == "block", "done once is enough"


async def test_policies_about_retries_are_asked_only_when_the_call_wants_it(api: Api) -> None:
    await put_policy(api, "third", policy("pay", "block", conditions=[when("step.gate_count", "at_least", 3)]))
    workflow_id = await begin(api)
    for count in range(1, 6):
        answer = await gate(api, workflow_id)
        assert (answer["decision"], answer["cached"]) == ("allow", count > 1)
        assert answer["retry_context"]["gate_count"] == count
    answer = await again(api, workflow_id)
    assert (answer["decision"], answer["cached"], answer["retry_context"]["last_decision"]) == ("block", False, "allow")
    answer = await gate(api, workflow_id)
    assert (answer["decision"], answer["retry_context"]["last_decision"]) == ("block", "block")


async def test_a_policy_that_is_no_more_guards_nothing(api: Api, endpoint: StepEndpoint) -> None:
    """From the very next decision on; what was decided by it stays decided."""
    await api.put_step(STEP, endpoint.url(PATH))
    for count, way in enumerate(("disabled", "deleted"), start=1):
        await put_policy(api, "no", policy(None, "block"))
        workflow_id = await begin(api)
        assert (await gate(api, workflow_id))["decision"] == "block"
        assert (await api.final(await api.start(STEP)))["error"]["code"] == "POLICY_BLOCKED"
        if way == "deleted":
            assert (await api.request("DELETE", f"{P}/no")).status == 204
        else:
            await put_policy(api, "no", policy(None, "block", enabled=False))
        assert (await gate(api, workflow_id))["decision"] == "block", "the recorded decision"
        assert (await again(api, workflow_id))["decision"] == "allow"
        assert (await gate(api, workflow_id, "look"))["decision"] == "allow"
        await api.start(STEP)
        await api.succeed(await endpoint.received(PATH, count))
