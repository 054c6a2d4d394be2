"""Metadata of a completion: kept with it and shown, and no part of the outcome."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.agents import Gatehouse

pytestmark = pytest.mark.asyncio(loop_scope="module")

METADATA: dict[str, Any] = {"model": "m-1", "latency_ms": 12, "tags": ["a", {"b": None}], "text": "ü \x00 \U0001f4b8"}
AGAIN: dict[str, Any] = {"retry_policy": "reevaluate"}


async def test_it_is_in_the_step_the_workflow_and_the_history(house: Gatehouse) -> None:
    agent = await house.agent()
    await agent.gate("pay")
    assert (await agent.step("pay"))["metadata"] is None
    await agent.complete("pay", output={"a": 1}, metadata=METADATA)
    assert (await agent.step("pay"))["metadata"] == METADATA
    (step,) = (await agent.workflow())["steps"]
    assert (step["metadata"], step["completion_count"]) == (METADATA, 1)
    (event,) = await agent.history("pay", "work_succeeded")
    assert event["data"]["result"]["metadata"] == METADATA
    prior = await agent.context("pay", {"include_prior_output": "true"})
    assert prior["prior_output"] == {"a": 1}, "the output is the output"


@pytest.mark.parametrize("body", [{"output": {"metadata": {"own": 1}}}, {"metadata": {}}, {"metadata": None}, {}])
async def test_none_is_null(house: Gatehouse, body: dict[str, Any]) -> None:
    """Also where an output has a member of that name."""
    agent = await house.agent()
    await agent.gate("pay")
    await agent.complete("pay", **body)
    assert (await agent.step("pay"))["metadata"] is None


async def test_it_does_not_count_for_duplicates(house: Gatehouse) -> None:
    """Only the output is compared, and the metadata of the first report stays."""
    agent = await house.agent()
    await agent.gate("pay")
    await agent.complete("pay", output={"a": 1}, metadata={"try": 1})
    before = await agent.step("pay")
    for metadata in ({"try": 2}, {}, None):
        await agent.complete("pay", output={"a": 1}, metadata=metadata, replayed=True)
    (await agent.report("pay", output={"a": 2}, metadata={"try": 1})).refused(409, "COMPLETION_CONFLICT")
    assert await agent.step("pay") == before
    assert before["metadata"] == {"try": 1}


async def test_each_completion_has_its_own(house: Gatehouse) -> None:
    agent = await house.agent()
    for number in (1, 2):
        await agent.gate("pay", **AGAIN)
        await agent.complete("pay", output={"n": number}, metadata={"try": number})
    await agent.gate("pay", **AGAIN)
    assert (await agent.step("pay"))["metadata"] == {"try": 2}, "of the last completion, though the step is open again"
    told = await agent.history("pay", "work_succeeded")
    assert [event["data"]["result"]["metadata"] for event in told] == [{"try": 1}, {"try": 2}]


async def test_that_of_a_failure_is_in_the_history(house: Gatehouse) -> None:
    agent = await house.agent()
    await agent.gate("pay")
    await agent.complete("pay", success=False, error="no", metadata={"try": 1})
    await agent.complete("pay", success=False, error="still no", metadata={"try": 2})
    told = await agent.history("pay", "work_not_completed", "work_postponed")
    assert [event["data"]["metadata"] for event in told] == [{"try": 1}, {"try": 2}]
    assert (await agent.step("pay"))["metadata"] is None
