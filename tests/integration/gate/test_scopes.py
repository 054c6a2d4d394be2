"""Keys across workflows: the first step owns a key for its window; others are refused, or get the recorded output."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.integration.agents import Agent, Gatehouse

pytestmark = pytest.mark.asyncio(loop_scope="module")

GLOBAL: dict[str, Any] = {"idempotency_scope": "global"}
REPLAY: dict[str, Any] = {"on_duplicate": "replay"}


@pytest.fixture
def key() -> dict[str, str]:
    """One that no other test uses."""
    return {"idempotency_key": f"invoice-{uuid.uuid4().hex}"}


async def owner_of(house: Gatehouse, key: dict[str, Any], **fields: Any) -> Agent:
    """A workflow that has the key."""
    agent = await house.agent(**GLOBAL, **fields)
    await agent.gate("pay", **key)
    return agent


async def test_the_second_workflow_is_told_which_workflow_has_the_key(house: Gatehouse, key: dict[str, Any]) -> None:
    owner, second = await owner_of(house, key), await house.agent(**GLOBAL)
    details = (await second.ask("other-step", **key)).refused(409, "IDEMPOTENCY_KEY_IN_USE")
    assert details == {"workflow_id": owner.workflow_id, "step_id": "pay", "completed": False}
    await owner.complete("pay", **key)
    assert (await second.ask("other-step", **key)).refused(409, "IDEMPOTENCY_KEY_IN_USE")["completed"] is True
    assert (await second.workflow())["steps"] == [], "it counts nothing"


async def test_a_key_is_unique_among_the_steps_of_one_workflow_too(house: Gatehouse, key: dict[str, Any]) -> None:
    owner = await owner_of(house, key)
    details = (await owner.ask("pay-again", **key)).refused(409, "IDEMPOTENCY_KEY_IN_USE")
    assert (details["workflow_id"], details["step_id"]) == (owner.workflow_id, "pay")


async def test_the_owner_asks_as_often_as_it_likes(house: Gatehouse, key: dict[str, Any]) -> None:
    owner = await owner_of(house, key)
    assert (await owner.context("pay", **key))["gate_count"] == 2
    assert (await owner.context("pay", **key, retry_policy="reevaluate"))["gate_count"] == 3
    await owner.complete("pay", **key)


async def test_replay_gives_what_was_recorded(house: Gatehouse, key: dict[str, Any]) -> None:
    """It asks no policy, opens nothing, counts nothing, and is in the journal."""
    owner, second = await owner_of(house, key), await house.agent(**GLOBAL)
    await owner.complete("pay", **key, output={"transfer_id": "txn-88f210"})
    await second.rule("block")
    before = await owner.step("pay")
    answer = await second.gate("pay", **key, **REPLAY)
    assert (answer["decision"], answer["cached"], answer["replayed"]) == ("allow", True, True)
    assert answer["owner"] == {"workflow_id": owner.workflow_id, "step_id": "pay"}
    context = answer["retry_context"]
    assert len(context) == 10
    assert context["prior_output"] == {"transfer_id": "txn-88f210"}
    assert (context["prior_completion_status"], context["prior_output_available"]) == ("completed", True)
    assert context["gate_count"] > 1, "an agent that sees gate_count 1 would run it"
    assert await owner.step("pay") == before
    assert (await second.workflow())["steps"] == []
    assert "gate_replayed" in await house.api.event_types(second.workflow_id)
    (await second.report("pay", **key)).refused(404, "UNKNOWN_STEP")
    (await second.say("complete")).ok()


async def test_replay_with_nothing_recorded_is_refused(house: Gatehouse, key: dict[str, Any]) -> None:
    """Not yet, or only a failure."""
    owner, second = await owner_of(house, key), await house.agent(**GLOBAL)
    (await second.ask("pay", **key, **REPLAY)).refused(409, "IDEMPOTENCY_KEY_IN_USE")
    await owner.complete("pay", **key, success=False, error="no funds")
    (await second.ask("pay", **key, **REPLAY)).refused(409, "IDEMPOTENCY_KEY_IN_USE")


async def test_replay_of_what_an_ended_workflow_did(house: Gatehouse, key: dict[str, Any]) -> None:
    owner, second = await owner_of(house, key), await house.agent(**GLOBAL)
    await owner.complete("pay", **key, output={"n": 1})
    (await owner.say("complete")).ok()
    assert (await second.context("pay", **key, **REPLAY))["prior_output"] == {"n": 1}


async def test_a_window_passes(house: Gatehouse, key: dict[str, Any]) -> None:
    """The next workflow has the key then, and the first goes on with its own step."""
    owner = await owner_of(house, key, idempotency_window="1h")
    second, third = await house.agent(**GLOBAL), await house.agent(**GLOBAL)
    house.clock.advance(minutes=59)
    (await second.ask("pay", **key)).refused(409, "IDEMPOTENCY_KEY_IN_USE")
    house.clock.advance(minutes=1)
    assert (await second.context("pay", **key))["gate_count"] == 1
    assert (await third.ask("pay", **key)).refused(409, "IDEMPOTENCY_KEY_IN_USE")["workflow_id"] == second.workflow_id
    assert (await owner.context("pay", **key))["gate_count"] == 2


async def test_the_window_is_a_day_unless_told(house: Gatehouse, key: dict[str, Any]) -> None:
    await owner_of(house, key)
    second = await house.agent()
    house.clock.advance(hours=23)
    (await second.ask("pay", **key, **GLOBAL)).refused(409, "IDEMPOTENCY_KEY_IN_USE")
    house.clock.advance(hours=1)
    await second.gate("pay", **key, **GLOBAL)


async def test_for_ever(house: Gatehouse, key: dict[str, Any]) -> None:
    owner = await owner_of(house, key, idempotency_window="forever")
    house.clock.advance(hours=24 * 20)
    second = await house.agent()
    details = (await second.ask("pay", **key, **GLOBAL)).refused(409, "IDEMPOTENCY_KEY_IN_USE")
    assert details["workflow_id"] == owner.workflow_id


async def test_a_call_has_the_last_word_on_its_scope(house: Gatehouse, key: dict[str, Any]) -> None:
    """Global in a workflow that is not, only its own in one that is; and on its window."""
    plain, wide = await house.agent(), await house.agent(**GLOBAL)
    await plain.gate("pay", **key, **GLOBAL, idempotency_window="1h")
    (await wide.ask("pay", **key)).refused(409, "IDEMPOTENCY_KEY_IN_USE")
    assert (await wide.context("own", **key, idempotency_scope="step"))["gate_count"] == 1
    house.clock.advance(hours=1)
    assert (await wide.context("pay", **key, idempotency_window="2h"))["gate_count"] == 1
    house.clock.advance(hours=2)
    assert (await plain.context("late", **key, **GLOBAL))["gate_count"] == 1


async def test_without_a_key_there_is_nothing_to_share(house: Gatehouse) -> None:
    without: list[dict[str, Any]] = [{}, {"idempotency_key": ""}]
    for body in without:
        for _ in range(2):
            agent = await house.agent(**GLOBAL)
            assert (await agent.context("pay", **body))["gate_count"] == 1


async def test_a_key_of_one_step_alone_is_not_seen_by_global_ones(house: Gatehouse, key: dict[str, Any]) -> None:
    private = await house.agent()
    await private.gate("pay", **key)
    assert (await (await house.agent(**GLOBAL)).context("pay", **key))["gate_count"] == 1


async def test_a_blocked_owner_keeps_the_key(house: Gatehouse, key: dict[str, Any]) -> None:
    """A blocked step may be allowed later; until the window passes no other workflow does the same."""
    owner = await house.agent(**GLOBAL)
    await owner.rule("block")
    assert (await owner.gate("pay", **key))["decision"] == "block"
    second = await house.agent(**GLOBAL)
    (await second.ask("pay", **key)).refused(409, "IDEMPOTENCY_KEY_IN_USE")
