"""``window``: whether the downstream system honours keys as long as the contract claims.

Two parts. The declarations: the contract names a ``downstream_window``, and it is not shorter than its own. The truth:
the tool is called, the downstream system's time is moved on, and the tool is called again with the same key and an
empty dedup store, as after the loss of everything that the contract layer knew; the effect must not happen again. Each
probe has a key of its own, and goes further into the window than the one before.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from counterfoil.contracts.calls import ToolCall
from counterfoil.contracts.declaration import ContractTerms
from counterfoil.contracts.stores.sqlite import SqliteDedupStore
from counterfoil.contracts.testing.reports import CallerAnswer, CheckReport, CountEffects, counted
from counterfoil.contracts.testing.targets import Contract, contract_of
from counterfoil.domain.effects.policies import window_ms

Advance = Callable[[float], Awaitable[Any] | Any]
"""Moves the time of the downstream system on by seconds: the clock of its sandbox, or of its test double."""

SHARES = (1 / 64, 1 / 8, 1 / 2, 1.0)
"""How far into the window the probes go, unless told."""
MARGIN_SECONDS = 1.0
HORIZON = "365d"
"""How far a window is probed that never ends."""


@dataclass(frozen=True, slots=True)
class WindowProbe:
    """A repeat ``after`` seconds: how many effects both calls had, and the answer of the second one."""

    after: float
    effects: int
    answer: CallerAnswer

    @property
    def honoured(self) -> bool:
        return self.effects == 1

    def __str__(self) -> str:
        verdict = "honoured" if self.honoured else f"{self.effects} effects"
        return f"  the key again after {_shown(self.after)}: {verdict}; {self.answer}"


@dataclass(frozen=True)
class WindowReport(CheckReport):
    window: str = ""
    downstream_window: str | None = None
    probes: list[WindowProbe] = field(default_factory=list)

    def lines(self) -> list[str]:
        return [f"window {self.window}, declared downstream {self.downstream_window}", *map(str, self.probes)]


async def window(
    tool: str | Contract,
    arguments: Mapping[str, Any] | None = None,
    *,
    effects: CountEffects | None = None,
    advance: Advance | None = None,
    after: Iterable[float] | None = None,
    horizon: str = HORIZON,
    given: Mapping[str, Any] | None = None,
    call: Mapping[str, Any] | None = None,
) -> WindowReport:
    """Compare the declared windows; with ``advance`` (and ``arguments`` and ``effects``), probe the downstream system.

    ``after``: the seconds of the probes, instead of shares of the window. Against a system whose time cannot be moved,
    ``advance=asyncio.sleep`` and a short ``after`` find at least the system that does not honour keys at all.
    """
    contract = contract_of(tool, given)
    terms = contract.terms
    problems = _declared(terms)
    probes: list[WindowProbe] = []
    if advance is not None:
        if arguments is None or effects is None:
            raise ValueError("a probe needs arguments to call the tool with, and a way to count effects")
        for seconds in sorted(after if after is not None else _moments(terms, horizon)):
            probe = await _probed(contract, dict(arguments), dict(call or {}), effects, advance, seconds)
            probes.append(probe)
            if not probe.honoured:
                problems.append(_lie(terms, probes))
                break
    return WindowReport(terms.name, terms.window, terms.downstream_window, probes, problems=problems).checked()


def _declared(terms: ContractTerms) -> list[str]:
    """A contract cannot be made with a downstream window that is shorter; without one, it may be."""
    if not terms.is_write or terms.downstream_window is not None or terms.resource:
        return []
    return ["the contract declares no downstream_window: how long the downstream system honours a key is not known"]


def _moments(terms: ContractTerms, horizon: str) -> list[float]:
    length = terms.window_ms if terms.window_ms is not None else window_ms(horizon)
    if length is None:
        raise ValueError("the horizon of a window that never ends must have an end")
    seconds = length / 1000
    return [max(share * seconds - MARGIN_SECONDS, 0.0) for share in SHARES]


async def _probed(
    contract: Contract,
    arguments: dict[str, Any],
    identity: dict[str, Any],
    effects: CountEffects,
    advance: Advance,
    seconds: float,
) -> WindowProbe:
    key = f"window-{uuid4().hex}"
    before = await counted(effects)
    await _forgetful(contract, arguments, {**identity, "idempotency_key": key})
    moved = advance(seconds)
    if inspect.isawaitable(moved):
        await moved
    answer = await _forgetful(contract, arguments, {**identity, "idempotency_key": key})
    return WindowProbe(seconds, await counted(effects) - before, answer)


async def _forgetful(contract: Contract, arguments: dict[str, Any], identity: dict[str, Any]) -> CallerAnswer:
    """A call on a dedup store that knows nothing of earlier calls, and that is forgotten after it."""
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteDedupStore(Path(folder) / "effects.db")
        try:
            return CallerAnswer.of_result(await contract.bind(store).run(ToolCall(arguments, **identity)))
        except Exception as error:  # noqa: BLE001 (every end of a call is an answer)
            return CallerAnswer.of_exception(error)
        finally:
            store.close()


def _lie(terms: ContractTerms, probes: list[WindowProbe]) -> str:
    last = probes[-1]
    since = f"honoured after {_shown(probes[-2].after)}, and " if len(probes) > 1 else ""
    if last.effects == 0:
        return f"neither of two calls had an effect: {last.answer}"
    return (
        f"the contract claims a window of {terms.window}, but the downstream system does not: a key is {since}"
        f"no longer honoured after {_shown(last.after)} ({last.effects} effects)"
    )


def _shown(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
