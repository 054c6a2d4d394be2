"""``crash_between_phases``: a process killed at each phase of a call, and what a replay in another process does."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from counterfoil.contracts.errors import UnsafeOnceIncomplete
from counterfoil.contracts.phases import ContractPhase
from counterfoil.contracts.testing.callers import CallerLost, CallerProcess
from counterfoil.contracts.testing.reports import CallerAnswer, CheckReport, CountEffects, counted
from counterfoil.contracts.testing.targets import CheckTarget, Tool

Moment = Literal["begin", "end"]
TTL_MS = 1_000
"""Of reservations during the check: a replay waits until that of the dead caller lapses, whatever the contract says."""
UNREACHED = "the call ended before this phase"


@dataclass(frozen=True, slots=True)
class PhaseCrash:
    """One crash: effects until the process died, all effects after the replay, and the answer of the replay."""

    phase: ContractPhase
    moment: Moment
    effects_at_crash: int
    effects: int
    answer: CallerAnswer

    def __str__(self) -> str:
        return (
            f"  {self.moment:<5} of {self.phase:<8}  {self.effects_at_crash} at the crash, {self.effects} in all; "
            f"replay: {self.answer}"
        )


@dataclass(frozen=True)
class CrashReport(CheckReport):
    points: list[PhaseCrash] = field(default_factory=list)

    def lines(self) -> list[str]:
        return [str(point) for point in self.points]

    def at(self, phase: ContractPhase | str, moment: Moment = "end") -> PhaseCrash:
        return next(point for point in self.points if (point.phase, point.moment) == (phase, moment))


async def crash_between_phases(
    tool: str | Tool,
    arguments: Mapping[str, Any],
    *,
    effects: CountEffects,
    phases: Iterable[ContractPhase | str] = tuple(ContractPhase),
    moments: Iterable[Moment] = ("end",),
    given: Mapping[str, Any] | None = None,
    store: str | Path | None = None,
    call: Mapping[str, Any] | None = None,
    timeout: float = 30.0,
) -> CrashReport:
    """Kill (SIGKILL) a process at each phase of a call, then make the same call in another process.

    Each crash is about an action of its own: by its key, or by its step if ``call`` has conversation and step ids.
    Passed: the effect has happened once after every replay, and the replay answers with a result. A tool of the class
    ``irreversible`` may answer UNSAFE_ONCE_INCOMPLETE instead; then the effect has happened once or not at all, as it
    had at the crash. ``timeout`` is for one crash and its replay.
    """
    points: list[PhaseCrash] = []
    with tempfile.TemporaryDirectory() as folder:
        target = CheckTarget.of(tool, given, store or Path(folder) / "effects.db")
        async with CallerProcess(target, ttl_ms=TTL_MS, wait=TTL_MS / 1000 * 5) as replayer:
            for phase, moment in product(map(ContractPhase, phases), tuple(moments)):
                made = {**_identity(call, phase, moment), "arguments": dict(arguments)}
                try:
                    async with asyncio.timeout(timeout):
                        if not points:
                            await replayer.ready()
                        points.append(await _crashed(target, replayer, made, phase, moment, effects))
                except TimeoutError:
                    raise CallerLost(f"no replay after the {moment} of {phase} within {timeout} s") from None
    problems = [problem for point in points for problem in _problems(point)]
    return CrashReport(target.name, points, problems=problems).checked()


def _identity(call: Mapping[str, Any] | None, phase: ContractPhase, moment: Moment) -> dict[str, Any]:
    """The fields of the call besides its arguments: one action of its own for each crash."""
    given = dict(call or {})
    apart = f"{phase}-{moment}-{uuid4().hex}"
    if given.get("step_id") is not None:
        return {**given, "step_id": f"{given['step_id']}-{apart}"}
    return {**given, "idempotency_key": f"{given.get('idempotency_key', 'crash')}-{apart}"}


async def _crashed(
    target: CheckTarget,
    replayer: CallerProcess,
    call: Mapping[str, Any],
    phase: ContractPhase,
    moment: Moment,
    effects: CountEffects,
) -> PhaseCrash:
    before = await counted(effects)
    async with CallerProcess(target, kill_at=[phase, moment], ttl_ms=TTL_MS) as killed:
        await killed.ready()
        answers = await killed.call(call)
        code = await killed.ended()
    if code != -signal.SIGKILL:
        hint = str(answers[0]) if answers else f"exit code {code}"
        return PhaseCrash(phase, moment, 0, 0, CallerAnswer(error={"code": UNREACHED, "hint": hint}))
    at_crash = await counted(effects) - before
    replayed = await replayer.call(call)
    if not replayed:
        raise await replayer.lost()
    return PhaseCrash(phase, moment, at_crash, await counted(effects) - before, replayed[0])


def _problems(point: PhaseCrash) -> list[str]:
    where = f"after a crash at the {point.moment} of {point.phase}"
    if point.answer.code == UNREACHED:
        return [f"no crash at the {point.moment} of {point.phase}: {point.answer}"]
    if point.answer.code == UnsafeOnceIncomplete.code and point.effects == point.effects_at_crash <= 1:
        return []
    problems = []
    if point.effects != 1:
        problems.append(f"{where} and a replay, the effect has happened {point.effects} times, not once")
    if point.answer.error is not None:
        problems.append(f"{where}, the replay failed: {point.answer}")
    return problems
