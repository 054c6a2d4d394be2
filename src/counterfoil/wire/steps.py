"""Steps: a registered definition with everything that it inherits."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from typing_extensions import TypedDict

from counterfoil.domain.effects.policies import EffectPolicy
from counterfoil.wire.schema import OneOf, Time, described, keyword


class AttributeDocument(TypedDict):
    """A declared input or output of a step; what the definition does not give is left out."""

    role: Annotated[str, keyword(enum=["required", "optional", "const", "output"])]
    type: NotRequired[Annotated[str, keyword(enum=["string", "number", "boolean", "object", "array", "any"])]]
    default: NotRequired[Any]
    value: NotRequired[Any]
    for_each: NotRequired[bool]
    timeout_ms: NotRequired[int | None]
    schema: NotRequired[Annotated[Any, described("a JSON Schema that the value must match")]]
    priority: NotRequired[int]


class SubFlowDocument(TypedDict):
    goals: list[str]
    inputs: dict[str, str]
    outputs: dict[str, str]


class HookSettings(TypedDict):
    token: Annotated[str | None, described("a template over the inputs; null: the engine makes an unguessable token")]
    collect: int
    until: str | None
    schema: Annotated[Any, described("a JSON Schema that each payload must match")]
    on_conflict: Annotated[str, keyword(enum=["fail", "wait", "supersede"])]
    on_timeout: Annotated[str, keyword(enum=["fail", "complete"])]


class FanOutDocument(TypedDict):
    mode: Annotated[str, keyword(enum=["product", "zip"])]
    parallelism: int | None
    on_failure: Annotated[str, keyword(enum=["fail_fast", "collect"])]
    max_items: int


class WaitForDocument(TypedDict):
    any: int
    of: list[str]


class RateLimitDocument(TypedDict):
    count: int
    per_ms: int


class WorkSettings(TypedDict):
    """Retries, time limits and rate limits of a step, with the engine's defaults filled in."""

    max_retries: int
    backoff_type: Annotated[str, keyword(enum=["fixed", "linear", "exponential"])]
    init_backoff_ms: int
    max_backoff_ms: int
    jitter: bool
    ack_timeout_ms: int
    deadline_ms: int
    heartbeat_timeout_ms: int | None
    parallelism: int | None
    rate_limit: RateLimitDocument | None


class GivenWorkSettings(TypedDict):
    """The same as the definition gives it; null: the default of the engine."""

    max_retries: int | None
    backoff_type: str | None
    init_backoff_ms: int | None
    max_backoff_ms: int | None
    jitter: bool | None
    ack_timeout_ms: int | None
    deadline_ms: int | None
    heartbeat_timeout_ms: int | None
    parallelism: int | None
    rate_limit: RateLimitDocument | None


class KeyRuleDocument(TypedDict):
    keep: list[str] | None
    strip: list[str] | None


class EffectDocument(TypedDict):
    """What may follow an attempt whose outcome is unknown, and which work items share a result."""

    policy: Annotated[str, OneOf(EffectPolicy)]
    key: KeyRuleDocument
    scope: Annotated[str, keyword(enum=["flow", "global"])]
    window: Annotated[str | None, described("how long a result is reused; null: the default of the policy")]
    downstream_window: Annotated[str | None, described("how long the endpoint itself recognizes the key")]


class ApprovalTermsDocument(TypedDict):
    """The terms on which an approval is requested."""

    reason: str | None
    severity: Annotated[str, keyword(enum=["low", "medium", "high", "critical"])]
    expires_in: Annotated[str | int, described("a duration such as 24h, or milliseconds")]
    approvals: int
    separate_requester: bool


class ControlDocument(TypedDict):
    approval: ApprovalTermsDocument | None


class CompensationDocument(TypedDict):
    endpoint: str
    kind: Annotated[str, keyword(enum=["async", "sync"])]
    work: GivenWorkSettings


class SignatureRuleDocument(TypedDict):
    """How callbacks are signed. The secret is a reference: no answer contains a secret."""

    preset: Annotated[str | None, keyword(examples=["stripe"])]
    scheme: str | None
    secret: Annotated[str, keyword(examples=["setting:stripe"])]
    header: str | None
    format: Annotated[str | None, keyword(examples=["t={timestamp},v1={signature}"])]
    timestamp_header: str | None
    signed: Annotated[str | None, keyword(examples=["{timestamp}.{body}"])]
    algorithm: str | None
    encoding: str | None
    tolerance_seconds: int | None
    challenge: Annotated[
        str | None, described("what a sender that verifies the URL wants back, as a CEL expression; null: nothing")
    ]


class CallbackMapDocument(TypedDict):
    """CEL expressions over `payload` and `headers` that make a result of a vendor's payload."""

    ignore: str | None
    success: str | None
    outputs: Annotated[dict[str, str] | str | None, described("one for each output, or one that gives an object")]
    error: str | None
    retriable: str | None


class CallbackAnswersDocument(TypedDict):
    """The HTTP statuses that a vendor gets."""

    accepted: int
    duplicate: int
    ignored: int


class AcceptDocument(TypedDict):
    """How callbacks of a vendor are signed, read and answered; null fields have their default."""

    signature: SignatureRuleDocument | None
    map: CallbackMapDocument | None
    answer: CallbackAnswersDocument


class StepDocument(TypedDict):
    """A registered step: its definition with defaults filled in; passwords in its URLs are masked."""

    step_id: str
    kind: Annotated[str, keyword(enum=["async", "sync", "flow", "hook"])]
    name: str
    endpoint: Annotated[str | None, keyword(examples=["http://worker:9000/transcribe"])]
    flow: SubFlowDocument | None
    hook: HookSettings | None
    attributes: dict[str, AttributeDocument]
    fan_out: FanOutDocument
    wait_for: WaitForDocument | None
    work: WorkSettings
    effect: EffectDocument
    control: ControlDocument
    predicate: str | None
    compensate: CompensationDocument | None
    status_url: Annotated[str | None, described("asked what became of an attempt whose outcome is unknown")]
    cancel_url: str | None
    duplicate_status: int
    require_signature: bool
    accept: AcceptDocument | None
    labels: dict[str, str]
    version: Annotated[str, described("digest of the definition")]
    created_at: Time
    updated_at: Time


class PutWarning(TypedDict):
    """The definition is in force, but part of it cannot take effect."""

    code: Annotated[str, keyword(examples=["approval_unreachable"])]
    message: str


class StepPut(StepDocument):
    warnings: NotRequired[Annotated[list[PutWarning], described("absent when there are none")]]


class StepsPage(TypedDict):
    steps: list[StepDocument]
