"""The clients of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.clients.senders import (
    Send,
    by_aiohttp,
    by_curl,
    by_go,
    by_httpx,
    by_node,
    by_requests,
    by_urllib,
    in_thread,
)


@pytest.fixture
def send(request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Send:
    """Sends calls by the client of the test."""
    client = str(request.param)
    senders: dict[str, Send] = {
        "requests": in_thread(by_requests),
        "httpx": in_thread(by_httpx),
        "aiohttp": by_aiohttp,
        "urllib.request": in_thread(by_urllib),
        "curl": by_curl(tmp_path),
        "Node fetch": by_node(),
        "Go net/http": by_go(tmp_path_factory.getbasetemp().parent),
    }
    return senders[client]


@pytest.fixture
def old_curl(tmp_path: Path) -> Send:
    """Sends calls by curl, in HTTP/1.0."""
    return by_curl(tmp_path, "--http1.0")
