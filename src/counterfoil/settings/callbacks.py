"""The settings of the callback inbox: the table [callbacks]."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from counterfoil.domain.callbacks.inbox import CallbackRules
from counterfoil.domain.steps.attributes import YEAR_MS
from counterfoil.domain.steps.definitions import DAY_MS
from counterfoil.settings.values import Whole

_MEBIBYTE = 1_048_576


def _yes_or_no(value: Any) -> Any:
    """True: keep all bodies; false: none."""
    if isinstance(value, bool):
        return "all" if value else "none"
    return value.lower() if isinstance(value, str) else value


class CallbackSettings(BaseModel):
    """What the inbox keeps, how much of it, and for how long."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    keep_bodies: Annotated[Literal["none", "refused", "all"], BeforeValidator(_yes_or_no)] = Field(
        "none",
        description="Bodies that the callback inbox keeps: none, refused (of callbacks that were not accepted) or all.",
    )
    body_bytes: Whole = Field(
        16_384, ge=1, le=64 * _MEBIBYTE, description="Maximum size of a kept body; longer bodies are not kept."
    )
    unknown_per_second: Whole = Field(
        10, ge=0, le=1_000_000, description="Callbacks with an unknown receipt that are recorded per second."
    )
    unknown_burst: Whole = Field(
        50, ge=1, le=1_000_000, description="Callbacks with an unknown receipt that are recorded at once."
    )
    max_rows: Whole = Field(
        100_000, ge=1, le=1_000_000_000, description="Maximum number of recorded callbacks; the oldest are removed."
    )
    retention_ms: Whole = Field(
        7 * DAY_MS,
        ge=0,
        le=100 * YEAR_MS,
        description="How long recorded callbacks are kept, at most as long as their flow; 0: until there are max_rows.",
    )

    @property
    def rules(self) -> CallbackRules:
        return CallbackRules(
            keep_bodies=self.keep_bodies,
            body_bytes=self.body_bytes,
            unknown_per_second=self.unknown_per_second,
            unknown_burst=self.unknown_burst,
            most_rows=self.max_rows,
            kept_ms=self.retention_ms or None,
        )
