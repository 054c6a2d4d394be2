"""``hammer``: one key, many callers at once, in several processes; exactly one effect, and one answer for all."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from counterfoil.contracts.testing.callers import CallerLost, CallerProcess
from counterfoil.contracts.testing.reports import CallerAnswer, CheckReport, CountEffects, counted
from counterfoil.contracts.testing.targets import CheckTarget, Tool


@dataclass(frozen=True)
class HammerReport(CheckReport):
    """``effects``: how often the effect happened; ``answers``: what each caller got."""

    effects: int = 0
    answers: list[CallerAnswer] = field(default_factory=list)

    def lines(self) -> list[str]:
        seen = Counter(map(str, self.answers))
        return [
            f"{self.effects} effects, {len(self.answers)} answers:",
            *(f"  {n} x {what}" for what, n in seen.items()),
        ]


async def hammer(
    tool: str | Tool,
    arguments: Mapping[str, Any],
    *,
    effects: CountEffects,
    key: str | None = None,
    callers: int = 100,
    processes: int = 4,
    expected: int = 1,
    given: Mapping[str, Any] | None = None,
    store: str | Path | None = None,
    call: Mapping[str, Any] | None = None,
    timeout: float = 60.0,
) -> HammerReport:
    """Call a tool with one key from ``callers`` tasks, spread over ``processes`` processes that start together.

    ``effects`` counts what happened downstream, before and after. ``expected``: effects of one action; 0 for a call
    that fails without one. ``store``: file of the dedup store, for contracts that are not bound; a new one, unless
    given. ``call``: other fields of the ToolCall, such as ``scope``, or conversation and step ids in place of a key.
    Callers may be told RETRY_IN_FLIGHT; all others must get the same answer.
    """
    made = {**(call or {}), "arguments": dict(arguments)}
    if key is not None or made.get("step_id") is None:
        made["idempotency_key"] = key or f"hammer-{uuid4().hex}"
    with tempfile.TemporaryDirectory() as folder:
        target = CheckTarget.of(tool, given, store or Path(folder) / "effects.db")
        before = await counted(effects)
        try:
            async with asyncio.timeout(timeout):
                answers = await _hammered(target, made, _shares(callers, processes))
        except TimeoutError:
            raise CallerLost(f"the callers of {target.name} did not end within {timeout} s") from None
        landed = await counted(effects) - before
    problems = _problems(landed, expected, answers, callers)
    return HammerReport(target.name, landed, answers, problems=problems).checked()


async def _hammered(target: CheckTarget, call: Mapping[str, Any], shares: list[int]) -> list[CallerAnswer]:
    async with AsyncExitStack() as stack:
        started = [await stack.enter_async_context(CallerProcess(target)) for _ in shares]
        await asyncio.gather(*(each.ready() for each in started))
        answers = await asyncio.gather(*(each.call(call, share) for each, share in zip(started, shares, strict=True)))
        for caller, share, found in zip(started, shares, answers, strict=True):
            if len(found) < share:
                raise await caller.lost()
    return [answer for found in answers for answer in found]


def _shares(callers: int, processes: int) -> list[int]:
    """How many callers each process has: one at least."""
    if callers < 1 or processes < 1:
        raise ValueError("hammer needs one caller and one process at least")
    processes = min(processes, callers)
    return [callers // processes + (number < callers % processes) for number in range(processes)]


def _problems(landed: int, expected: int, answers: list[CallerAnswer], callers: int) -> list[str]:
    problems = []
    if landed != expected:
        problems.append(f"{callers} callers with one key had {landed} effects, not {expected}")
    told = [answer for answer in answers if not answer.is_in_flight]
    if not told:
        problems.append("no caller was told how the call ended")
    if len({answer.identity for answer in told}) > 1:
        problems.append("callers with one key got different answers")
    return problems
