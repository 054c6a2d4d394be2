"""One call, in eight phases: receive, validate, look up, reserve, execute, record, audit, return.

What holds at each point: nothing is executed before the reservation is durable; nothing is returned as a success
before the outcome is durable. A call that ends in between leaves its reservation pending, and the next one with the
same key is decided by the class of the tool:

| class | reservation lapsed | store unreachable | outcome unknown |
| --- | --- | --- | --- |
| read | - | executed | retriable |
| write-idempotent | executed again | executed without a reservation | retriable |
| write-non-idempotent | executed again, same key | refused | retriable, same key |
| irreversible | refused until settled | refused | not retriable |
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from counterfoil.contracts.calls import ToolCall
from counterfoil.contracts.declaration import ContractTerms
from counterfoil.contracts.endings import CallEnding, ended_by, ended_with
from counterfoil.contracts.errors import (
    CallInFlight,
    ContractViolation,
    DedupUnavailable,
    EffectKeyConflict,
    HolderFenced,
    NotRecorded,
    OutcomeConflict,
    OutcomeUnknown,
    ToolError,
    Transient,
    UnsafeOnceIncomplete,
    recorded_failure,
)
from counterfoil.contracts.phases import AuditEvent, ContractPhase, PhaseEvent
from counterfoil.contracts.runtime import ContractRuntime
from counterfoil.contracts.stores.protocol import DedupStore, DedupStoreUnavailable, ReserveAnswer
from counterfoil.contracts.validation import check_call
from counterfoil.domain.effects.reservations import (
    AuditType,
    CompleteVerdict,
    EffectOutcome,
    ReserveRequest,
    ReserveVerdict,
)

logger = logging.getLogger("counterfoil.contracts")

M = TypeVar("M", bound=BaseModel)
R = TypeVar("R")

RECORD_FIRST_PAUSE, RECORD_LONGEST_PAUSE = 0.1, 2.0
GOES_ON = frozenset({ReserveVerdict.GRANTED, ReserveVerdict.RENEWED})
UNTOLD = {"refusable": "call_refused", "executing": "outcome_unknown"}
"""The audit entry of a call that ends with an error, by how far it came; one whose outcome is recorded has its own."""

Execute = Callable[[ToolCall[Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class CallParts(Generic[M, R]):
    """What a contract knows of its tool, besides its terms."""

    terms: ContractTerms
    model: type[M]
    result: TypeAdapter[R]
    execute: Execute


class CallSequence(Generic[M, R]):
    """One call of one contract, on one runtime. It is used once."""

    def __init__(self, parts: CallParts[M, R], runtime: ContractRuntime, call: ToolCall[Any]) -> None:
        self._parts = parts
        self._terms = parts.terms
        self._runtime = runtime
        self._call = call
        self._holder = runtime.holder()
        self._key: str | None = call.idempotency_key
        self._fence: int | None = None
        self._request: ReserveRequest | None = None
        self._expires_at = 0
        self._progress: Literal["refusable", "executing", "told"] = "refusable"

    async def run(self) -> R:
        try:
            return await self._phases()
        except ToolError as error:
            if self._progress in UNTOLD and not error.replayed:
                await self._audit(UNTOLD[self._progress], code=error.code)
            raise

    async def _phases(self) -> R:
        await self._enter(ContractPhase.RECEIVE)
        await self._leave(ContractPhase.RECEIVE)
        call, store = await self._validate()
        if store is None:
            return await self._unreserved(call)
        try:
            answer = await self._look_up(store)
        except DedupStoreUnavailable as error:
            if self._terms.effect != "write-idempotent":
                raise DedupUnavailable from error
            logger.warning("tool %s is executed without a reservation: %s", self._terms.name, error)
            return await self._unreserved(call)
        if answer.verdict is ReserveVerdict.RECORDED:
            return await self._replay(answer)
        self._fence, self._expires_at = answer.fence, answer.expires_at
        await self._enter(ContractPhase.RESERVE)
        await self._leave(ContractPhase.RESERVE)
        await self._audit(AuditType.RESERVED)
        ending = await self._execute(replace(call, fence=self._fence), store)
        await self._record(store, ending)
        return await self._return(ending)

    # -- validate ------------------------------------------------------------------------------

    async def _validate(self) -> tuple[ToolCall[M], DedupStore | None]:
        """The call with checked arguments and its key, and the store that it needs; None: it needs none."""
        await self._enter(ContractPhase.VALIDATE)
        call, self._request = check_call(self._terms, self._parts.model, self._call, self._holder)
        self._key = call.idempotency_key
        store = self._runtime.store if self._request is not None else None
        if self._request is not None and store is None:
            raise ContractViolation(
                f"{self._terms.name} is not bound to a dedup store: use bind(store) or using(store)"
            )
        await self._leave(ContractPhase.VALIDATE)
        return call, store

    # -- look up and reserve -------------------------------------------------------------------

    async def _look_up(self, store: DedupStore) -> ReserveAnswer:
        """Look up and reserve in one atomic statement; waits, for a bounded time, while another call holds the key."""
        await self._enter(ContractPhase.LOOK_UP)
        wait = self._runtime.wait
        waited, pause = 0.0, wait.first_pause
        while (answer := await self._reserve(store)).verdict is ReserveVerdict.IN_FLIGHT:
            left = wait.seconds - waited
            if left <= 0:
                raise CallInFlight(retry_after=self._until(answer.expires_at))
            await self._runtime.sleep(min(pause, left))
            waited += min(pause, left)
            pause = min(pause * 1.5, wait.longest_pause)
        if answer.verdict is ReserveVerdict.INCOMPLETE:
            raise UnsafeOnceIncomplete(self._terms.name, self._key or "", answer.holder)
        if answer.verdict is ReserveVerdict.KEY_REUSED:
            raise EffectKeyConflict
        await self._leave(ContractPhase.LOOK_UP)
        return answer

    async def _reserve(self, store: DedupStore) -> ReserveAnswer:
        assert self._request is not None, "a call that reserves has a key"
        return await store.reserve(self._request)

    async def _replay(self, answer: ReserveAnswer) -> R:
        """The recorded outcome of an earlier call: its result, or its failure."""
        await self._enter(ContractPhase.AUDIT)
        await self._audit(AuditType.DEDUP_HIT, fence=answer.fence)
        await self._leave(ContractPhase.AUDIT)
        outcome = answer.outcome or EffectOutcome(success=True)
        await self._enter(ContractPhase.RETURN)
        if not outcome.success:
            raise recorded_failure(outcome.error)
        try:
            result = self._parts.result.validate_python(outcome.result)
        except ValidationError as error:
            raise ContractViolation(
                f"the recorded result does not fit the return type of {self._terms.name} {self._terms.version}"
            ) from error
        await self._leave(ContractPhase.RETURN)
        return result

    # -- execute -------------------------------------------------------------------------------

    async def _unreserved(self, call: ToolCall[M]) -> R:
        """Reads, and idempotent writes that need no store, or whose store does not answer."""
        ending = await self._execute(call, None)
        await self._enter(ContractPhase.AUDIT)
        self._progress = "told"
        await self._audit("effect_executed", code=ending.code)
        await self._leave(ContractPhase.AUDIT)
        return await self._return(ending)

    async def _execute(self, call: ToolCall[M], store: DedupStore | None) -> CallEnding:
        """Run the tool, and again after a transient error, with the same key."""
        self._progress = "executing"
        for attempt in range(1, self._terms.retries.retries + 2):
            await self._enter(ContractPhase.EXECUTE, attempt)
            try:
                made = await self._parts.execute(replace(call, attempt=attempt, fence=self._fence))
            except Exception as error:  # noqa: BLE001 (its contract says what an exception means)
                ending = self._ended_by(error)
            else:
                ending = ended_with(self._terms, self._parts.result, made)
            if not isinstance(ending.failure, Transient):
                await self._leave(ContractPhase.EXECUTE, attempt)
                return ending
            await self._leave(ContractPhase.EXECUTE, attempt)
            again = attempt <= self._terms.retries.retries and self._may_repeat(ending.failure)
            if not again or not await self._go_on(attempt, store):
                raise self._exhausted(ending.failure)
        raise AssertionError("the last attempt ends the loop")

    def _ended_by(self, error: Exception) -> CallEnding:
        try:
            return ended_by(self._terms, error)
        except OutcomeUnknown as unknown:
            if unknown.retriable and self._fence is not None:
                unknown.retry_after = self._until(self._expires_at)
            raise

    def _may_repeat(self, error: Transient) -> bool:
        """An irreversible effect is tried again only if the tool says that it surely did not happen."""
        return self._terms.effect != "irreversible" or error.not_applied

    async def _go_on(self, attempt: int, store: DedupStore | None) -> bool:
        """Pause, and renew the reservation for the next attempt; False: it is lost, or the store does not answer."""
        await self._runtime.sleep(self._terms.retries.pause(attempt))
        if store is None:
            return True
        try:
            answer = await self._reserve(store)
        except DedupStoreUnavailable:
            return False
        if answer.verdict not in GOES_ON:
            return False
        self._fence, self._expires_at = answer.fence, answer.expires_at
        if answer.verdict is ReserveVerdict.GRANTED:  # it had lapsed, and no other caller had asked for it
            await self._audit(AuditType.RESERVED)
        return True

    def _exhausted(self, error: Transient) -> Transient:
        """The reservation is kept: a repeat before it lapses would be told to wait."""
        error.retriable = self._may_repeat(error)
        if not error.retriable:
            error.corrective_action = UnsafeOnceIncomplete.default_action
        elif self._fence is not None:
            error.retry_after = self._until(self._expires_at)
        return error

    # -- record, audit, return -----------------------------------------------------------------

    async def _record(self, store: DedupStore, ending: CallEnding) -> None:
        await self._enter(ContractPhase.RECORD)
        recording = asyncio.ensure_future(self._recorded(store, ending))
        try:
            verdict = await asyncio.shield(recording)
        except asyncio.CancelledError:
            await asyncio.wait({recording})  # the effect has happened: its outcome is recorded all the same
            raise
        if verdict is None:
            if self._terms.effect != "write-idempotent":
                result = None if ending.failure else self._parts.result.validate_python(ending.document)
                raise NotRecorded(result=result, failure=ending.failure)
            logger.warning("the outcome of tool %s is not recorded: a repeat executes it again", self._terms.name)
        elif verdict in (CompleteVerdict.FENCED, CompleteVerdict.UNKNOWN):
            raise HolderFenced(retriable=self._terms.effect != "irreversible")
        elif verdict is CompleteVerdict.CONFLICTING:
            raise OutcomeConflict
        await self._leave(ContractPhase.RECORD)
        await self._enter(ContractPhase.AUDIT)
        self._progress = "told"
        await self._audit(AuditType.COMPLETED if verdict else "effect_executed", code=ending.code)
        await self._leave(ContractPhase.AUDIT)

    async def _recorded(self, store: DedupStore, ending: CallEnding) -> CompleteVerdict | None:
        """Send the outcome until the store answers; None: it did not. A repeat is safe, since it changes nothing."""
        assert self._fence is not None, "a call that records has a reservation"
        pause = RECORD_FIRST_PAUSE
        for attempt in range(1, self._runtime.record_tries + 1):
            try:
                return await store.complete(self._terms.name, self._key or "", self._fence, ending.outcome())
            except Exception as error:  # noqa: BLE001 (whatever it is, the outcome is not recorded)
                logger.warning("the outcome of tool %s could not be recorded: %r", self._terms.name, error)
            if attempt < self._runtime.record_tries:
                await self._runtime.sleep(pause)
                pause = min(pause * 2, RECORD_LONGEST_PAUSE)
        return None

    async def _return(self, ending: CallEnding) -> R:
        """Every caller gets what the store holds, so that the first one and those after it get the same."""
        await self._enter(ContractPhase.RETURN)
        if ending.failure is not None:
            raise ending.failure
        result = self._parts.result.validate_python(ending.document)
        await self._leave(ContractPhase.RETURN)
        return result

    # -- hooks ---------------------------------------------------------------------------------

    def _until(self, moment: int) -> float:
        return max(0.0, (moment - self._runtime.clock()) / 1000)

    async def _enter(self, phase: ContractPhase, attempt: int = 1) -> None:
        if self._runtime.on_phase is not None:
            await self._tell(phase, "begin", attempt)

    async def _leave(self, phase: ContractPhase, attempt: int = 1) -> None:
        if self._runtime.on_phase is not None:
            await self._tell(phase, "end", attempt)

    async def _tell(self, phase: ContractPhase, moment: Literal["begin", "end"], attempt: int) -> None:
        assert self._runtime.on_phase is not None
        told = self._runtime.on_phase(PhaseEvent(phase, moment, self._terms.name, self._key, attempt, self._fence))
        if inspect.isawaitable(told):
            await told

    async def _audit(self, kind: str, *, code: str | None = None, fence: int | None = None) -> None:
        """Tell ``on_audit``. The store has written its own entry in the transaction that the entry is about."""
        hook, terms = self._runtime.on_audit, self._terms
        if hook is None:
            return
        now = self._runtime.clock()
        entry = AuditEvent(
            str(kind), terms.name, terms.version, self._key, self._holder, now, fence or self._fence, code
        )
        try:
            told = hook(entry)
            if inspect.isawaitable(told):
                await told
        except Exception:
            logger.exception("on_audit failed for tool %s", terms.name)
