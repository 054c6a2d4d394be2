"""What a start says of its run key: the key itself, and what is to happen while another flow owns it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, StrictStr, WithJsonSchema

from counterfoil.domain.durations import parse_duration
from counterfoil.domain.states import FlowStatus, StepStatus

MOST_KEY_CHARACTERS = 255
_PRINTABLE = r"^[^\x00-\x1f\x7f]*$"
"""Excludes control characters: PostgreSQL cannot store NUL, and a terminal would act on the others."""
_FREE = frozenset({"0", "0ms", "0s", "0m", "0h", "0d"})

OnConflict = Literal["reject", "adopt", "signal", "supersede"]
RunKeyText = Annotated[StrictStr, Field(min_length=1, max_length=MOST_KEY_CHARACTERS, pattern=_PRINTABLE)]
"""An ``idempotency_key`` of a flow start."""


KEY = "idempotency_key"
RETAINED_FOR = "retain_key_for"
RETAINS_FAILED = "retain_failed"
"""Options of a flow with a run key, as its inputs and its journal have them; the time in milliseconds."""


def retention_ms(given: str | int | None) -> int:
    """Milliseconds of a text such as ``24h``, or of a number of milliseconds; 0: the key is not retained."""
    return 0 if given is None or given == 0 or given in _FREE else parse_duration(given)


def _checked(given: str | int | None) -> str | int | None:
    retention_ms(given)
    return given


KeyRetention = Annotated[
    StrictStr | StrictInt | None,
    AfterValidator(_checked),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "null"}], "examples": ["24h", "0"]}
    ),
]
"""A duration as it was given; ``retention_ms`` reads it."""


class HookSignal(BaseModel):
    """``signal`` of a flow start: a payload for a hook of the flow that is started, or that owns the key."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    hook: Annotated[StrictStr, Field(min_length=1, max_length=255, pattern=_PRINTABLE, description="the hook's token")]
    payload: Any
    delivery_id: Annotated[StrictStr, Field(min_length=1, max_length=255, pattern=_PRINTABLE)] | None = None


class SeenOwner(BaseModel):
    """``if_owner`` of a flow start: the owner as the caller saw it. If it is no longer so, nothing is done."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    flow_id: Annotated[StrictStr, Field(min_length=1, max_length=200)]
    status: FlowStatus | None = None
    steps: Annotated[dict[str, StepStatus], Field(max_length=1024)] = {}
