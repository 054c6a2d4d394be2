"""The completion pattern that workers were written to: as it was published, it works against this engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import requests

from counterfoil.testing import Received, StepEndpoint
from tests.integration.clients.relay import relay_to
from tests.integration.scenario import dispatched
from tests.wire import Api

pytestmark = [pytest.mark.both_paths, pytest.mark.client("requests", "send_completion, the published worker pattern")]

PUBLISHED = """
def send_completion(flow_id, step_id, receipt_token, result):
    url = f"https://engine/webhook/{flow_id}/{step_id}/{receipt_token}"

    # Simple retry loop with backoff
    backoff = 1
    for attempt in range(5):
        try:
            response = requests.post(url, json=result, timeout=10)

            if response.status_code == 200:
                return True  # Success
            elif response.status_code == 400:
                # Permanent failure - work already in terminal state
                # Safe to give up (engine has idempotency guarantee)
                log.error(f"Work {receipt_token} already processed",
                          response.text)
                return False
            else:
                # Retryable error (5xx, network, timeout)
                raise Exception(f"HTTP {response.status_code}")

        except Exception as e:
            if attempt < 4:
                time.sleep(backoff)
                backoff *= 2
            else:
                raise
"""
SUCCESS = {"success": True, "outputs": {"result": "ok"}}


class Worker:
    """A worker that has pasted the function; how long it would have slept is noted."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._log = logging.getLogger("a worker with the pattern")
        self._log.propagate = False  # what pytest collects, it also checks

    async def send(self, engine: str, received: Received, result: Any, token: str = "") -> Any:
        metadata = received.metadata
        return await asyncio.to_thread(
            self._pasted(engine), metadata["flow_id"], metadata["step_id"], token or received.token, result
        )

    def _pasted(self, engine: str) -> Callable[..., Any]:
        names = {"requests": requests, "log": self._log, "time": SimpleNamespace(sleep=self.slept.append)}
        exec(PUBLISHED.replace("https://engine", engine), names)
        return cast("Callable[..., Any]", names["send_completion"])


@pytest.fixture(autouse=True)
def _quiet_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pattern gives its logger an argument that the message has no place for: logging would print that."""
    monkeypatch.setattr(logging, "raiseExceptions", False)


async def test_a_result_is_taken_once(api: Api, endpoint: StepEndpoint) -> None:
    worker = Worker()
    flow_id, received = await dispatched(api, endpoint)
    assert await worker.send(api.url, received, SUCCESS) is True
    assert await worker.send(api.url, received, SUCCESS) is False
    assert await worker.send(api.url, received, {"success": False, "error": "late"}) is False
    assert worker.slept == []
    assert (await api.final(flow_id))["outputs"] == {"result": "ok"}


@pytest.mark.sqlite_only
async def test_a_failure_is_taken_once(api: Api, endpoint: StepEndpoint) -> None:
    worker = Worker()
    flow_id, received = await dispatched(api, endpoint)
    assert await worker.send(api.url, received, {"success": False, "error": "no such file"}) is True
    assert await worker.send(api.url, received, {"success": False, "error": "no such file"}) is False
    assert worker.slept == []
    assert (await api.final(flow_id))["error"]["message"] == "no such file"


@pytest.mark.sqlite_only
async def test_a_lost_connection_is_tried_again(api: Api, endpoint: StepEndpoint) -> None:
    worker = Worker()
    flow_id, received = await dispatched(api, endpoint)
    async with relay_to(api.url, cut=2) as relay:
        assert await worker.send(relay.url, received, SUCCESS) is True
    assert worker.slept == [1, 2]
    assert (await api.final(flow_id))["status"] == "completed"


@pytest.mark.sqlite_only
async def test_other_refusals_are_tried_again_and_then_raised(api: Api, endpoint: StepEndpoint) -> None:
    worker = Worker()
    _, received = await dispatched(api, endpoint)
    with pytest.raises(Exception, match="HTTP 404"):
        await worker.send(api.url, received, SUCCESS, token="forged.token")
    with pytest.raises(Exception, match="HTTP 422"):
        await worker.send(api.url, received, {"success": "yes"})
    assert worker.slept == [1, 2, 4, 8] * 2
