"""Fifty different results for one receipt at the same time, a thousand receipts over: one wins, every time."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import orjson
import pytest

from counterfoil.testing import Received, StepEndpoint
from tests.acceptance.conftest import ClientOf
from tests.acceptance.processes import EngineProcess
from tests.wire import Api

RECEIPTS = 1000
CONTENDERS = 50
BATCH = 25
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


async def start_all(api: Api, endpoint: StepEndpoint, count: int) -> list[Received]:
    await api.put_step("job", endpoint.url("/job"))
    for _ in range(0, count, 50):
        await asyncio.gather(*(api.start("job") for _ in range(50)))
    await endpoint.received("/job", count, within=60)
    return endpoint.requests("/job")


def request_bytes(received: Received, host: str, contender: int) -> bytes:
    """A POST as it goes over the wire: every contender reports a result of its own, some of them failures."""
    body = orjson.dumps({"success": contender % 5 != 0, "outputs": {"contender": contender}})
    path = "/" + received.webhook_url.split("/", 3)[3]
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = LENGTH.search(head)
    assert length, head
    return int(head[9:12]), orjson.loads(await reader.readexactly(int(length[1])))


async def contend(host: str, contender: int, receipts: list[Received]) -> list[tuple[int, dict[str, Any]]]:
    """One of fifty connections: it posts its own result for every receipt, in the same order as all the others."""
    name, port = host.split(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    answers = []
    for start in range(0, len(receipts), BATCH):
        batch = receipts[start : start + BATCH]
        writer.write(b"".join(request_bytes(received, host, contender) for received in batch))
        answers += [await read_answer(reader) for _ in batch]
    writer.close()
    await writer.wait_closed()
    return answers


@pytest.mark.timeout(180)
async def test_one_of_fifty_results_wins_for_each_of_a_thousand_receipts(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    api = client_of(engine)
    receipts = await start_all(api, endpoint, RECEIPTS)
    host = engine.url.removeprefix("http://")
    columns = await asyncio.gather(*(contend(host, contender, receipts) for contender in range(CONTENDERS)))
    winners: dict[str, int] = {}
    told: Counter[str] = Counter()
    for place, received in enumerate(receipts):
        answers = [columns[contender][place] for contender in range(CONTENDERS)]
        accepted = [contender for contender, (status, _) in enumerate(answers) if status == 200]
        assert len(accepted) == 1, [status for status, _ in answers]
        assert answers[accepted[0]][1]["verdict"] == "accepted"
        for contender, (status, body) in enumerate(answers):
            if contender != accepted[0]:
                error = body["error"]
                assert (status, error["code"]) == (400, "CONFLICTING_RESULT")
                assert error["details"]["same_result"] is False
                told[error["details"]["status"]] += 1
        winners[received.metadata["flow_id"]] = accepted[0]
    assert sum(told.values()) == RECEIPTS * (CONTENDERS - 1)
    for flow_id, contender in winners.items():
        work = await api.work(flow_id)
        assert work["status"] == ("succeeded" if contender % 5 else "failed")
        if contender % 5:
            assert work["outputs"] == {"contender": contender}
    assert len(endpoint.requests("/job")) == RECEIPTS
