"""What callers send to the effects API: to reserve, complete and settle the effect of a tool."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from counterfoil.domain.effects.policies import window_ms
from counterfoil.domain.effects.reservations import LONGEST_KEY, EffectClass

DEFAULT_WINDOW: dict[EffectClass, str] = {
    "write-idempotent": "forever",
    "write-non-idempotent": "24h",
    "irreversible": "30d",
}
MOST_TTL_SECONDS = 31_536_000
MAX_SETTLE_NOTE = 2_000
MOST_FENCE = 2**53 - 1

_NO_NUL = r"^[^\x00]*$"
EffectText = Annotated[StrictStr, Field(min_length=1, max_length=LONGEST_KEY, pattern=_NO_NUL)]
"""Any text but an empty one, without NUL, which no store keeps."""


def _window(text: str) -> str:
    window_ms(text)
    return text


EffectWindow = Annotated[StrictStr, AfterValidator(_window), Field(examples=["24h", "7d", "forever"])]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)


class ReserveEffect(_Strict):
    """``POST /api/v1/effects``: the right to run an effect."""

    tool: EffectText
    key: EffectText
    effect_class: Annotated[EffectClass, Field(alias="class")]
    holder: EffectText
    ttl_seconds: Annotated[StrictInt | StrictFloat, Field(ge=1, le=MOST_TTL_SECONDS)] = 300
    window: EffectWindow | None = None
    arguments_digest: EffectText | None = None

    @property
    def ttl_ms(self) -> int:
        return int(self.ttl_seconds * 1_000)


class CompleteEffect(_Strict):
    """``POST /api/v1/effects/{tool}/{key}/complete``: what the effect gave, or why it failed for good."""

    fence: Annotated[StrictInt, Field(ge=1, le=MOST_FENCE)]
    success: StrictBool
    result: Any = None
    error: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _says_what_belongs_to_it(self) -> CompleteEffect:
        if self.success and self.error is not None:
            raise ValueError("error: only with success false")
        if not self.success and self.result is not None:
            raise ValueError("result: only with success true")
        if not self.success and self.error is None:
            raise ValueError("error: is required with success false")
        return self


class SettleEffect(_Strict):
    """``POST /api/v1/effects/{tool}/{key}/settle``: what was found out about an effect whose reservation has lapsed."""

    outcome: Literal["applied", "not_applied", "failed"]
    result: Any = None
    error: dict[str, Any] | None = None
    note: Annotated[StrictStr, Field(max_length=MAX_SETTLE_NOTE, pattern=_NO_NUL)] | None = None

    @model_validator(mode="after")
    def _says_what_belongs_to_it(self) -> SettleEffect:
        if self.result is not None and self.outcome != "applied":
            raise ValueError("result: only with the outcome applied")
        if self.error is not None and self.outcome != "failed":
            raise ValueError("error: only with the outcome failed")
        return self
