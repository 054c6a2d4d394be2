"""Operations of many callers, decided one after another against the entries that one transaction has loaded.

Pure: the SQL stores load, ask ``decide`` and write what it says, so that both decide alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from counterfoil.contracts.stores.protocol import ReserveAnswer
from counterfoil.domain.effects.reservations import (
    AuditType,
    EffectEntry,
    EffectOutcome,
    ReserveRequest,
    complete,
    reserve,
    settle,
)

EffectId = tuple[str, str]
"""A tool and a key."""


@dataclass(frozen=True, slots=True)
class Reserving:
    request: ReserveRequest

    @property
    def effect(self) -> EffectId:
        return self.request.tool, self.request.key


@dataclass(frozen=True, slots=True)
class Completing:
    effect: EffectId
    fence: int
    outcome: EffectOutcome


@dataclass(frozen=True, slots=True)
class Settling:
    effect: EffectId
    outcome: EffectOutcome | None
    note: str | None = None


StoreOperation = Reserving | Completing | Settling


class AuditLine(NamedTuple):
    effect: EffectId
    at: int
    type: AuditType
    holder: str
    note: str | None


@dataclass(slots=True)
class BatchDecided:
    """``answers`` in the order of the operations; ``changed`` and ``audit`` are to be written."""

    answers: list[Any] = field(default_factory=list)
    changed: dict[EffectId, EffectEntry] = field(default_factory=dict)
    audit: list[AuditLine] = field(default_factory=list)


def effects_of(operations: Iterable[StoreOperation]) -> list[EffectId]:
    """The effects of a batch in one order for all processes, so that their locks cannot wait for each other."""
    return sorted({operation.effect for operation in operations})


def decide(
    operations: Sequence[StoreOperation], loaded: Mapping[EffectId, EffectEntry], now: int, floor: int
) -> BatchDecided:
    decided = BatchDecided()
    for operation in operations:
        effect = operation.effect
        entry = decided.changed.get(effect) or loaded.get(effect)
        answer: Any
        audit: AuditType | None
        note: str | None = None
        match operation:
            case Reserving(request):
                verdict, after, audit = reserve(entry, request, now, floor)
                answer = ReserveAnswer(
                    verdict, after.fence, after.holder, after.expires_at, after.outcome, after.recorded_at
                )
                holder = request.holder
                kept: EffectEntry | None = after
            case Completing(_, fence, outcome):
                answer, kept, audit = complete(entry, fence, outcome, now)
                holder = entry.holder if entry else ""
            case Settling(_, settled, note):
                answer, kept, audit = settle(entry, settled, now)
                holder = entry.holder if entry else ""
        decided.answers.append(answer)
        if kept is not None and kept is not entry:
            decided.changed[effect] = kept
        if audit is not None:
            decided.audit.append(AuditLine(effect, now, audit, holder, note))
    return decided
