"""A call of a tool: arguments from the model, and key, conversation, step, scope and version from the runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar, cast

from counterfoil.domain.effects.reservations import LONGEST_KEY

M_co = TypeVar("M_co", covariant=True)
N = TypeVar("N")

HEADER = "Idempotency-Key"


class GatedCall(Protocol):
    """What ``ToolCall.from_step`` reads of a step that a gate has allowed: that of ``client.step(...)`` fits."""

    workflow_id: str
    step_id: str
    retry_context: Any


class DispatchedWork(Protocol):
    """What ``ToolCall.from_dispatch`` reads of a dispatch: ``counterfoil.client.Receipt`` fits."""

    @property
    def idempotency_key(self) -> str: ...
    @property
    def flow_id(self) -> str: ...
    @property
    def step_id(self) -> str: ...


@dataclass(frozen=True)
class ToolCall(Generic[M_co]):
    """One call. The model fills ``arguments`` and nothing else; the runtime that can retry it fills the rest.

    A contract validates the arguments: the tool's function receives an instance of the model, and in
    ``idempotency_key`` the key that it must pass to the system that has the effect.
    """

    arguments: M_co
    idempotency_key: str | None = field(default=None, kw_only=True)
    conversation_id: str | None = field(default=None, kw_only=True)
    step_id: str | None = field(default=None, kw_only=True)
    scope: str | Iterable[str] | None = field(default=None, kw_only=True)
    """Scopes that the caller was granted: names with spaces between them, or a collection."""
    version: str | None = field(default=None, kw_only=True)
    """The version of the contract that the caller expects: ``2``, ``2.1`` or ``2.1.0``; None: any."""
    attempt: int = field(default=1, kw_only=True)
    """Which execution inside this call it is: above 1 after a transient error."""
    fence: int | None = field(default=None, kw_only=True)
    """The fence of the reservation: a system that knows fences can refuse an older one."""

    @classmethod
    def from_dispatch(cls, arguments: N, metadata: Mapping[str, Any] | DispatchedWork, **others: Any) -> ToolCall[N]:
        """A call on behalf of a dispatched work item: its key goes on to the tool."""
        if isinstance(metadata, Mapping):
            found = {name: metadata.get(name) for name in ("idempotency_key", "flow_id", "step_id")}
        else:
            found = {name: getattr(metadata, name) for name in ("idempotency_key", "flow_id", "step_id")}
        return ToolCall(
            arguments,
            idempotency_key=found["idempotency_key"],
            conversation_id=found["flow_id"],
            step_id=found["step_id"],
            **others,
        )

    @classmethod
    def from_step(cls, arguments: N, step: GatedCall, **others: Any) -> ToolCall[N]:
        """A call inside a gated step: the key of the gate call, or else one made of workflow, step and arguments."""
        key = step.retry_context["idempotency_key"] or None
        return ToolCall(
            arguments, idempotency_key=key, conversation_id=step.workflow_id, step_id=step.step_id, **others
        )

    def scopes(self) -> frozenset[str]:
        if self.scope is None:
            return frozenset()
        return frozenset(self.scope.split() if isinstance(self.scope, str) else self.scope)

    def headers(self) -> dict[str, str]:
        """The key as a header for the downstream system; empty if the call has none."""
        if self.idempotency_key is None:
            return {}
        if not (self.idempotency_key.isascii() and self.idempotency_key.isprintable()):
            raise ValueError(f"the key of this call is no header value: {HEADER} needs printable ASCII")
        return {HEADER: self.idempotency_key}

    def with_arguments(self, arguments: N) -> ToolCall[N]:
        return cast("ToolCall[N]", replace(self, arguments=cast(Any, arguments)))


def key_problem(key: object) -> str | None:
    """Why a given key cannot be used; None if it can."""
    if not isinstance(key, str) or not key:
        return "the idempotency key must be a text that is not empty"
    if len(key) > LONGEST_KEY:
        return f"the idempotency key has more than {LONGEST_KEY} characters"
    try:
        key.encode()
    except UnicodeEncodeError:
        return "the idempotency key has a lone surrogate"
    return "the idempotency key has a NUL character" if "\0" in key else None
