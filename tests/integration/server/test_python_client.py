"""The Python client against a real engine: what it refuses itself, what the engine refuses, and what both say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from counterfoil.cli.output import failure
from counterfoil.client import Client, InvalidInput, InvalidStep, UnknownStep
from counterfoil.testing import StepEndpoint

if TYPE_CHECKING:
    from tests.running import Node


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with Client(node.url) as opened:
        yield opened


async def test_the_text_of_an_error_names_the_field_as_the_command_line_does(client: Client) -> None:
    with pytest.raises(InvalidStep) as caught:
        await client.put_step("charge", {"endpoint": "http://127.0.0.1:1/", "work": {"max_retrys": 3}})
    assert str(caught.value) == (
        "INVALID_STEP: the step definition is not valid (work.max_retrys: is not a known field)"
    )
    assert failure(caught.value).message == f"{caught.value}; correct the named fields and put the step again"


async def test_a_goal_that_is_no_step_is_named_by_its_place(client: Client) -> None:
    with pytest.raises(UnknownStep) as caught:
        await client.start_flow(["boom"])
    assert "goals.0: no step is registered with this id" in str(caught.value)
    wrong: Any = "boom"
    with pytest.raises(TypeError, match="not a text"):
        await client.start_flow(wrong)


async def test_flows_are_found_by_label_and_time_in_each_form(client: Client, endpoint: StepEndpoint) -> None:
    await client.put_step("charge", {"endpoint": endpoint.url("/charge")})
    await client.start_flow(["charge"], flow_id="one", labels={"shop": "vienna:1"})
    await client.start_flow(["charge"], flow_id="two", labels={"shop": "graz"})

    async def found(**filters: Any) -> list[str]:
        return [flow["flow_id"] for flow in (await client.flows(**filters))["flows"]]

    assert await found(label="shop:vienna:1") == await found(label=("shop", "vienna:1")) == ["one"]
    now = datetime.now(UTC)
    assert await found(since=now - timedelta(hours=1)) == ["two", "one"]
    assert await found(since=now + timedelta(hours=1)) == []
    assert await found(since=(now - timedelta(hours=1)).isoformat()) == ["two", "one"]
    with pytest.raises(InvalidInput, match="since: must be a time with a zone"):
        await client.flows(since="2026-11-16T12:00:00")
