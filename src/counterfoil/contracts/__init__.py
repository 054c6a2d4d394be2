"""Tool contracts: for code that calls a side effect itself. One key, one effect, whatever is retried or crashes.

```python
@tool_contract(name="issue_refund", version="2.1.0", effect="write-non-idempotent", value="high",
               keep=["payment_id", "amount_minor"], errors={"CARD_EXPIRED": "Ask for another card."})
async def issue_refund(call: ToolCall[Refund]) -> Refunded: ...

refund = issue_refund.bind(SqliteDedupStore("effects.db"))
await refund(ToolCall({"payment_id": "p-1", "amount_minor": 1400}, idempotency_key=key_of_the_step))
```
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from counterfoil.contracts.calls import ToolCall
from counterfoil.contracts.declaration import ContractTerms, InvalidContract, ToolClass, TransientRetries
from counterfoil.contracts.decorator import AsyncToolContract, ToolContract, tool_contract
from counterfoil.contracts.errors import (
    CallInFlight,
    CallRefused,
    ContractViolation,
    DedupUnavailable,
    EffectKeyConflict,
    ErrorSpec,
    HolderFenced,
    InvalidArguments,
    KeyInArguments,
    KeyRequired,
    NotRecorded,
    OutcomeConflict,
    OutcomeUnknown,
    PartialSuccess,
    ScopeMismatch,
    ToolError,
    ToolFailure,
    Transient,
    UnsafeOnceIncomplete,
    VersionMismatch,
)
from counterfoil.contracts.keys import NotInKey
from counterfoil.contracts.phases import AuditEvent, ContractPhase, PhaseEvent
from counterfoil.contracts.runtime import ContractRuntime, InFlightWait, using
from counterfoil.contracts.stores.protocol import DedupStore, DedupStoreUnavailable, EffectsListed, ShownEffect
from counterfoil.contracts.stores.sqlite import SqliteDedupStore

if TYPE_CHECKING:
    from counterfoil.contracts.stores.engine import EngineDedupStore
    from counterfoil.contracts.stores.postgres import PostgresDedupStore

_LOADED_WHEN_USED = {
    "EngineDedupStore": "counterfoil.contracts.stores.engine",
    "PostgresDedupStore": "counterfoil.contracts.stores.postgres",
}
"""They load aiohttp and asyncpg, which the other stores do not need."""


def __getattr__(name: str) -> Any:
    if name in _LOADED_WHEN_USED:
        return getattr(importlib.import_module(_LOADED_WHEN_USED[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AsyncToolContract",
    "AuditEvent",
    "CallInFlight",
    "CallRefused",
    "ContractPhase",
    "ContractRuntime",
    "ContractTerms",
    "ContractViolation",
    "DedupStore",
    "DedupStoreUnavailable",
    "DedupUnavailable",
    "EffectKeyConflict",
    "EffectsListed",
    "EngineDedupStore",
    "ErrorSpec",
    "HolderFenced",
    "InFlightWait",
    "InvalidArguments",
    "InvalidContract",
    "KeyInArguments",
    "KeyRequired",
    "NotInKey",
    "NotRecorded",
    "OutcomeConflict",
    "OutcomeUnknown",
    "PartialSuccess",
    "PhaseEvent",
    "PostgresDedupStore",
    "ScopeMismatch",
    "ShownEffect",
    "SqliteDedupStore",
    "ToolCall",
    "ToolClass",
    "ToolContract",
    "ToolError",
    "ToolFailure",
    "Transient",
    "TransientRetries",
    "UnsafeOnceIncomplete",
    "VersionMismatch",
    "tool_contract",
    "using",
]
