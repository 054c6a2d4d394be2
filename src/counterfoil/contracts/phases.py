"""The eight phases of a call, and the hook by which tests and tracing see each of them begin and end.

``look_up`` and ``reserve`` are one atomic statement of the store, as are ``record`` and the store's part of ``audit``:
two callers can never both find a key absent. So ``reserve`` begins when the reservation is durable already.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal


class ContractPhase(StrEnum):
    RECEIVE = "receive"
    VALIDATE = "validate"
    LOOK_UP = "look_up"
    RESERVE = "reserve"
    EXECUTE = "execute"
    RECORD = "record"
    AUDIT = "audit"
    RETURN = "return"


@dataclass(frozen=True, slots=True)
class PhaseEvent:
    """A phase of a call begins or ends. ``attempt`` counts the executions inside the call, from 1."""

    phase: ContractPhase
    moment: Literal["begin", "end"]
    tool: str
    key: str | None
    attempt: int = 1
    fence: int | None = None


PhaseHook = Callable[[PhaseEvent], Awaitable[Any] | None]
"""Called at each event. What it raises ends the call at that point, like a crash: nothing is undone or recorded."""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """An entry of the audit trail, as ``on_audit`` receives it; the store keeps those of the types that it writes.

    Types of the store: ``effect_reserved``, ``dedup_hit``, ``effect_completed``, ``effect_settled``. Others are told to
    ``on_audit`` only: ``call_refused`` (nothing was executed), ``effect_executed`` (without a record in the store) and
    ``outcome_unknown`` (executed, and left pending).
    """

    type: str
    tool: str
    version: str
    key: str | None
    holder: str
    at: int
    fence: int | None = None
    code: str | None = None


AuditHook = Callable[[AuditEvent], Awaitable[Any] | None]
"""Called once for each entry. What it raises is logged: it changes no outcome."""
