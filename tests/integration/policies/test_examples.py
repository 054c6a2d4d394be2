"""The policies that are shipped as examples, obeyed alike at the gate and before each dispatch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from counterfoil.testing import Answer, MovableClock, StepEndpoint
from tests.integration.people import again, approval, approve, asked, begin, call_gate, complete, gate, put_policy
from tests.integration.scenario import PATH, STEP
from tests.running import Connect, StartNode
from tests.wire import Api

EXAMPLES: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "config" / "policies.example.json").read_text(encoding="utf-8")
)
THIRD, RAPID, FIFTH = "third-attempt-needs-approval", "no-rapid-retries", "keeps-not-completing"
AFTER_A_MINUTE = {"backoff_type": "fixed", "init_backoff_ms": 60_000, "max_backoff_ms": 60_000, "max_retries": 9}


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def api(clock: MovableClock, start_node: StartNode, connect: Connect) -> Api:
    return connect(await start_node(clock))


async def put_examples(api: Api, *names: str) -> None:
    for name in names:
        await put_policy(api, name, EXAMPLES[name])


async def next_attempt(api: Api, clock: MovableClock, flow_id: str, attempt: int) -> None:
    """Let the minute pass after which what did not complete is tried again."""
    await api.until_work(flow_id, "not_completed", attempt=attempt)
    clock.advance(minutes=1)


def test_there_are_three_examples() -> None:
    assert set(EXAMPLES) == {THIRD, RAPID, FIFTH}


async def test_the_gate_asks_about_the_third_attempt_and_the_fifth_and_blocks_a_rapid_one(
    api: Api, clock: MovableClock
) -> None:
    await put_examples(api, *EXAMPLES)
    workflow_id = await begin(api)
    assert (await gate(api, workflow_id))["decision"] == "allow"
    clock.advance(seconds=31)
    assert (await again(api, workflow_id))["decision"] == "allow"
    answer = await again(api, workflow_id)
    assert (answer["decision"], answer["policy_ids"]) == ("require_approval", [THIRD])
    assert (await approval(api, answer["approval_id"]))["severity"] == "high"
    (await call_gate(api, workflow_id, retry_policy="reevaluate")).refused(409, "APPROVAL_HOLD")
    (await approve(api, answer["approval_id"], "it has not happened yet")).ok()
    answer = await gate(api, workflow_id)
    assert (answer["decision"], answer["retry_context"]["gate_count"]) == ("allow", 4)
    answer = await again(api, workflow_id)
    assert (answer["decision"], answer["policy_ids"]) == ("require_approval", [FIFTH, THIRD])
    assert (await approval(api, answer["approval_id"]))["severity"] == "critical"
    (await approve(api, answer["approval_id"])).ok()
    assert (await complete(api, workflow_id)).status == 204
    answer = await again(api, workflow_id)
    assert (answer["decision"], answer["policy_ids"]) == ("allow", []), "what has completed is not asked about"
    workflow_id = await begin(api)
    await gate(api, workflow_id)
    clock.advance(seconds=20)
    answer = await again(api, workflow_id)
    assert (answer["decision"], answer["policy_ids"]) == ("block", [RAPID])
    assert answer["reason"] == EXAMPLES[RAPID]["action"]["reason"]
    assert (await gate(api, workflow_id))["decision"] == "block"
    clock.advance(seconds=11)
    answer = await again(api, workflow_id)
    assert (answer["decision"], answer["policy_ids"]) == ("require_approval", [THIRD]), "and late enough now"


async def test_the_third_attempt_is_held_before_it_is_sent_and_goes_on_after_approval(
    api: Api, endpoint: StepEndpoint
) -> None:
    await put_examples(api, THIRD)
    endpoint.answer(PATH, Answer(503), Answer(503), Answer())
    await api.put_step(STEP, endpoint.url(PATH), work={"init_backoff_ms": 5})
    flow_id = await api.start(STEP, init={"amount": 3})
    (question,) = await asked(api, flow_id)
    assert (question["attempt"], question["severity"], len(endpoint.requests(PATH))) == (3, "high", 2)
    assert question["arguments"] == {"amount": 3}
    tried = [event["type"] for event in question["history"] if event["type"].startswith("work_")]
    assert tried.count("work_dispatched") == tried.count("work_not_completed") == 2
    (await approve(api, question["approval_id"])).ok()
    received = await endpoint.received(PATH, 3)
    context = received.metadata["retry_context"]
    assert (context["gate_count"], context["last_decision"]) == (3, "allow"), "as without policies"
    await api.succeed(received)
    assert (await api.final(flow_id))["status"] == "completed"


async def test_a_rapid_retry_is_not_sent_and_fails_the_flow(
    api: Api, clock: MovableClock, endpoint: StepEndpoint
) -> None:
    await put_examples(api, RAPID)
    endpoint.answer(PATH, Answer(503))
    await api.put_step(STEP, endpoint.url(PATH), work={"init_backoff_ms": 5})
    flow_id = await api.start(STEP)
    error = (await api.final(flow_id))["error"]
    assert (error["code"], error["step_id"], error["policies"]) == ("POLICY_BLOCKED", STEP, [RAPID])
    assert error["message"] == EXAMPLES[RAPID]["action"]["reason"]
    assert len(endpoint.requests(PATH)) == 1
    endpoint.answer(PATH, Answer(503), Answer())
    await api.put_step(STEP, endpoint.url(PATH), work=AFTER_A_MINUTE)
    flow_id = await api.start(STEP)
    await next_attempt(api, clock, flow_id, 1)
    await api.succeed(await endpoint.received(PATH, 3))
    assert (await api.final(flow_id))["status"] == "completed"


async def test_the_fifth_attempt_is_held_as_critical(api: Api, clock: MovableClock, endpoint: StepEndpoint) -> None:
    await put_examples(api, *EXAMPLES)
    endpoint.answer(PATH, Answer(503), Answer(503), Answer(503), Answer(503), Answer())
    await api.put_step(STEP, endpoint.url(PATH), work=AFTER_A_MINUTE)
    flow_id = await api.start(STEP)
    for attempt in (1, 2):
        await next_attempt(api, clock, flow_id, attempt)
    severities = []
    for attempt in (3, 4, 5):
        (question,) = await asked(api, flow_id)
        assert (question["attempt"], len(endpoint.requests(PATH))) == (attempt, attempt - 1)
        severities.append((question["severity"], [each["policy_id"] for each in question["policies"]]))
        (await approve(api, question["approval_id"])).ok()
        await endpoint.received(PATH, attempt)
        if attempt < 5:
            await next_attempt(api, clock, flow_id, attempt)
    assert severities == [("high", [THIRD]), ("high", [THIRD]), ("critical", [FIFTH, THIRD])]
    await api.succeed(endpoint.requests(PATH)[-1])
    assert (await api.final(flow_id))["status"] == "completed"
    assert len(endpoint.requests(PATH)) == 5
