"""A half-close is no reason to leave a request unanswered: on asyncio's own event loop."""

from __future__ import annotations

import pytest

from counterfoil.testing import StepEndpoint
from tests.half_close import (
    break_off_a_completion_and_shut_down,
    break_off_and_shut_down,
    complete_and_shut_down,
    pipeline_and_shut_down,
    poll_and_shut_down,
)
from tests.running import Connect, StartNode
from tests.wire import Api

pytestmark = pytest.mark.both_paths


@pytest.mark.parametrize("pieces", [(), (30,), (30, 200)])
async def test_a_completion_is_answered(api: Api, endpoint: StepEndpoint, pieces: tuple[int, ...]) -> None:
    await complete_and_shut_down(api, endpoint, *pieces)


async def test_a_completion_is_answered_on_the_ordinary_way(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """With an access log nothing goes by the express lane."""
    await complete_and_shut_down(connect(await start_node(access_log=True)), endpoint)


async def test_a_pipeline_is_answered(api: Api, endpoint: StepEndpoint) -> None:
    await pipeline_and_shut_down(api, endpoint)


async def test_long_polls_and_streams_are_answered(api: Api, endpoint: StepEndpoint) -> None:
    await poll_and_shut_down(api, endpoint)


async def test_half_a_request(api: Api) -> None:
    await break_off_and_shut_down(api)


async def test_half_a_completion(api: Api, endpoint: StepEndpoint) -> None:
    await break_off_a_completion_and_shut_down(api, endpoint)
