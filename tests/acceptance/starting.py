"""Engines that do not start, and what those that do have to say."""

from __future__ import annotations

import orjson

from tests.acceptance.processes import EngineProcess


async def refused(engine: EngineProcess) -> str:
    """The one line with which an engine ends instead of serving."""
    await engine.spawn()
    assert await engine.wait() == 1
    [line] = [line for line in engine.output().splitlines() if line.startswith("error: ")]
    return line


def logged(engine: EngineProcess, event: str) -> list[dict[str, object]]:
    """The entries of its log, as JSON, since it was last started."""
    lines = [line for line in engine.output().splitlines() if line.startswith("{")]
    return [entry for entry in map(orjson.loads, lines) if entry["event"] == event]
