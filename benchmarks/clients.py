"""What it costs the engine that a completion comes from a client as workers use it, and not from the load generator.

Real clients are much slower than the engine, so what is measured is not them. Each client sends some completions to a
socket that records them; then the load generator sends the same bytes, cut in the same way, as fast as it can, in turns
with its own plain requests. Beside that, the client itself sends completions, and the processor time of the engine for
each of them is compared with that for plain requests at the same rate. There the size of the batches is shown as well:
a batch has a fixed cost, which few completions share if a client sends them one after the other.
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
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
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
    """What came of sending some completions: how many a second, and what each cost the engine."""

    rate: float
    server_seconds: float
    """The engine's processor time for each."""
    batched: float
    """How many commands the engine committed in one transaction, on average."""


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
    times = _over(own, lambda run: run.server_seconds * 1e6, ".0f")
    batches = _over(own, lambda run: run.batched, ".1f")
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
            f"server time for each, sent by {client} itself, over the raw client's at its rate "
            f"({times} µs, {batches} in a batch)",
            [sent.server_seconds / raw.server_seconds for sent, raw in own],
            None,
            at_least=False,
        ),
    ]


def _over(own: Sequence[tuple[Run, Run]], figure: Callable[[Run], float], form: str) -> str:
    """The medians of a figure, sent by the client itself over sent by the raw client."""
    return " over ".join(f"{statistics.median(map(figure, runs)):{form}}" for runs in zip(*own, strict=True))


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
    spent = _Spent(server)
    rate = await send_all(server, requests, connections, most_per_second)
    return spent.run(rate, len(urls))


async def _send_itself(client: str, server: Server, urls: list[str]) -> Run:
    spent = _Spent(server)
    seconds = float(await asyncio.to_thread(_run_client, client, "send", "\n".join(urls)))
    return spent.run(len(urls) / seconds, len(urls))


class _Spent:
    """What the engine spends from the making of this object on."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._commands, self._batches = batches(server)
        self._seconds = processor_seconds(server)

    def run(self, rate: float, completions: int) -> Run:
        seconds = processor_seconds(self._server) - self._seconds
        commands, made = batches(self._server)
        return Run(rate, seconds / completions, (commands - self._commands) / (made - self._batches))


def batches(server: Server) -> tuple[float, float]:
    """How many commands the engine has committed, and in how many transactions."""
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        lines = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[:1] != "#")
    return float(lines["counterfoil_batch_size_sum"]), float(lines["counterfoil_batch_size_count"])


def processor_seconds(server: Server) -> float:
    """User and system time of all threads of a process, as the kernel counts it."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


MEASURES: dict[str, Measure] = {"clients": clients}
