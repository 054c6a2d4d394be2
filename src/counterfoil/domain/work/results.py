"""The reports of workers, as they are on the wire: the StepResult and the heartbeat."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from counterfoil.domain.canonical import same_json

MAX_ERROR = 10_000
MAX_MESSAGE = 1_000
"""The most characters that are kept of a result's error and of a heartbeat's message; longer texts belong in a log."""


def cut(text: str, limit: int) -> str:
    """The text if it is short enough, else its beginning and a mark with its full length."""
    if len(text) <= limit:
        return text
    mark = f"… [cut: {len(text)} characters]"
    return text[: limit - len(mark)] + mark


class StepResult(BaseModel):
    """One outcome: success with outputs, failure with an error, or not completed (``retriable``)."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    success: StrictBool
    outputs: dict[str, Any] | None = None
    error: Annotated[StrictStr, AfterValidator(lambda text: cut(text, MAX_ERROR))] | None = None
    retriable: StrictBool | None = None
    retry_after: Annotated[float, Field(ge=0, strict=True)] | None = None
    attempt: Annotated[StrictInt, Field(ge=1)] | None = None

    @property
    def not_completed(self) -> bool:
        """Whether the worker returned the attempt: neither a success nor a final failure."""
        return not self.success and bool(self.retriable)

    def reported(self) -> dict[str, Any]:
        """The fields that count when two results are compared; absent and empty are the same."""
        return {"success": self.success, "outputs": self.outputs or {}, "error": self.error}


class Heartbeat(BaseModel):
    """A report that the work continues, with its progress."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    progress: Annotated[float, Field(ge=0, le=1, strict=True)] | None = None
    message: (
        Annotated[StrictStr, Field(pattern=r"^[^\x00]*$"), AfterValidator(lambda text: cut(text, MAX_MESSAGE))] | None
    ) = None
    """Text without NUL characters, which not every database can store."""


def same_result(recorded: dict[str, Any] | None, again: StepResult) -> bool | None:
    """Whether a report repeats the recorded one, as canonical JSON (RFC 8785); None: the recorded one was pruned."""
    if recorded is not None and recorded.get("pruned"):
        return None
    return recorded is not None and same_json(recorded, again.reported())
