"""The requests of agents and reviewers: workflows, gate calls, completions and reviews."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    WithJsonSchema,
    model_validator,
)

from counterfoil.domain.canonical import digest
from counterfoil.domain.durations import parse_duration
from counterfoil.domain.flows.requests import LabelKey, LabelText

MOST_KEY_CHARACTERS = 255
"""The maximum length of an ``idempotency_key``. The server refuses a longer one before it reads anything else."""

DEFAULT_WINDOW_MS = 24 * 3_600_000

_TEXT = r"^[^\x00]*$"
"""Excludes NUL, which not every database can store."""

ShortText = Annotated[StrictStr, Field(max_length=255, pattern=_TEXT)]
LongText = Annotated[StrictStr, Field(max_length=4096, pattern=_TEXT)]
Key = Annotated[StrictStr, Field(max_length=MOST_KEY_CHARACTERS, pattern=_TEXT)]
Tokens = Annotated[StrictInt, Field(ge=0, le=10**15)]
Dollars = Annotated[float, Field(ge=0, le=10**12, strict=True)]


def _window(given: Any) -> int | None:
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise ValueError("must be a string such as 24h, or forever")  # noqa: TRY004 (pydantic makes an error of it)
    return None if given == "forever" else parse_duration(given)


Window = Annotated[
    int | None,
    BeforeValidator(_window),
    WithJsonSchema({"type": "string", "examples": ["24h", "7d", "forever"]}),
]
"""Milliseconds; None: forever."""
LeaseSeconds = Annotated[float, Field(ge=0.1, le=86_400, strict=True)]
Scope = Literal["step", "global"]


STRICT = ConfigDict(extra="forbid", json_schema_extra={"additionalProperties": False})
"""For what is built on a message of agents, and refuses unknown fields."""


class _Message(BaseModel):
    """Known fields are checked strictly, unknown ones are ignored: clients of other systems send more fields."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, allow_inf_nan=False, json_schema_extra={"additionalProperties": True}
    )


class CreateWorkflow(_Message):
    """``POST /api/v1/workflows``."""

    workflow_name: Annotated[ShortText, Field(min_length=1)]
    source: Annotated[ShortText, Field(min_length=1)] = "external"
    metadata: Annotated[dict[str, Any], Field(max_length=128)] = {}
    labels: Annotated[dict[LabelKey, LabelText], Field(max_length=32)] = {}
    trace_id: Annotated[LabelText, Field(min_length=1, max_length=255)] | None = None
    total_steps: Annotated[StrictInt, Field(ge=0, le=10**9)] | None = None
    idempotency_key: Key | None = None
    """The same key with the same body returns the same workflow."""
    idempotency_scope: Scope = "step"
    """The scope of its steps' keys: ``global`` makes each key unique across workflows, for the window."""
    idempotency_window: Window = DEFAULT_WINDOW_MS

    @model_validator(mode="after")
    def _has_labels_of_its_own(self) -> Self:
        told = self.told()
        if any(self.labels.get(name, value) != value for name, value in told.items()):
            raise ValueError(f"labels: {', '.join(told)} are reserved labels: the workflow sets them from its fields")
        return self

    def told(self) -> dict[str, str]:
        """The labels that the workflow is found by, besides those that it was given."""
        told = {"workflow_name": self.workflow_name, "source": self.source, "trace_id": self.trace_id}
        return {name: value for name, value in told.items() if value is not None}

    def content(self) -> str:
        """The digest by which two requests with one key are recognised as the same."""
        return digest(self.model_dump(mode="json"))


class ToolContext(_Message):
    """The tool that a step calls."""

    tool_name: Annotated[ShortText, Field(min_length=1)]
    tool_type: ShortText | None = None
    tool_input: Annotated[dict[str, Any], Field(max_length=1024)] = {}


class ClaimRequest(_Message):
    """Makes an allow exclusive to one agent."""

    lease_seconds: LeaseSeconds = 60.0
    holder: Annotated[ShortText, Field(min_length=1)] | None = None
    """The name of the claiming agent: the same holder may call again before the lease expires, which extends it."""


class GateRequest(_Message):
    """``POST /api/v1/workflows/{workflow_id}/steps/{step_id}/gate``."""

    step_name: ShortText | None = None
    step_type: ShortText = "tool_call"
    step_input: Annotated[dict[str, Any], Field(max_length=1024)] = {}
    tool_context: ToolContext | None = None
    model: ShortText | None = None
    provider: ShortText | None = None
    tokens_in: Tokens | None = None
    tokens_out: Tokens | None = None
    cost_usd: Dollars | None = None
    retry_policy: Literal["idempotent", "reevaluate"] = "idempotent"
    idempotency_key: Key | None = None
    idempotency_scope: Scope | None = None
    idempotency_window: Window = DEFAULT_WINDOW_MS
    """If it is absent, the window of the workflow applies."""
    on_duplicate: Literal["refuse", "replay"] = "refuse"
    claim: ClaimRequest | None = None

    @property
    def key(self) -> str:
        """Absent and empty are the same."""
        return self.idempotency_key or ""

    def arguments(self) -> dict[str, Any]:
        """The input of the step as an approval shows it, with nothing left out."""
        if self.tool_context is None:
            return dict(self.step_input)
        tool = self.tool_context.model_dump(mode="json")
        if "tool_context" in self.step_input:
            return {"step_input": self.step_input, "tool_context": tool}
        return {**self.step_input, "tool_context": tool}

    def content(self) -> str:
        """The digest by which two calls are recognised as having the same input; the order of keys does not matter."""
        tool = None if self.tool_context is None else self.tool_context.model_dump(mode="json")
        return digest([self.step_input, tool])

    def usage(self) -> dict[str, Any]:
        names = ("model", "provider", "tokens_in", "tokens_out", "cost_usd")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class ProlongClaim(_Message):
    """``POST /api/v1/workflows/{workflow_id}/steps/{step_id}/heartbeat``: extends the lease of a claim."""

    holder: Annotated[ShortText, Field(min_length=1)]
    lease_seconds: LeaseSeconds = 60.0
    progress: Annotated[float, Field(ge=0, le=1, strict=True)] | None = None
    message: LongText | None = None


class CompleteStep(_Message):
    """``POST /api/v1/workflows/{workflow_id}/steps/{step_id}/complete``: reports a success or a failed attempt."""

    success: StrictBool = True
    output: Annotated[dict[str, Any], Field(max_length=1024)] | None = None
    metadata: Annotated[dict[str, Any], Field(max_length=1024)] | None = None
    """Kept with the outcome, and no part of it: a repeated report may have other metadata."""
    error: LongText | None = None
    retriable: StrictBool | None = None
    holder: Annotated[ShortText, Field(min_length=1)] | None = None
    """For a failure: the holder of the claim. The report is refused if another holder has claimed the step since."""
    tokens_in: Tokens | None = None
    tokens_out: Tokens | None = None
    cost_usd: Dollars | None = None
    idempotency_key: Key | None = None

    @property
    def key(self) -> str:
        return self.idempotency_key or ""

    def usage(self) -> dict[str, Any]:
        names = ("tokens_in", "tokens_out", "cost_usd")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class EndWorkflow(_Message):
    """The reason of ``fail`` and ``abort``."""

    reason: LongText | None = None


class ResumeRun(_Message):
    """``POST .../checkpoints/resume``: the path says it all."""


class ApproveStep(_Message):
    """``POST /api/v1/workflows/{workflow_id}/steps/{step_id}/approve``."""

    comment: LongText | None = None


class RejectStep(_Message):
    """``POST /api/v1/workflows/{workflow_id}/steps/{step_id}/reject``."""

    reason: LongText | None = None


class Approve(ApproveStep):
    """``POST /api/v1/approvals/{approval_id}/approve``: strict, unlike the routes of workflows."""

    model_config = STRICT


class Reject(RejectStep):
    """``POST /api/v1/approvals/{approval_id}/reject``."""

    model_config = STRICT
