"""The effects API: commands that reserve, complete, settle and forget effects of tools, and their service."""

from __future__ import annotations

from dataclasses import dataclass

from counterfoil.domain.effects.effect_requests import CompleteEffect, ReserveEffect, SettleEffect
from counterfoil.domain.effects.reservations import ReserveVerdict
from counterfoil.domain.effects.reserved_effects import (
    ReservedEffect,
    bucket_of,
    complete_effect,
    effect_id,
    reserve_effect,
    settle_effect,
)
from counterfoil.domain.errors import CounterfoilError
from counterfoil.engine.context import EngineContext
from counterfoil.engine.queries.effect_documents import completed_effect, reserved_effect, settled_effect
from counterfoil.engine.queries.reservation_queries import ReservationQueries
from counterfoil.observability.metrics import Metrics
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.kinds.effects import FENCES, RESERVATIONS
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.read_set import Find, ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.wire.effects import EffectCompleted, EffectReserved, EffectSettled


@dataclass(slots=True)
class Reserve:
    """``POST /api/v1/effects``."""

    request: ReserveEffect
    effect_id: str

    def needs(self, needs: ReadSet) -> None:
        needs.reservations.add(self.effect_id)
        needs.fences.add(bucket_of(self.effect_id))

    def decide(self, unit: UnitOfWork, now: int) -> tuple[ReservedEffect, ReserveVerdict]:
        records, bucket = unit.records(RESERVATIONS), bucket_of(self.effect_id)
        found = records.get(self.effect_id)
        record, verdict = reserve_effect(found, unit.records(FENCES).get(bucket) or 0, self.request, now)
        records.put(self.effect_id, record)
        return record, verdict


@dataclass(slots=True)
class RecordOutcome:
    """``POST /api/v1/effects/{tool}/{key}/complete``."""

    effect_id: str
    request: CompleteEffect

    def needs(self, needs: ReadSet) -> None:
        needs.reservations.add(self.effect_id)

    def decide(self, unit: UnitOfWork, now: int) -> tuple[ReservedEffect, bool]:
        """The record, and whether the same outcome was recorded already."""
        records = unit.records(RESERVATIONS)
        record, duplicate = complete_effect(records.get(self.effect_id), self.request, now)
        if not duplicate:
            records.put(self.effect_id, record)
        return record, duplicate


@dataclass(slots=True)
class SettleReservation:
    """``POST /api/v1/effects/{tool}/{key}/settle``."""

    effect_id: str
    request: SettleEffect
    by: str

    def needs(self, needs: ReadSet) -> None:
        needs.reservations.add(self.effect_id)

    def decide(self, unit: UnitOfWork, now: int) -> ReservedEffect:
        records = unit.records(RESERVATIONS)
        record = settle_effect(records.get(self.effect_id), self.request, self.by, now)
        records.put(self.effect_id, record)
        return record


@dataclass(slots=True)
class ForgetEffect:
    """Forget a record whose window has passed; the fence floor of its bucket is raised in the same transaction."""

    effect_id: str

    def needs(self, needs: ReadSet) -> None:
        needs.reservations.add(self.effect_id)
        needs.fences.add(bucket_of(self.effect_id))

    def decide(self, unit: UnitOfWork, now: int) -> bool:
        records, floors = unit.records(RESERVATIONS), unit.records(FENCES)
        record, bucket = records.get(self.effect_id), bucket_of(self.effect_id)
        if record is None or not record.is_forgettable(now):
            return False
        floor = floors.get(bucket) or 0
        if record.fence > floor:
            floors.put(bucket, record.fence)
        records.put(self.effect_id, None)
        return True


class Reservations:
    """The use cases of the effects API."""

    def __init__(self, store: Store, context: EngineContext, commit: GroupCommit, metrics: Metrics) -> None:
        self._commit = commit
        self._metrics = metrics
        self.queries = ReservationQueries(store, context)

    async def reserve(self, request: ReserveEffect) -> tuple[EffectReserved, bool]:
        """The reservation or the recorded outcome, and whether the caller was granted a new reservation."""
        command = Reserve(request, effect_id(request.tool, request.key))
        try:
            record, verdict = await self._commit.submit(command)
        except CounterfoilError as error:
            self._metrics.effect_requested(error.code)
            raise
        self._metrics.effect_requested("dedup_hit" if verdict is ReserveVerdict.RECORDED else verdict)
        return reserved_effect(record), verdict is ReserveVerdict.GRANTED

    async def complete(self, tool: str, key: str, request: CompleteEffect) -> EffectCompleted:
        record, duplicate = await self._commit.submit(RecordOutcome(effect_id(tool, key), request))
        if not duplicate:
            self._metrics.effect_ended(record.state)
        return completed_effect(record, duplicate=duplicate)

    async def settle(self, tool: str, key: str, request: SettleEffect, by: str) -> EffectSettled:
        record = await self._commit.submit(SettleReservation(effect_id(tool, key), request, by))
        self._metrics.effect_ended(record.state)
        return settled_effect(record)

    def forgettable(self, now: int, limit: int) -> ForEach[bool]:
        """The search for records whose window has passed, and the command for each."""
        return ForEach(Find.of("find_forgettable_effects", now=now, limit=limit), ForgetEffect)
