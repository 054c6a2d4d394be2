"""Fixtures of tests with clients of other systems."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest_asyncio

from tests.integration.agents import Gatehouse

if TYPE_CHECKING:
    from axonflow import AxonFlow

os.environ["AXONFLOW_TELEMETRY"] = "off"  # before a client is made: it would tell its makers of every run
os.environ["LANGSMITH_TRACING"] = "false"

PutPolicy = Callable[..., Awaitable[str]]


@pytest_asyncio.fixture(loop_scope="module")
async def client(house: Gatehouse) -> AsyncIterator[AxonFlow]:
    """The client of a user who changed nothing but its endpoint."""
    from axonflow import AxonFlow

    async with AxonFlow(endpoint=house.api.url, client_id="agent", client_secret="not asked for") as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def put_policy(house: Gatehouse) -> AsyncIterator[PutPolicy]:
    """Puts policies about steps of some id; they are deleted after the test."""
    made: list[str] = []

    async def put(action: str, step_id: str, **more: Any) -> str:
        policy_id = f"of-{uuid.uuid4().hex}"
        definition = {"name": "of one test", "match": {"step_id": step_id}, "action": {"type": action, **more}}
        (await house.api.request("PUT", f"/api/v1/policies/{policy_id}", json=definition)).ok(201)
        made.append(policy_id)
        return policy_id

    yield put
    for policy_id in made:
        await house.api.request("DELETE", f"/api/v1/policies/{policy_id}")
