"""Approvals of what the engine sends by itself: held before an attempt, sent once when people agree, and never else."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import aiohttp
import pytest

from counterfoil.testing import Answer, MovableClock, StepEndpoint
from tests.integration.people import (
    KEYED,
    approval,
    approvals,
    approve,
    asked,
    clients,
    decided,
    policy,
    put_policy,
    reject,
)
from tests.integration.planned import Workshop, each, gives, items, states, succeeded, takes
from tests.integration.scenario import PATH, STEP, dispatched
from tests.running import Connect, Node, StartNode
from tests.wire import Api, moment

SECOND = [{"field": "step.gate_count", "operator": "at_least", "value": 2}]
CONTROL = {"approval": {"reason": "a person looks first", "severity": "high"}}
DOUBLE: dict[str, Any] = {"n": each("number"), "twice": gives("number")}
LIMITS = {"one": {"parallelism": 1}, "rare": {"rate_limit": {"count": 1, "per_ms": 600_000}}}
LATER = {"init_backoff_ms": 10, "deadline_ms": 500}


@pytest.fixture
async def keyed(start_node: StartNode) -> Node:
    return await start_node(**KEYED)


@pytest.fixture
async def team(keyed: Node, session: aiohttp.ClientSession) -> dict[str, Api]:
    return clients(session, keyed.url)


async def test_a_step_that_wants_an_approval_waits_for_it_before_its_first_attempt_only(
    team: dict[str, Api], endpoint: StepEndpoint
) -> None:
    starter, reviewer = team["ada"], team["rita"]
    endpoint.answer(PATH, Answer(503), Answer())
    control = {"approval": {**CONTROL["approval"], "approvals": 2, "separate_requester": True}}
    await starter.put_step(STEP, endpoint.url(PATH), control=control, work={"init_backoff_ms": 10})
    flow_id = await starter.start(STEP, init={"amount": 7})
    (question,) = await asked(reviewer, flow_id)
    assert (question["arguments"], question["reason"]) == ({"amount": 7}, "a person looks first")
    assert (question["severity"], question["requester"], question["policies"]) == ("high", "ada", [])
    assert (question["attempt"], question["approvals_needed"]) == (1, 2)
    work = await starter.work(flow_id)
    assert (work["status"], work["attempt"], work["hold"]) == ("held", 0, question["approval_id"])
    (await approve(starter, question["approval_id"])).refused(403, "SELF_APPROVAL")
    (await approve(reviewer, question["approval_id"], "one")).ok()
    assert (await starter.work(flow_id))["status"] == "held"
    assert endpoint.requests(PATH) == []
    (await approve(team["rob"], question["approval_id"], "two")).ok()
    second = await endpoint.received(PATH, 2)
    first = endpoint.requests(PATH)[0]
    assert [each.metadata["attempt"] for each in (first, second)] == [1, 2]
    counts = [each.metadata["retry_context"]["gate_count"] for each in (first, second)]
    assert counts == [1, 2], "what waited for people is the first attempt all the same"
    await starter.succeed(second)
    assert (await starter.final(flow_id))["status"] == "completed"
    expected = [("approval_reviewed", "rita", "one"), ("approval_approved", "rob", "two")]
    assert await decided(starter, flow_id) == expected
    await receipts_are_never_shown(reviewer, flow_id, first.token)


async def receipts_are_never_shown(api: Api, flow_id: str, token: str) -> None:
    paths = ("/api/v1/approvals", "/api/v1/workflows/approvals/pending", f"/api/v1/flows/{flow_id}/events")
    for path in paths:
        reply = await api.get(path)
        assert reply.status == 200
        assert token not in reply.content.decode(), path


async def test_two_approvals_at_once_make_one_dispatch(team: dict[str, Api], endpoint: StepEndpoint) -> None:
    await team["ada"].put_step(STEP, endpoint.url(PATH), control=CONTROL)
    flows = [await team["olga"].start(STEP) for _ in range(4)]
    for flow_id in flows:
        (question,) = await asked(team["vic"], flow_id)
        replies = await asyncio.gather(*(approve(team[name], question["approval_id"]) for name in ("rita", "rob")))
        assert sorted(reply.status for reply in replies) == [200, 409]
    for flow_id in flows:
        await team["olga"].until_acknowledged(flow_id)
    assert sorted(each.metadata["flow_id"] for each in endpoint.requests(PATH)) == sorted(flows)
    for received in endpoint.requests(PATH):
        await team["olga"].succeed(received)


async def test_a_late_outcome_of_a_held_item_counts_and_makes_the_question_void(
    api: Api, endpoint: StepEndpoint
) -> None:
    """The first attempt was not silent for ever, only slow: no approval is needed for a second one."""
    await put_policy(api, "retries", policy(STEP, conditions=SECOND))
    flow_id, received = await dispatched(api, endpoint, work=LATER)
    (question,) = await asked(api, flow_id)
    assert question["attempt"] == 2
    kinds = [event["type"] for event in question["history"]]
    assert kinds[:2] == ["work_created", "work_dispatched"]
    assert "work_not_completed" in kinds, "what became of the attempt before"
    again = {"success": False, "error": "later", "retriable": True, "attempt": 1}
    assert (await api.complete(received, again)).ok()["verdict"] == "duplicate"
    assert (await api.get(received.webhook_url)).ok()["status"] == "held"
    await api.succeed(received, slow=True)
    assert (await api.final(flow_id))["outputs"] == {"slow": True}
    assert (await approve(api, question["approval_id"])).refused(409, "NOT_PENDING")["status"] == "void"
    assert len(endpoint.requests(PATH)) == 1
    flow_id, _ = await dispatched(api, endpoint, work=LATER)
    (question,) = await asked(api, flow_id)
    (await api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()
    assert (await approval(api, question["approval_id"]))["status"] == "void"
    (await reject(api, question["approval_id"])).refused(409, "NOT_PENDING")
    assert (await api.work(flow_id))["status"] == "cancelled"


async def test_a_late_outcome_of_what_was_agreed_to_and_not_sent_yet_counts(api: Api, endpoint: StepEndpoint) -> None:
    await put_policy(api, "retries", policy(STEP, conditions=SECOND))
    flow_id, received = await dispatched(api, endpoint, work={**LATER, "parallelism": 1})
    (question,) = await asked(api, flow_id)
    await api.put_step(STEP, endpoint.url(PATH), work={"parallelism": 1})
    other = await api.start(STEP)  # it takes the only place, and keeps it
    await endpoint.received(PATH, 2)
    (await approve(api, question["approval_id"])).ok()
    await api.succeed(received, slow=True)
    assert (await api.final(flow_id))["outputs"] == {"slow": True}
    assert (await approval(api, question["approval_id"]))["status"] == "approved", "what they decided stands"
    assert [each.metadata["flow_id"] for each in endpoint.requests(PATH)] == [flow_id, other]
    (await api.post(f"/api/v1/flows/{other}/cancel")).ok()


async def test_a_rejection_fails_the_step_and_other_branches_go_on(shop: Workshop) -> None:
    for step_id, more in {"risky": {"control": CONTROL}, "safe": {}}.items():
        await shop.waits(step_id, {f"by_{step_id}": gives()}, **more)
    await shop.put("goal", kind="sync", wait_for={"any": 1, "of": ["risky", "safe"]})
    shop.endpoint.answer("/goal", succeeded(done=1))
    flow_id = await shop.api.start("goal")
    (question,) = await asked(shop.api, flow_id)
    (await reject(shop.api, question["approval_id"], "too risky")).ok()
    flow = await shop.api.flow(flow_id)
    assert (flow["status"], states(flow)["risky"], states(flow)["safe"]) == ("active", "failed", "active")
    assert flow["steps"]["risky"]["work"][0]["error"]["code"] == "APPROVAL_REJECTED"
    await shop.report("safe", by_safe=1)
    assert (await shop.end(flow_id))["status"] == "completed"
    flow_id = await shop.api.start("risky")  # here nothing else can serve
    (question,) = await asked(shop.api, flow_id)
    (await reject(shop.api, question["approval_id"], "too risky")).ok()
    error = (await shop.api.final(flow_id))["error"]
    assert (error["code"], error["step_id"]) == ("APPROVAL_REJECTED", "risky")
    assert "too risky" in error["message"]
    assert shop.calls("risky") == []
    work_id = (await shop.api.work(flow_id))["work_id"]
    (await shop.api.post(f"/api/v1/work/{work_id}/redrive")).ok()
    (question,) = await asked(shop.api, flow_id)
    assert question["work_id"] != work_id, "another attempt asks once more"
    (await approve(shop.api, question["approval_id"])).ok()
    await shop.report("risky", by_risky=2)
    assert (await shop.api.final(flow_id))["status"] == "completed"


async def test_each_item_of_a_fan_out_is_asked_about_on_its_own(shop: Workshop) -> None:
    large = [{"field": "step.input.n", "operator": "greater_than", "value": 1}]
    await put_policy(shop.api, "large", policy("double", conditions=large, reason="a large one"))
    fan_out = {"on_failure": "collect"}
    await shop.sync("double", DOUBLE, lambda given: {"twice": 2 * given["n"]}, fan_out=fan_out)
    flow_id = await shop.api.start("double", init={"n": [1, 2, 3, 4]})
    questions = await asked(shop.api, flow_id, 3)
    by_number = {question["arguments"]["n"]: question["approval_id"] for question in questions}
    assert sorted(by_number) == [2, 3, 4]
    (await reject(shop.api, by_number[3])).ok()
    for number in (4, 2):
        (await approve(shop.api, by_number[number])).ok()
    flow = await shop.end(flow_id)
    assert (flow["status"], flow["outputs"]) == ("completed", {"twice": [2, 4, None, 8]})
    assert items(flow, "double") == ["succeeded", "succeeded", "failed", "succeeded"]
    assert sorted(call["n"] for call in shop.calls("double")) == [1, 2, 4]


async def test_no_decision_in_time_fails_the_step(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    control = {"approval": {"expires_in": "1h", "separate_requester": True}}
    await api.put_step(STEP, endpoint.url(PATH), control=control)
    flow_id = await api.start(STEP)
    (question,) = await asked(api, flow_id)
    (await approve(api, question["approval_id"])).refused(403, "SELF_APPROVAL")  # without keys there is but one person
    clock.advance(hours=1)
    error = (await api.final(flow_id))["error"]
    assert (error["code"], question["expires_at"] in error["message"]) == ("APPROVAL_EXPIRED", True)
    (await approve(api, question["approval_id"])).refused(409, "APPROVAL_EXPIRED")
    assert endpoint.requests(PATH) == []
    assert await decided(api, flow_id) == [("approval_expired", None, None)]


async def test_undoing_is_not_asked_about(shop: Workshop) -> None:
    await shop.sync("book", {"booking": gives()}, succeeded(booking=1), compensate=shop.undoing("book"))
    await shop.waits("ship", {"booking": takes(), "shipped": gives()})
    flow_id = await shop.api.start("ship")
    await shop.endpoint.received("/ship")
    await put_policy(shop.api, "all", policy(None))
    await put_policy(shop.api, "none", policy("book", "block"))
    await shop.fail("ship")
    flow = await shop.end(flow_id)
    assert [entry["status"] for entry in flow["compensation"]] == ["completed"]
    assert len(shop.endpoint.requests("/undo-book")) == 1
    assert await approvals(shop.api) == []


async def test_what_a_flow_inside_another_sends_is_asked_about(team: dict[str, Api], endpoint: StepEndpoint) -> None:
    """The caller that started the outermost flow is the requester, however deep the step lies."""
    shop = Workshop(team["ada"], endpoint)
    await put_policy(
        shop.api,
        "charges",
        policy("charge", separate_requester=True, match={"step_id": "charge", "flow_labels": {"kind": "order"}}),
    )
    await shop.waits("charge", {"amount": takes("number"), "paid": gives()})
    mapping = {"goals": ["charge"], "inputs": {"amount": "order"}, "outputs": {"receipt": "paid"}}
    attributes = {"order": takes(), "receipt": gives()}
    await shop.inner("payment", attributes, mapping)
    flow_id = await shop.api.start("payment", init={"order": 5}, labels={"kind": "order"})
    inner = (await shop.api.work(flow_id))["work_id"]
    (question,) = await asked(shop.api, inner)
    assert (question["requester"], question["arguments"]) == ("ada", {"amount": 5})
    (await approve(team["ada"], question["approval_id"])).refused(403, "SELF_APPROVAL")
    (await approve(team["rita"], question["approval_id"])).ok()
    await shop.report("charge", paid="yes")
    assert (await shop.end(flow_id))["outputs"] == {"receipt": "yes"}
    definition = {"kind": "flow", "attributes": attributes, "flow": mapping, "control": CONTROL}
    reply = await shop.api.request("PUT", "/api/v1/steps/guarded", json=definition)
    (error,) = reply.refused(422, "INVALID_STEP")["errors"]
    assert error["place"] == "control.approval", "refused rather than not asked about"


async def test_what_is_held_takes_no_place(api: Api, endpoint: StepEndpoint) -> None:
    await put_policy(api, "risky", policy(match={"flow_labels": {"risk": "high"}}))
    for step_id, limit in LIMITS.items():
        path = f"/{step_id}"
        await api.put_step(step_id, endpoint.url(path), work=limit)
        risky = await api.start(step_id, labels={"risk": "high"})
        (question,) = await asked(api, risky)
        other = await api.start(step_id)
        received = await endpoint.received(path)
        assert received.metadata["flow_id"] == other, "it goes ahead of what is held"
        (await approve(api, question["approval_id"])).ok()
        work = await api.work(risky)
        assert (work["status"], work["attempt"]) == ("pending", 0), "it was agreed to, and waits for its place"
        await api.succeed(received)
    assert (await endpoint.received("/one", 2)).metadata["flow_id"] != received.metadata["flow_id"]
    assert len(endpoint.requests("/rare")) == 1, "its time has not come yet"
    assert len(await approvals(api)) == 2


async def test_of_the_step_and_the_policies_the_strictest_counts_and_a_block_always(
    api: Api, endpoint: StepEndpoint
) -> None:
    await put_policy(api, "money", policy(STEP, approvals=2, severity="low", expires_in="1h", reason="money leaves"))
    await api.put_step(STEP, endpoint.url(PATH), control=CONTROL, work={"parallelism": 1})
    flow_id = await api.start(STEP)
    (question,) = await asked(api, flow_id)
    assert (question["approvals_needed"], question["severity"]) == (2, "high")
    assert moment(question["expires_at"]) - moment(question["requested_at"]) == timedelta(hours=1)
    assert [each["policy_id"] for each in question["policies"]] == ["money"]
    (await api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()
    assert (await api.request("DELETE", "/api/v1/policies/money")).status == 204
    first, second = await api.start(STEP), await api.start(STEP)
    for flow_id in (first, second):
        (question,) = await asked(api, flow_id)
        (await approve(api, question["approval_id"])).ok()
    received = await endpoint.received(PATH)
    assert received.metadata["flow_id"] == first, "the second was agreed to, and waits for its place"
    await put_policy(api, "stop", policy(STEP, "block", reason="everything stops"))
    await api.succeed(received)
    error = (await api.final(second))["error"]
    assert (error["code"], error["message"]) == ("POLICY_BLOCKED", "everything stops")
    assert len(endpoint.requests(PATH)) == 1
