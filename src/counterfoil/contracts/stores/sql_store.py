"""What the dedup stores that write by SQL have in common: operations are submitted, and answered after their commit."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self

from counterfoil.contracts.stores.batches import Completing, Reserving, Settling, StoreOperation
from counterfoil.contracts.stores.protocol import ReserveAnswer, SettledAs, outcome_of
from counterfoil.domain.effects.reservations import CompleteVerdict, EffectOutcome, ReserveRequest, SettleVerdict


class SqlDedupStore(ABC):
    """See stores/protocol.py."""

    @abstractmethod
    async def _submit(self, operation: StoreOperation) -> Any:
        """Have an operation decided and committed together with those of other callers; its answer."""

    @abstractmethod
    async def aclose(self) -> None: ...

    async def reserve(self, request: ReserveRequest) -> ReserveAnswer:
        answer: ReserveAnswer = await self._submit(Reserving(request))
        return answer

    async def complete(self, tool: str, key: str, fence: int, outcome: EffectOutcome) -> CompleteVerdict:
        verdict: CompleteVerdict = await self._submit(Completing((tool, key), fence, outcome))
        return verdict

    async def settle(
        self,
        tool: str,
        key: str,
        outcome: SettledAs,
        *,
        result: Any = None,
        error: dict[str, Any] | None = None,
        note: str | None = None,
    ) -> SettleVerdict:
        verdict: SettleVerdict = await self._submit(Settling((tool, key), outcome_of(outcome, result, error), note))
        return verdict

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def resolve(future: asyncio.Future[Any], answer: Any) -> None:
    """Give a caller its answer, or raise it there if it is an exception. The caller may be gone."""
    if future.done():
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
