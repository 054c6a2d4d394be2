"""Fixtures of the tests of flows."""

from __future__ import annotations

import pytest

from counterfoil.testing import StepEndpoint
from tests.integration.flows.run_keys import start
from tests.integration.scenario import PATH, STEP
from tests.wire import Api


@pytest.fixture
async def owned(api: Api, endpoint: StepEndpoint) -> str:
    """An active flow that owns the key; its step waits for a webhook."""
    await api.put_step(STEP, endpoint.url(PATH))
    return str((await start(api, init={"order": 4711})).ok(201)["flow_id"])
