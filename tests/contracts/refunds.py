"""The tool of the tests: it counts its effects, and behaves as a test tells it to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel

from counterfoil.contracts import AsyncToolContract, DedupStore, ErrorSpec, NotInKey, ToolCall, ToolClass, tool_contract

TOOL = "issue_refund"


class Refund(BaseModel):
    payment_id: str
    amount_minor: int
    reason: Annotated[str, NotInKey()] = ""


class Refunded(BaseModel):
    refund_id: str
    amount_minor: int


ERRORS: dict[str, str | ErrorSpec] = {
    "CARD_EXPIRED": "Ask for another card.",
    "RATE_LIMITED": ErrorSpec("Wait a minute.", retriable=True, hint="too many requests", raised_as=(BlockingIOError,)),
    "NO_SUCH_PAYMENT": ErrorSpec("Ask for the payment.", raised_as=(LookupError,)),
}
ARGUMENTS = {"payment_id": "p-1", "amount_minor": 1_400}


@dataclass
class Provider:
    """The downstream system: an effect for each execution that came through."""

    effects: list[ToolCall[Refund]] = field(default_factory=list)
    executions: int = 0
    before: list[BaseException | Callable[[], Awaitable[Any]] | None] = field(default_factory=list)
    """What each execution does before its effect: raises, waits, or nothing."""

    async def refund(self, call: ToolCall[Refund]) -> Refunded:
        self.executions += 1
        first = self.before.pop(0) if self.before else None
        if isinstance(first, BaseException):
            raise first
        if first is not None:
            await first()
        self.effects.append(call)
        return Refunded(refund_id=f"r-{len(self.effects)}", amount_minor=call.arguments.amount_minor)


def refunding(
    provider: Provider, store: DedupStore | None = None, effect: ToolClass = "write-non-idempotent", **options: Any
) -> AsyncToolContract[Refund, Refunded]:
    """A contract of the provider's refund; ``options`` of the declaration, then of the runtime."""
    runtime = {name: options.pop(name) for name in list(options) if name in RUNTIME}
    terms: dict[str, Any] = {"version": "2.1.0", "pending_ttl": 60, "errors": ERRORS, **options}

    @tool_contract(name=TOOL, effect=effect, **terms)
    async def issue_refund(call: ToolCall[Refund]) -> Refunded:
        """Give money back."""
        return await provider.refund(call)

    return issue_refund.bind(store, **runtime) if store is not None or runtime else issue_refund


RUNTIME = {"on_audit", "on_phase", "wait", "clock", "sleep", "holder", "record_tries"}


def asked(key: str | None = "k", **fields: Any) -> ToolCall[dict[str, Any]]:
    return ToolCall({**ARGUMENTS, **fields.pop("arguments", {})}, idempotency_key=key, **fields)
