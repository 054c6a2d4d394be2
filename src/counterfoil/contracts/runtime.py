"""What calls run on: the dedup store, the hooks, the clock, and how long a call waits for another one with its key.

A contract is bound to a runtime when it is made, by ``bind`` (which returns another contract), or for a block by
``using``. There is no global store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from counterfoil.contracts.phases import AuditHook, PhaseHook
from counterfoil.contracts.stores.protocol import DedupStore
from counterfoil.contracts.stores.sqlite import system_clock
from counterfoil.domain.time import Clock

Sleep = Callable[[float], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class InFlightWait:
    """How a call waits while another one holds its key: it looks again after growing pauses. 0 seconds: not at all."""

    seconds: float = 10.0
    first_pause: float = 0.02
    longest_pause: float = 0.5


def new_holder() -> str:
    """The id of one call, not of a process: two calls of a process must not share a reservation."""
    return f"call-{uuid4().hex}"


@dataclass(frozen=True, slots=True)
class ContractRuntime:
    """Collaborators of a call; ``store`` None: only reads, and idempotent writes by resource id, can run."""

    store: DedupStore | None = None
    on_audit: AuditHook | None = None
    on_phase: PhaseHook | None = None
    wait: InFlightWait = InFlightWait()
    clock: Clock = system_clock
    sleep: Sleep = asyncio.sleep
    holder: Callable[[], str] = new_holder
    record_tries: int = 5
    """How often an outcome is sent to a store that does not answer, before the call fails as not recorded."""

    def changed(self, **changes: Any) -> ContractRuntime:
        """With other collaborators; ``wait`` may be a number of seconds."""
        if isinstance(wait := changes.get("wait"), int | float):
            changes["wait"] = InFlightWait(float(wait))
        return replace(self, **changes)


_current: ContextVar[ContractRuntime | None] = ContextVar("counterfoil_contract_runtime", default=None)


def current_runtime() -> ContractRuntime | None:
    """The runtime of the innermost ``using`` block."""
    return _current.get()


@contextlib.contextmanager
def using(store: DedupStore | None = None, **options: Any) -> Iterator[ContractRuntime]:
    """Run the contracts that are called inside the block, and that are not bound themselves, on this store.

    Tasks and threads (``asyncio.to_thread``) that are started inside the block are included.
    """
    runtime = (_current.get() or ContractRuntime()).changed(**({} if store is None else {"store": store}), **options)
    token = _current.set(runtime)
    try:
        yield runtime
    finally:
        _current.reset(token)
