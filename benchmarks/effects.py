"""The cost of shared keys: with very many recorded results over the same with few.

Keys are digests: in a small table the results of one batch share pages, in a large one each is on a page of its own.
So a result is forgotten more slowly there, but by no more than that.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path

import aiohttp

from benchmarks.fill import copy_results
from benchmarks.flows import Cycle, register
from benchmarks.measures import Measure, Outcome, Size, middle_of
from benchmarks.processes import Server, engine

IN_FLIGHT = 128
DEDUPE = {"policy": "dedupe"}
FORGOTTEN = 'counterfoil_swept_items_total{sweep="forgetting"} '


async def dedup(size: Size) -> list[Outcome]:
    """Flows/s of steps with the policy ``dedupe``, and results forgotten/s, with many recorded results over few."""
    with tempfile.TemporaryDirectory(prefix="counterfoil-bench-") as directory:
        few, many = Path(directory, "few"), Path(directory, "many")
        cycle = Cycle()
        endpoint = await cycle.serve()
        with engine(few) as server:
            await register(server, endpoint, DEDUPE)
            await cycle.run(server, 2 * IN_FLIGHT, IN_FLIGHT)
            server.stop()
        shutil.copytree(few, many)
        copy_results(few / "counterfoil.db", size.few_results)
        copy_results(many / "counterfoil.db", size.results)
        flows: dict[Path, list[float]] = {few: [], many: []}
        forgotten: dict[Path, list[float]] = {few: [], many: []}
        for turn in range(size.rounds):
            for data in (few, many) if turn % 2 else (many, few):
                copy_results(data / "counterfoil.db", size.forgotten, expired=True)
                with engine(data) as server:
                    forgotten[data].append(await _forget(server, size.forgotten))
                    await cycle.run(server, max(size.flows // 4, 2 * IN_FLIGHT), IN_FLIGHT)  # warm-up
                    flows[data].append((await cycle.run(server, size.flows, IN_FLIGHT)).rate)
                    server.stop()
    recorded = f"{size.results:,} recorded results over {size.few_results:,}"
    return [
        middle_of(f"flows/s with the policy dedupe, {recorded}", _ratios(flows[many], flows[few]), 0.9),
        middle_of(f"results forgotten/s, {recorded}", _ratios(forgotten[many], forgotten[few]), 0.9),
    ]


def _ratios(many: list[float], few: list[float]) -> list[float]:
    return [a / b for a, b in zip(many, few, strict=True)]


async def _forget(server: Server, count: int) -> float:
    """Results/s that the sweep forgets, from the start of the engine on."""
    started = time.perf_counter()
    async with aiohttp.ClientSession() as session:
        while await _forgotten(session, server) < count:
            await asyncio.sleep(0.02)
    return count / (time.perf_counter() - started)


async def _forgotten(session: aiohttp.ClientSession, server: Server) -> float:
    async with session.get(f"{server.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    found = [line.removeprefix(FORGOTTEN) for line in lines if line.startswith(FORGOTTEN)]
    return float(found[0]) if found else 0.0


MEASURES: dict[str, Measure] = {"dedup": dedup}
