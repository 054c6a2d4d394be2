"""The examples as they stand in the repository, against a real engine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.eventually import eventually

if TYPE_CHECKING:
    from tests.running import Node

EXAMPLES = Path(__file__).parents[2] / "examples"

once = pytest.mark.sqlite_only  # a worker cannot tell which store the engine has


async def run_script(node: Node, worker: str, init: dict[str, Any]) -> Any:
    """Run start_flow.sh; the last of its answers is the result of the flow."""
    process = await asyncio.create_subprocess_exec(
        str(EXAMPLES / "start_flow.sh"),
        json.dumps({"seconds": 0.2, **init}),
        stdout=PIPE,
        stderr=STDOUT,
        env={**os.environ, "COUNTERFOIL_URL": node.url, "WORKER_URL": worker},
    )
    out, _ = await asyncio.wait_for(process.communicate(), 40)
    assert process.returncode == 0, out.decode()
    return json.loads(out.decode().splitlines()[-1])


@pytest.fixture(params=["worker.py", "plain_worker.py"])
async def worker(
    request: pytest.FixtureRequest, session: aiohttp.ClientSession, unused_tcp_port: int
) -> AsyncIterator[str]:
    """One of the example workers in a process of its own."""
    url = f"http://127.0.0.1:{unused_tcp_port}"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / request.param),
        stdout=DEVNULL,
        stderr=PIPE,
        env={**os.environ, "PORT": str(unused_tcp_port)},
    )

    async def listens() -> bool:
        assert process.returncode is None
        try:
            async with session.get(url):
                return True
        except aiohttp.ClientConnectionError:
            return False

    await eventually(listens, within=20, what=f"{request.param} listening")
    yield url
    process.terminate()
    _, log = await asyncio.wait_for(process.communicate(), 20)
    assert b"Traceback" not in log
    assert b"/webhook/" not in log


@once
async def test_a_thumbnail_is_made(node: Node, worker: str) -> None:
    result = await run_script(node, worker, {"image": "cat.png"})
    assert (result["status"], result["outputs"]) == ("completed", {"thumbnail": "small-cat.png"})


@once
async def test_busy_work_is_tried_again(node: Node, worker: str, session: aiohttp.ClientSession) -> None:
    result = await run_script(node, worker, {"image": "cat.png", "busy": True})
    assert result["status"] == "completed"
    async with session.get(f"{node.url}/api/v1/flows/{result['flow_id']}") as response:
        flow = await response.json()
    assert flow["steps"]["thumbnail"]["work"][0]["attempt"] == 2


@once
async def test_wrong_input_fails_for_good(node: Node, worker: str) -> None:
    result = await run_script(node, worker, {"image": None})
    assert result["status"] == "failed"
    assert "there is no image" in json.dumps(result["error"])


async def run_example(node: Node, name: str, port: int) -> list[str]:
    """Run an example that brings its own workers; what it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / name),
        stdout=PIPE,
        stderr=STDOUT,
        env={**os.environ, "COUNTERFOIL_URL": node.url, "PORT": str(port)},
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, out.decode()
    return out.decode().splitlines()


@once
async def test_one_order_ships_and_one_is_undone_in_reverse_order(node: Node, unused_tcp_port: int) -> None:
    assert await run_example(node, "order_fulfilment.py", unused_tcp_port) == [
        "an order that ships",
        "  reserve  lamp is reserved",
        "  charge   40 are charged",
        "  ship     on its way to Vienna",
        "  the flow has completed",
        "an order that does not",
        "  reserve  lamp is reserved",
        "  charge   40 are charged",
        "  ship     no carrier goes there",
        "  charge   undone: payment-of-40 is refunded",
        "  reserve  undone: shelf-lamp is free again",
        "  the flow has failed, undone: charge (completed), reserve (completed)",
    ]


@once
async def test_a_document_is_read_page_by_page(node: Node, unused_tcp_port: int) -> None:
    printed = await run_example(node, "document_pipeline.py", unused_tcp_port)
    assert printed[0] == "the plan: split -> read -> join"
    assert sorted(printed[1:4]) == [
        f"  the vendor has read {page!r}" for page in ("one outcome", "one receipt", "whatever happens")
    ]
    assert printed[4:] == [
        "the flow has completed",
        "  texts:   ['ONE RECEIPT', None, 'ONE OUTCOME', 'WHATEVER HAPPENS']",
        "  summary: ONE RECEIPT / ONE OUTCOME / WHATEVER HAPPENS",
    ]


@once
async def test_an_agent_that_died_pays_once(node: Node, unused_tcp_port: int) -> None:
    printed = await run_example(node, "agent_loop.py", unused_tcp_port)
    first, second, third = (printed.index(f"the {number} run") for number in ("first", "second", "third"))
    assert printed[first + 5 : second] == [
        "  (the bank: 40 are paid)",
        "  the agent crashes: the bank has paid, but the payment is not reported",
    ]
    assert [line.split(":")[0] for line in printed[second + 1 : third]] == [
        "  draft-1  is done already",
        "  review-1 is done already",
        "  draft-2  is done already",
        "  review-2 is done already",
        "  refund-1 was started before, with an unknown outcome",
        "  (the bank",
        "  refund-1 done",
        "  send-1   done",
    ]
    assert len(printed[third + 1 : -1]) == 6
    assert all("is done already" in line for line in printed[third + 1 : -1])
    assert printed[-1] == "the bank has paid 1 time"


@once
async def test_a_link_in_a_mail_is_opened_by_a_scanner_and_decides_nothing(node: Node, unused_tcp_port: int) -> None:
    printed = await run_example(node, "mail_approval.py", unused_tcp_port)
    scanned = ["scanner: 200 and nothing is decided"] * 3
    assert printed == [
        *scanned,
        "person:  yes -> thank you",
        "person:  yes -> thank you, again",
        "pay 500: completed {'asked': True, 'approved': True, 'paid': 500}",
        *scanned,
        "person:  no -> thank you",
        "person:  no -> thank you, again",
        "pay 90000: completed {'asked': True, 'approved': False}",
    ]


async def test_a_refund_is_paid_once_under_every_policy_but_pure() -> None:
    """It starts an engine of its own, and kills its worker in the middle of five refunds, twice."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLES / "effects.py"), stdout=PIPE, stderr=STDOUT
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, out.decode()
    printed = out.decode().splitlines()
    retried, held, reused = "not_completed -> succeeded", "held -> succeeded", "waits -> succeeded"
    assert [re.split(r" {2,}| (?=\d)", line) for line in printed if re.search(r" \d+ +\d+ ", line)] == [
        ["pure", "2", "1", retried, "a retry"],
        ["idempotent", "2", "1", retried, "a retry"],
        ["dedupe", "2", "1", retried, "a retry"],
        ["reconcile", "2", "1", held, "status_url: not_found"],
        ["unsafe_once", "2", "1", "held -> approved -> succeeded", "operator: not_applied"],
        ["dedupe, again", "0", "0", reused, "the result of the first"],
        ["pure", "2", "2", retried, "a retry"],
        ["idempotent", "2", "1", retried, "a retry"],
        ["dedupe", "2", "1", retried, "a retry"],
        ["reconcile", "1", "1", held, "status_url: done"],
        ["unsafe_once", "1", "1", held, "operator: applied"],
        ["dedupe, again", "0", "0", reused, "the result of the first"],
    ]
    assert printed[0] == "the worker is killed before the bank is called"
    assert printed[8] == "the worker is killed after the bank has paid"
    assert max(map(len, printed)) <= 80


def test_the_readme_tells_of_every_example() -> None:
    told = (EXAMPLES / "README.md").read_text()
    names = [path.name for path in EXAMPLES.iterdir() if path.is_file() and path.name != "README.md"]
    assert names
    assert [name for name in names if f"`{name}`" not in told] == []
