"""Fifty different results for one receipt at the same time, many receipts over: one wins, every time."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import orjson
import pytest

from counterfoil.testing import Received, StepEndpoint
from tests.acceptance.conftest import ClientOf, NewEngine
from tests.acceptance.processes import EngineProcess
from tests.rawhttp import RawAnswer, post_bytes, raw_connection
from tests.wire import Api

RECEIPTS = {"sqlite": 1000, "postgresql": 250}
"""Where two nodes contend as well, each receipt takes several times as long."""
CONTENDERS = 50
BATCH = 25
"""Posts that one connection has under way at once."""


async def start_all(api: Api, endpoint: StepEndpoint, count: int) -> list[Received]:
    await api.put_step("job", endpoint.url("/job"))
    for _ in range(0, count, 50):
        await asyncio.gather(*(api.start("job") for _ in range(50)))
    await endpoint.received("/job", count, within=60)
    return endpoint.requests("/job")


def result_of(contender: int) -> bytes:
    """Every contender reports a result of its own, some of them failures."""
    return orjson.dumps({"success": contender % 5 != 0, "outputs": {"contender": contender}})


async def contend(url: str, contender: int, receipts: list[Received]) -> list[RawAnswer]:
    """One of fifty connections: it posts its own result for every receipt, in the same order as all the others."""
    answers = []
    async with raw_connection(url) as connection:
        for start in range(0, len(receipts), BATCH):
            batch = receipts[start : start + BATCH]
            requests = (post_bytes(received.webhook_url, result_of(contender)) for received in batch)
            connection.send(b"".join(head + body for head, body in requests))
            answers += [await connection.answer() for _ in batch]
    return answers


@pytest.fixture
async def nodes(store_name: str, engine: EngineProcess, new_engine: NewEngine, tmp_path: Path) -> list[EngineProcess]:
    """All that may take a report: on PostgreSQL two nodes."""
    if store_name == "sqlite":
        return [engine]
    second = new_engine(data=tmp_path / "second")
    await second.start()
    return [engine, second]


@pytest.mark.timeout(180)
async def test_one_of_fifty_results_wins_for_each_receipt(
    store_name: str, nodes: list[EngineProcess], client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    api = client_of(nodes[0])
    receipts = await start_all(api, endpoint, RECEIPTS[store_name])
    columns = await asyncio.gather(
        *(contend(nodes[contender % len(nodes)].url, contender, receipts) for contender in range(CONTENDERS))
    )
    winners: dict[str, int] = {}
    told: Counter[str] = Counter()
    for place, received in enumerate(receipts):
        answers = [columns[contender][place] for contender in range(CONTENDERS)]
        accepted = [contender for contender, answer in enumerate(answers) if answer.status == 200]
        assert len(accepted) == 1, [answer.status for answer in answers]
        assert answers[accepted[0]].body["verdict"] == "accepted"
        for contender, answer in enumerate(answers):
            if contender != accepted[0]:
                error = answer.body["error"]
                assert (answer.status, error["code"]) == (400, "CONFLICTING_RESULT")
                assert error["details"]["same_result"] is False
                told[error["details"]["status"]] += 1
        winners[received.metadata["flow_id"]] = accepted[0]
    assert sum(told.values()) == len(receipts) * (CONTENDERS - 1)
    for flow_id, contender in winners.items():
        work = await api.work(flow_id)
        assert work["status"] == ("succeeded" if contender % 5 else "failed")
        if contender % 5:
            assert work["outputs"] == {"contender": contender}
    assert len(endpoint.requests("/job")) == len(receipts)
