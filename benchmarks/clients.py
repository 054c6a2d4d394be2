"""What it costs the engine that a completion comes from a client as workers use it, and not from the load generator.

Real clients are much slower than the engine, so what is measured is not them. Each client sends some completions to a
socket that records them; then the load generator sends the same bytes, cut in the same way, as fast as it can, in turns
with its own plain requests. Beside that, the client itself sends completions, and the processor time of the engine for
each of them is compared with that for plain requests at the same rate.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from benchmarks.flows import Receipts, register
from benchmarks.load import post_request
from benchmarks.measures import CONNECTIONS, Measure, Outcome, Size, Turn, in_starts, middle_of
from benchmarks.processes import Server, engine
from benchmarks.real_clients import CLIENTS, PLACEHOLDER, WORKERS
from benchmarks.segments import Pieces, send_all
from benchmarks.worker import RESULT

RAW = "raw"
TARGET = 0.9


class Run(NamedTuple):
    """What came of sending some completions: how many a second, and the engine's processor time for each."""

    rate: float
    server_seconds: float


class Round(NamedTuple):
    """One turn: the shapes of all clients by the load generator, and the clients themselves if it was their turn."""

    replayed: dict[str, Run]
    by_themselves: dict[str, tuple[Run, Run]]
    """Each with the plain requests that were sent at its rate."""


async def clients(size: Size) -> list[Outcome]:
    """(9) Completions/s in the shape in which real clients send them, over the raw client's; with server time."""
    shapes = {client: recorded(client) for client in CLIENTS}
    order = (RAW, *CLIENTS)
    sent_in_turn = min(1, size.turns // size.starts - 1)

    @contextlib.asynccontextmanager
    async def start() -> AsyncIterator[Turn[Round]]:
        receipts = Receipts()
        with engine() as server:
            await register(server, await receipts.serve())

            async def turn(number: int) -> Round:
                replayed = {}
                for client in (*order[number % len(order) :], *order[: number % len(order)]):
                    urls = await receipts.fill(server, size.completions)
                    replayed[client] = await _replay(server, shapes.get(client), urls, CONNECTIONS)
                themselves = {}
                for client in CLIENTS if number == sent_in_turn else ():
                    real = await _send_itself(client, server, await receipts.fill(server, size.completions))
                    urls = await receipts.fill(server, size.completions)
                    themselves[client] = real, await _replay(server, None, urls, WORKERS, real.rate)
                return Round(replayed, themselves)

            yield turn

    rounds = await in_starts(size, start)
    return [outcome for client in CLIENTS for outcome in _outcomes(client, rounds)]


def _outcomes(client: str, rounds: Sequence[Round]) -> list[Outcome]:
    replayed = [(each.replayed[client], each.replayed[RAW]) for each in rounds]
    own = [each.by_themselves[client] for each in rounds if each.by_themselves]
    times = " over ".join(
        f"{statistics.median(run.server_seconds for run in runs) * 1e6:.0f}" for runs in zip(*own, strict=True)
    )
    return [
        middle_of(
            f"completions/s as {client} sends them over the raw client's",
            [shaped.rate / raw.rate for shaped, raw in replayed],
            TARGET,
        ),
        middle_of(
            f"server time for each, as {client} sends them, over the raw client's",
            [shaped.server_seconds / raw.server_seconds for shaped, raw in replayed],
            None,
            at_least=False,
        ),
        middle_of(
            f"server time for each, sent by {client} itself, over the raw client's at its rate ({times} µs)",
            [sent.server_seconds / raw.server_seconds for sent, raw in own],
            None,
            at_least=False,
        ),
    ]


# ------------------------------------------------------------------------------------------------ shapes


def recorded(client: str) -> Pieces:
    """What the client sends for a completion: that of a session in use, which is the last one that it recorded."""
    pieces = json.loads(_run_client(client, "record"))[-1]
    return tuple(base64.b64decode(piece) for piece in pieces)


def addressed(shape: Pieces, url: str) -> Pieces:
    """The same for another work item."""
    parts = urlsplit(url)
    host = next(line for line in shape[0].split(b"\r\n") if line.lower().startswith(b"host: "))
    head = shape[0].replace(PLACEHOLDER.encode(), parts.path.encode(), 1)
    return head.replace(host, host[:6] + parts.netloc.encode(), 1), *shape[1:]


def _run_client(client: str, what: str, given: str = "") -> str:
    command = [sys.executable, "-m", "benchmarks.real_clients", client, what]
    return subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=True).stdout


# ------------------------------------------------------------------------------------------------ sending


async def _replay(
    server: Server, shape: Pieces | None, urls: list[str], connections: int, most_per_second: float | None = None
) -> Run:
    """Complete them in a client's shape, or in that of the load generator."""
    requests = [(post_request(url, RESULT),) if shape is None else addressed(shape, url) for url in urls]
    before = processor_seconds(server)
    rate = await send_all(server, requests, connections, most_per_second)
    return Run(rate, (processor_seconds(server) - before) / len(urls))


async def _send_itself(client: str, server: Server, urls: list[str]) -> Run:
    before = processor_seconds(server)
    seconds = float(await asyncio.to_thread(_run_client, client, "send", "\n".join(urls)))
    return Run(len(urls) / seconds, (processor_seconds(server) - before) / len(urls))


def processor_seconds(server: Server) -> float:
    """User and system time of all threads of a process, as the kernel counts it."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


MEASURES: dict[str, Measure] = {"clients": clients}
