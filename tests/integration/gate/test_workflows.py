"""Workflows: how they begin and end, which lists show them, and what the engine leaves to the agent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from counterfoil.testing import StepEndpoint
from tests.eventually import eventually
from tests.integration.agents import Agent, Gatehouse, begin
from tests.sse import event_stream

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKFLOWS = "/api/v1/workflows"

# ------------------------------------------------------------------------------------------------ how it begins


async def test_a_new_workflow_is_in_progress(house: Gatehouse) -> None:
    body = {"workflow_name": "refund", "source": "langgraph", "metadata": {"a": 1}, "trace_id": "t-1", "total_steps": 3}
    reply = await house.api.post(WORKFLOWS, body)
    document = reply.ok(201)
    assert document["workflow_id"].startswith("wf_")
    assert document["status"] == "in_progress"
    assert {name: document[name] for name in body} == body
    assert document["created_at"] == document["started_at"]
    assert document["steps"] == []
    assert reply.headers["Location"] == f"{WORKFLOWS}/{document['workflow_id']}"


async def test_labels_do_not_contradict_what_it_is(house: Gatehouse) -> None:
    """Lists and policies find it by its name, source and trace, which are labels of every workflow."""
    body = {"workflow_name": "a", "source": "real", "trace_id": "t"}
    for name in body:
        reply = await house.api.post(WORKFLOWS, {**body, "labels": {name: "other"}})
        assert reply.refused(422, "INVALID_INPUT")["errors"][0]["place"] == "labels"
    document = (await house.api.post(WORKFLOWS, {**body, "labels": {"source": "real", "x": "y"}})).ok(201)
    assert document["labels"] == {**body, "x": "y"}


async def test_the_same_key_and_body_give_the_same_workflow(house: Gatehouse) -> None:
    """Whatever the order of its keys: the answer to the first may have been lost."""
    first = await house.api.post(
        WORKFLOWS, {"workflow_name": "a", "metadata": {"x": 1, "y": 2}, "idempotency_key": "k1"}
    )
    again = await house.api.post(
        WORKFLOWS, {"idempotency_key": "k1", "metadata": {"y": 2.0, "x": 1}, "workflow_name": "a"}
    )
    assert again.ok(200)["workflow_id"] == first.ok(201)["workflow_id"]
    assert again.headers["Idempotent-Replayed"] == "true"
    assert "Idempotent-Replayed" not in first.headers


async def test_the_same_key_with_another_body_is_refused(house: Gatehouse) -> None:
    first = (await house.api.post(WORKFLOWS, {"workflow_name": "a", "idempotency_key": "k2"})).ok(201)
    details = (await house.api.post(WORKFLOWS, {"workflow_name": "b", "idempotency_key": "k2"})).refused(
        409, "IDEMPOTENCY_KEY_REUSED"
    )
    assert details["workflow_id"] == first["workflow_id"]


async def test_the_key_of_an_ended_workflow_still_finds_it(house: Gatehouse) -> None:
    agent = await house.agent(idempotency_key="k3", labels={"case": "k3"})
    (await agent.say("complete")).ok()
    body = {"workflow_name": "refund", "labels": {"case": "k3"}, "idempotency_key": "k3"}
    document = (await house.api.post(WORKFLOWS, body)).ok(200)
    assert (document["workflow_id"], document["status"]) == (agent.workflow_id, "completed")


@pytest.mark.parametrize("body", [{}, {"idempotency_key": ""}])
async def test_without_a_key_every_request_begins_a_workflow(house: Gatehouse, body: dict[str, str]) -> None:
    one, other = [(await house.api.post(WORKFLOWS, {"workflow_name": "a", **body})).ok(201) for _ in range(2)]
    assert one["workflow_id"] != other["workflow_id"]


async def test_many_at_once_with_one_key_begin_one_workflow(house: Gatehouse) -> None:
    body = {"workflow_name": "once", "idempotency_key": "k4"}
    replies = await asyncio.gather(*(house.api.post(WORKFLOWS, body) for _ in range(20)))
    assert sorted(reply.status for reply in replies) == [200] * 19 + [201]
    assert len({reply.body["workflow_id"] for reply in replies}) == 1


# ------------------------------------------------------------------------------------------------ how it ends

ENDS = {"complete": "completed", "fail": "failed", "abort": "aborted"}
"""By verb: the state that it leads to."""


@pytest.mark.parametrize("verb", ENDS)
async def test_an_end_is_final(house: Gatehouse, verb: str) -> None:
    """What was open is cancelled, and every other word is refused with the state that it has."""
    agent = await house.agent()
    await agent.gate("open")
    body = None if verb == "complete" else {"reason": "enough"}
    ended = (await agent.say(verb, body)).ok()
    assert (ended["workflow_id"], ended["status"]) == (agent.workflow_id, ENDS[verb])
    document = await agent.workflow()
    assert document["status"] == ENDS[verb]
    assert document["completed_at"] == document["finished_at"] == ended["finished_at"]
    assert document["steps"][0]["work_status"] == "cancelled"
    if body:
        assert document["error"]["message"] == "enough"
    for other in (*ENDS, "resume"):
        details = (await agent.say(other)).refused(409, "WORKFLOW_TERMINAL")
        assert (details["workflow_id"], details["status"]) == (agent.workflow_id, ENDS[verb])
    (await agent.report("open")).refused(409, "WORKFLOW_TERMINAL")


async def test_a_workflow_that_waits_for_approval_can_fail_but_not_complete_or_resume(house: Gatehouse) -> None:
    agent = await house.agent()
    await agent.rule("require_approval")
    held = await agent.gate("ask")
    for verb in ("complete", "resume"):
        details = (await agent.say(verb)).refused(409, "APPROVAL_PENDING")
        assert details == {"workflow_id": agent.workflow_id, "steps": ["ask"]}
    (await agent.say("fail")).ok()
    approval = (await house.api.get(f"/api/v1/approvals/{held['approval_id']}")).ok()
    assert approval["status"] == "void"


async def test_resume_says_whether_an_agent_can_go_on(house: Gatehouse) -> None:
    agent = await house.agent()
    assert (await agent.say("resume")).ok() == {
        "workflow_id": agent.workflow_id,
        "status": "in_progress",
        "message": "Workflow resumed",
    }
    await agent.rule("require_approval")
    await agent.gate("ask")
    (await agent.review("ask", "reject")).ok()
    assert (await agent.say("resume")).refused(409, "STEP_REJECTED")["steps"] == ["ask"]
    assert (await agent.workflow())["status"] == "in_progress", "rejecting ends a step, and no workflow"
    (await agent.say("complete")).ok()


async def test_an_ended_workflow_still_tells_what_a_step_gave(house: Gatehouse) -> None:
    """A whole-run retry can reuse it, and the call counts nothing."""
    agent = await house.agent()
    await agent.gate("done", idempotency_key="k")
    await agent.complete("done", output={"n": 1}, idempotency_key="k")
    (await agent.say("complete")).ok()
    plain = (await agent.ask("done", idempotency_key="k")).refused(409, "WORKFLOW_TERMINAL")
    assert plain["retry_context"]["prior_output"] is None
    wanted = {"include_prior_output": "true"}
    details = (await agent.ask("done", wanted, idempotency_key="k")).refused(409, "WORKFLOW_TERMINAL")
    context = details["retry_context"]
    assert len(context) == 10
    assert (context["gate_count"], context["completion_count"]) == (1, 1)
    assert context["prior_completion_status"] == "completed"
    assert context["prior_output"] == {"n": 1}
    never = (await agent.ask("never")).refused(409, "WORKFLOW_TERMINAL")
    assert never["retry_context"] is None
    await agent.complete("done", output={"n": 1}, idempotency_key="k", replayed=True)


# ------------------------------------------------------------------------------------------------ lists


async def test_lists_are_filtered_and_paged(house: Gatehouse) -> None:
    """Newest first. Every filter alone finds what has it."""
    made = [await house.agent(source="crew", trace_id=f"trace-{n % 2}", labels={"team": "red"}) for n in range(5)]
    ids = [agent.workflow_id for agent in reversed(made)]
    (await made[0].say("complete")).ok()
    (await made[1].say("abort")).ok()

    async def listed(**params: str) -> list[str]:
        page = (await house.api.get(WORKFLOWS, source="crew", **params)).ok()
        return [workflow["workflow_id"] for workflow in page["workflows"]]

    assert await listed() == ids
    assert await listed(status="in_progress") == ids[:3]
    assert await listed(status="completed") == ids[4:]
    assert await listed(status="aborted") == ids[3:4]
    assert await listed(status="failed") == []
    assert await listed(trace_id="trace-1") == [ids[1], ids[3]]
    assert await listed(label="team:red") == ids
    assert await listed(label="team:blue") == []
    seen, cursor = [], None
    while True:
        page = (await house.api.get(WORKFLOWS, source="crew", limit="2", **({"cursor": cursor} if cursor else {}))).ok()
        seen += [workflow["workflow_id"] for workflow in page["workflows"]]
        cursor = page["next_cursor"]
        assert page["has_more"] == (cursor is not None)
        if cursor is None:
            break
    assert seen == ids


async def test_a_list_by_offset_has_its_total(house: Gatehouse) -> None:
    """Each filter alone and all of them together, against a list that holds everything."""
    odd = {"source": "offsets", "labels": {"parity": "odd"}, "trace_id": "offset-1"}
    made = [await house.agent(**(odd if number % 2 else {"source": "offsets"})) for number in range(7)]
    ids = [agent.workflow_id for agent in reversed(made)]
    for agent in made[:3]:
        (await agent.say("complete")).ok()

    async def page(**params: str) -> dict[str, Any]:
        found: dict[str, Any] = (await house.api.get(WORKFLOWS, source="offsets", **params)).ok()
        found["ids"] = [workflow["workflow_id"] for workflow in found["workflows"]]
        return found

    for offset in range(9):
        part = await page(limit="3", offset=str(offset))
        assert part["ids"] == ids[offset : offset + 3]
        assert (part["total"], part["limit"], part["offset"], part["has_more"]) == (7, 3, offset, offset + 3 < 7)
    assert (await page(limit="3", offset="2", colour="red"))["next_cursor"] == (await page(limit="5"))["next_cursor"]
    assert (await page(limit="1", cursor=str((await page(limit="2"))["next_cursor"])))["total"] == 7
    for filters, total in (
        ({"status": "completed"}, 3),
        ({"trace_id": "offset-1"}, 3),
        ({"label": "parity:odd"}, 3),
        ({"status": "completed", "trace_id": "offset-1"}, 1),
        ({"status": "in_progress", "trace_id": "offset-1", "label": "parity:odd"}, 2),
        ({"status": "failed"}, 0),
        ({"trace_id": "none"}, 0),
        ({"label": "parity:even"}, 0),
    ):
        part = await page(limit="1", **filters)
        assert (part["total"], len(part["ids"])) == (total, min(total, 1)), filters
        assert len((await page(**filters))["ids"]) == total, filters


async def test_totals_without_a_label_count_workflows_alone(house: Gatehouse) -> None:
    """A flow that the engine drives is none, though it may have the same labels."""
    await house.api.put_step("driven", "http://127.0.0.1:9/nobody", work={"max_retries": 0})
    before = {status: await total(house, status=status) for status in (None, "in_progress", "aborted")}
    await house.api.start("driven", labels={"source": "totals"})
    agent, other = await house.agent(source="totals"), await house.agent(source="totals")
    (await other.say("abort")).ok()
    after = {status: await total(house, status=status) for status in before}
    assert {status: after[status] - before[status] for status in before} == {None: 2, "in_progress": 1, "aborted": 1}
    assert await total(house, source="totals") == 2
    assert await total(house, source="totals", status="in_progress") == 1
    assert (await agent.workflow())["status"] == "in_progress"


async def total(house: Gatehouse, **filters: str | None) -> int:
    params = {name: value for name, value in filters.items() if value is not None}
    return int((await house.api.get(WORKFLOWS, limit="1", **params)).ok()["total"])


@pytest.mark.parametrize(
    "query",
    [
        *({"status": "active"}, {"limit": "0"}, {"limit": "1001"}, {"cursor": "x"}),
        *({"offset": "-1"}, {"offset": "x"}, {"offset": "1.5"}, {"offset": "9" * 30}, {"offset": "1", "cursor": "1"}),
    ],
)
async def test_a_filter_that_makes_no_sense_is_refused(house: Gatehouse, query: dict[str, str]) -> None:
    (await house.api.get(WORKFLOWS, **query)).refused(422, "INVALID_INPUT")


# ---------------------------------------------------------------------------------------------- other ways to see it


async def test_a_workflow_is_a_flow_everywhere_else(house: Gatehouse) -> None:
    """Its document, its journal and its stream show each decision and report."""
    agent = await house.agent()
    async with event_stream(house.api.session, f"{house.api.url}/api/v1/flows/{agent.workflow_id}/stream") as stream:
        await agent.gate("pay")
        await agent.complete("pay", output={"n": 1})
        (await agent.say("complete")).ok()
        seen = [event.event for event in await stream.until("flow_completed")]
    flow = await house.api.flow(agent.workflow_id)
    assert flow["status"] == "completed"
    assert [work["status"] for work in flow["steps"]["pay"]["work"]] == ["succeeded"]
    types = await house.api.event_types(agent.workflow_id)
    assert types == seen
    assert [kind for kind in types if kind.startswith(("gate", "flow", "work"))] == [
        "flow_started",
        "work_created",
        "work_granted",
        "gate_decided",
        "work_succeeded",
        "flow_completed",
    ]
    assert (await house.api.get(f"/api/v1/flows/{agent.workflow_id}/result")).ok()["status"] == "completed"


async def test_the_document_shows_the_counters(house: Gatehouse) -> None:
    agent = await house.agent()
    await agent.gate("one", idempotency_key="k", step_name="One", step_type="llm_call")
    await agent.gate("one", idempotency_key="k")
    await agent.complete("one", idempotency_key="k")
    await agent.gate("two")
    one, two = (await agent.workflow())["steps"]
    assert (one["gate_count"], one["completion_count"], one["idempotency_key"]) == (2, 1, "k")
    assert (one["step_name"], one["step_type"], one["prior_completion_status"]) == ("One", "llm_call", "completed")
    assert (two["gate_count"], two["completion_count"], two["idempotency_key"]) == (1, 0, "")
    assert (two["step_index"], two["prior_completion_status"]) == (1, "gated_not_completed")
    (await house.api.get(f"{agent.path}/steps/three")).refused(404, "UNKNOWN_STEP")


async def test_a_driven_flow_is_no_workflow(house: Gatehouse) -> None:
    """Every route says so alike."""
    async with StepEndpoint() as endpoint:
        await house.api.put_step("driven", endpoint.url("/driven"))
        flow_id = await house.api.start("driven")
        received = await endpoint.received("/driven")
        driven = Agent(house.api, flow_id, "")
        replies = [
            await house.api.get(driven.path),
            await house.api.get(f"{driven.path}/steps/driven"),
            await driven.ask("driven"),
            await driven.report("driven"),
            *[await driven.say(verb) for verb in (*ENDS, "resume")],
            *[await driven.review("driven", verb) for verb in ("approve", "reject")],
        ]
        assert [(reply.status, reply.code) for reply in replies] == [(404, "UNKNOWN_WORKFLOW")] * len(replies)
        page = (await house.api.get(WORKFLOWS, limit="1000")).ok()
        assert flow_id not in [workflow["workflow_id"] for workflow in page["workflows"]]
        await house.api.succeed(received)


# ------------------------------------------------------------------------------------------------ the flow routes


@pytest.mark.parametrize("body", [None, {"compensate": True}])
async def test_cancelling_it_as_a_flow_aborts_it(house: Gatehouse, body: dict[str, bool] | None) -> None:
    agent = await house.agent()
    await agent.gate("done")
    await agent.complete("done")
    await agent.gate("open")
    (await house.api.post(f"/api/v1/flows/{agent.workflow_id}/cancel", body)).ok()
    document = await agent.workflow()
    assert document["status"] == "aborted"
    assert [step["work_status"] for step in document["steps"]] == ["succeeded", "cancelled"]


async def test_the_engine_does_not_redrive_what_an_agent_runs(house: Gatehouse) -> None:
    """Not in progress, not failed, not one item of it, and not among many."""
    agent = await house.agent()
    await agent.rule("block")
    work_id = (await agent.gate("blocked"))["work_id"]
    bulk = {"filter": {"label": f"case:{agent.case}"}}
    for end in (None, "fail"):
        if end is not None:
            (await agent.say(end)).ok()
        before = await house.api.event_types(agent.workflow_id)
        (await house.api.post(f"/api/v1/flows/{agent.workflow_id}/redrive")).refused(409, "FLOW_NOT_FAILED")
        (await house.api.post(f"/api/v1/work/{work_id}/redrive")).refused(409, "WORK_NOT_FAILED")
        redriven = (await house.api.post("/api/v1/work/redrive", bulk)).ok()
        assert (redriven["matched"], redriven["redriven"]) == (0, 0)
        assert await house.api.event_types(agent.workflow_id) == before


async def test_the_webhook_does_not_take_what_an_agent_runs(house: Gatehouse) -> None:
    """No receipt is issued for it. If a caller had one, the gate and the agent would still decide."""
    agent = await house.agent()
    work_id = (await agent.gate("pay"))["work_id"]
    receipts = house.node.engine.engine.context.receipts
    token = receipts.issue(agent.workflow_id, "pay", work_id)
    path = f"/webhook/{agent.workflow_id}/pay/{token}"
    for suffix, body in (("", {"success": True, "outputs": {}}), ("/heartbeat", {}), ("", {"success": False})):
        (await house.api.post(path + suffix, body)).refused(404, "UNKNOWN_RECEIPT")
    step = await agent.step("pay")
    assert (step["work_status"], step["completion_count"]) == ("active", 0)


async def test_work_of_agents_is_listed_with_all_work(house: Gatehouse) -> None:
    """``gated_not_completed``: what agents were let run and have not reported, unless a claim of it lives."""
    agent = await house.agent()
    open_id = (await agent.gate("unclaimed"))["work_id"]
    claimed_id = (await agent.gate("claimed", claim={"lease_seconds": 5}))["work_id"]
    done_id = (await agent.gate("done"))["work_id"]
    await agent.complete("done")

    async def listed() -> set[str]:
        page = (await house.api.get("/api/v1/work", status="gated_not_completed", limit="1000")).ok()
        return {work["work_id"] for work in page["work"] if work["flow_id"] == agent.workflow_id}

    assert await listed() == {open_id}
    assert done_id not in await listed()
    house.clock.advance(seconds=6)
    await eventually(lambda: _has(agent, "claimed", "not_completed"), what="the lapse of the claim")
    assert await listed() == {open_id, claimed_id}


async def _has(agent: Agent, step_id: str, status: str) -> Any:
    step = await agent.step(step_id)
    return step if step["work_status"] == status else None


async def test_another_agent_of_the_same_engine_sees_nothing_of_it(house: Gatehouse) -> None:
    """Steps of two workflows have nothing to do with each other, though they have one name and one key."""
    one, other = await house.agent(), await begin(house.api)
    await one.gate("pay", idempotency_key="k")
    await one.complete("pay", idempotency_key="k", output={"n": 1})
    context = await other.context("pay", {"include_prior_output": "true"}, idempotency_key="k")
    assert (context["gate_count"], context["prior_completion_status"], context["prior_output"]) == (1, "none", None)
