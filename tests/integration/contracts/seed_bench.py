"""What the walk through seed 001 needs: a payment system, a clock, a dedup store, and refund tools on them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from counterfoil.contracts import (
    ContractPhase,
    DedupStore,
    PhaseEvent,
    SqliteDedupStore,
    ToolCall,
    ToolContract,
    ToolError,
)
from counterfoil.testing import MovableClock
from tests.integration.contracts.payments import Payments
from tests.integration.contracts.shop_tools import Refunded, good_refund

ARGUMENTS: dict[str, Any] = {"payment_id": "p-1", "amount_minor": 1_400_000}
DAY = 24


class Crashed(Exception):
    """A process that is gone: whatever the call had still to do, it does not do."""


class CountingStore:
    """A dedup store that counts what it is asked."""

    def __init__(self, store: DedupStore) -> None:
        self._store = store
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.asked[name] += 1
        return getattr(self._store, name)


class Bench:
    """A refund tool on a dedup store whose clock is that of the payment system; ``paid`` counts refunds."""

    def __init__(self, payments: Payments, folder: Path) -> None:
        self.payments = payments
        self.clock: MovableClock = payments.clock
        self.folder = folder
        self.store = SqliteDedupStore(folder / "effects.db", clock=self.clock)

    def tool(self, **terms: Any) -> ToolContract[Any, Any]:
        """The refund tool; ``terms`` are those of the contract."""
        made: ToolContract[Any, Any] = self.bound(good_refund(self.payments.url, **terms))
        return made

    def bound(self, contract: Any, **options: Any) -> Any:
        return contract.bind(self.store, clock=self.clock, sleep=self._sleep, wait=0, **options)

    async def _sleep(self, seconds: float) -> None:
        self.clock.advance(milliseconds=round(seconds * 1000))

    @property
    def paid(self) -> int:
        return self.payments.paid()

    @property
    def requests(self) -> int:
        return len(self.payments.requests)

    async def refund(self, key: str | None = "k-1", **more: Any) -> Refunded:
        """One call of the tool with a key, or with ``conversation_id`` and ``step_id``."""
        made: Refunded = await self.tool().run(ToolCall(ARGUMENTS, idempotency_key=key, **more))
        return made

    async def code(self, tool: Any, call: ToolCall[Any]) -> str | None:
        """The code that a call fails with; None: it succeeds."""
        try:
            await tool.run(call)
        except ToolError as error:
            return error.code
        return None

    async def crash(self, phase: ContractPhase | str, call: ToolCall[Any], tool: Any = None) -> None:
        """Make a call that ends for good when a phase has ended, as in a process that is killed there."""

        def at(event: PhaseEvent) -> None:
            if (event.phase, event.moment) == (phase, "end"):
                raise Crashed

        try:
            await (tool or self.tool()).bind(on_phase=at).run(call)
        except Crashed:
            return
        raise AssertionError(f"the call ended before the end of {phase}")

    def pass_time(self, *, seconds: int = 0, hours: int = 0) -> None:
        self.clock.advance(seconds=seconds, hours=hours)
