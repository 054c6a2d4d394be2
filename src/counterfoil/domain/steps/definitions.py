"""Step definitions: what a step is, as registered over the API, and every rule that it must satisfy."""

from __future__ import annotations

from collections.abc import Container, Iterable
from functools import cached_property
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, StrictBool, StrictInt, model_validator
from pydantic.functional_validators import AfterValidator

from counterfoil.domain.approvals.terms import ApprovalTerms
from counterfoil.domain.callbacks.accept import Accept
from counterfoil.domain.effects.policies import DEFAULT_WINDOWS, EffectPolicy, window_ms
from counterfoil.domain.expressions.predicates import Predicate
from counterfoil.domain.hooks.definitions import HookDefinition
from counterfoil.domain.steps.attributes import YEAR_MS, Attribute, Definition
from counterfoil.domain.urls import RELAY_SCHEME, is_masked, relay_address

STEP_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._~:-]{0,127}$"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DEEPEST_FLOW = 16
"""The maximum nesting depth of sub-flows."""


def _http_url(value: str) -> str:
    if value.startswith(RELAY_SCHEME):
        if relay_address(value) is None:
            raise ValueError("must be relay://NAME/PATH, where NAME has lower-case letters, digits and hyphens")
        return value
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http:// or https:// URL with a host")
    if not value.isascii() or any(character <= " " or character == "\x7f" for character in value):
        raise ValueError("must not contain spaces, control or non-ASCII characters")
    _ = parts.port  # raises ValueError for an invalid port
    return value


def _window(value: str) -> str:
    window_ms(value)
    return value


CALLBACK_KINDS = ("async", "hook")
"""The kinds of steps that end by a callback."""
STEP_URLS = ("endpoint", "cancel_url", "status_url")
"""The URLs of a step and of its compensation. Passwords in them are not shown (see ``urls``)."""
HttpUrl = Annotated[str, Field(max_length=2048), AfterValidator(_http_url)]

Milliseconds = Annotated[StrictInt, Field(ge=0, le=YEAR_MS)]
PositiveMilliseconds = Annotated[StrictInt, Field(ge=1, le=YEAR_MS)]
AttributeName = Annotated[str, Field(min_length=1, max_length=128)]


class RateLimit(Definition):
    """At most ``count`` dispatches of a step in any window of ``per_ms``, over all flows and nodes."""

    count: Annotated[StrictInt, Field(ge=1, le=10_000)]
    per_ms: Annotated[StrictInt, Field(ge=1, le=DAY_MS)]


class WorkDefaults(Definition):
    """Retries, deadlines and limits of a step, complete: what a step does not set comes from the engine's settings."""

    max_retries: Annotated[StrictInt, Field(ge=-1, le=1_000_000)] = 5
    backoff_type: Literal["fixed", "linear", "exponential"] = "exponential"
    init_backoff_ms: Milliseconds = 1_000
    max_backoff_ms: Milliseconds = 60_000
    jitter: StrictBool = True
    ack_timeout_ms: PositiveMilliseconds = 30_000
    deadline_ms: PositiveMilliseconds = HOUR_MS
    heartbeat_timeout_ms: PositiveMilliseconds | None = None
    parallelism: Annotated[StrictInt, Field(ge=1)] | None = None
    rate_limit: RateLimit | None = None

    @property
    def is_limited(self) -> bool:
        """Whether a limit counts over all flows: before a dispatch, those of all nodes must be counted."""
        return self.parallelism is not None or self.rate_limit is not None

    @property
    def max_attempts(self) -> int | None:
        """The maximum number of attempts; None: unlimited."""
        return None if self.max_retries < 0 else self.max_retries + 1


_CAN_BE_OFF = ("heartbeat_timeout_ms", "parallelism", "rate_limit")


class WorkConfig(Definition):
    """The same as a step sets it: what is absent (or null, where null has no meaning) is inherited."""

    max_retries: Annotated[StrictInt, Field(ge=-1, le=1_000_000)] | None = None
    backoff_type: Literal["fixed", "linear", "exponential"] | None = None
    init_backoff_ms: Milliseconds | None = None
    max_backoff_ms: Milliseconds | None = None
    jitter: StrictBool | None = None
    ack_timeout_ms: PositiveMilliseconds | None = None
    deadline_ms: PositiveMilliseconds | None = None
    heartbeat_timeout_ms: PositiveMilliseconds | None = None
    parallelism: Annotated[StrictInt, Field(ge=1)] | None = None
    rate_limit: RateLimit | None = None

    def resolve(self, defaults: WorkDefaults) -> WorkDefaults:
        """Inherit field by field; an explicit null switches off what can be switched off."""
        own = {
            name: getattr(self, name)
            for name in self.model_fields_set
            if getattr(self, name) is not None or name in _CAN_BE_OFF
        }
        return defaults.model_copy(update=own)


class KeyRule(Definition):
    """The arguments that make up the idempotency key: those kept, or all except those stripped."""

    keep: list[str] | None = None
    strip: list[str] | None = None

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Self:
        if self.keep is not None and self.strip:
            raise ValueError("give keep or strip, not both")
        return self


Window = Annotated[str, AfterValidator(_window)]


class Effect(Definition):
    """What to do when the outcome of an attempt is unknown."""

    policy: EffectPolicy = "idempotent"
    key: KeyRule = KeyRule()
    scope: Literal["flow", "global"] = "flow"
    window: Window | None = None
    """How long a recorded result is reused by work items with the same key."""
    downstream_window: Window | None = None
    """How long the endpoint itself honours the key, as its operator declares it."""

    @model_validator(mode="after")
    def _promises_no_more_than_downstream(self) -> Self:
        if self.downstream_window is None:
            return self
        own, downstream = self.window_ms, window_ms(self.downstream_window)
        if downstream is not None and (own is None or own > downstream):
            raise ValueError(
                f"downstream_window: {self.downstream_window} is shorter than the window of "
                f"{self.window or DEFAULT_WINDOWS[self.policy]}"
            )
        return self

    @cached_property
    def window_ms(self) -> int | None:
        """The window in milliseconds; None: forever."""
        return window_ms(self.window or DEFAULT_WINDOWS[self.policy])

    @cached_property
    def dedupes(self) -> bool:
        """Whether work items with the same key share one result."""
        return self.policy == "dedupe" or self.scope == "global"

    @cached_property
    def holds_unknown(self) -> bool:
        """Whether an attempt with an unknown outcome is never repeated by the engine itself."""
        return self.policy in ("reconcile", "unsafe_once")


class StepApproval(ApprovalTerms):
    """An approval that a step requires before the first attempt of each item, whatever the policies say."""


class Control(Definition):
    """What a dispatch requires besides the policies."""

    approval: StepApproval | None = None


class FanOut(Definition):
    """How a step with ``for_each`` attributes creates one work item for each element."""

    mode: Literal["product", "zip"] = "product"
    parallelism: Annotated[StrictInt, Field(ge=1)] | None = None
    """The maximum number of active items of this step in one flow, including those that wait for a callback."""
    on_failure: Literal["fail_fast", "collect"] = "fail_fast"
    max_items: Annotated[StrictInt, Field(ge=0, le=1_000_000)] = 10_000


class SubFlow(Definition):
    """The sub-flow of a step of kind ``flow``: its goals, and how inputs and outputs are mapped by name."""

    goals: Annotated[list[Annotated[str, Field(pattern=STEP_ID_PATTERN)]], Field(min_length=1, max_length=64)]
    inputs: dict[AttributeName, AttributeName] = Field(default_factory=dict)
    outputs: dict[AttributeName, AttributeName] = Field(default_factory=dict)


class Compensation(Definition):
    """How the effect of a step is undone."""

    endpoint: HttpUrl
    kind: Literal["async", "sync"] = "sync"
    work: WorkConfig = WorkConfig()


class WaitFor(Definition):
    """Makes a step wait until some of several other steps have completed."""

    any: Annotated[StrictInt, Field(ge=1)] = 1
    of: Annotated[list[Annotated[str, Field(pattern=STEP_ID_PATTERN)]], Field(min_length=1, max_length=64)]

    @model_validator(mode="after")
    def _can_be_fulfilled(self) -> Self:
        if len(set(self.of)) != len(self.of):
            raise ValueError("of: names a step twice")
        if self.any > len(self.of):
            raise ValueError("any: must not exceed the number of steps in of")
        return self


class StepDefinition(Definition):
    """A step as it is registered: ``PUT /api/v1/steps/{step_id}``."""

    kind: Literal["async", "sync", "flow", "hook"] = "async"
    name: Annotated[str, Field(max_length=256)] | None = None
    endpoint: HttpUrl | None = None
    flow: SubFlow | None = None
    hook: HookDefinition | None = None
    attributes: dict[AttributeName, Attribute] = Field(default_factory=dict, max_length=256)
    fan_out: FanOut = FanOut()
    wait_for: WaitFor | None = None
    work: WorkConfig = WorkConfig()
    effect: Effect = Effect()
    control: Control = Control()
    predicate: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    compensate: Compensation | None = None
    status_url: HttpUrl | None = None
    cancel_url: HttpUrl | None = None
    duplicate_status: Literal[200, 400] = 400
    require_signature: StrictBool = False
    accept: Accept | None = None
    labels: dict[str, str] = Field(default_factory=dict, max_length=32)

    @model_validator(mode="after")
    def _is_of_its_kind(self) -> Self:
        if self.kind == "flow":
            if self.flow is None:
                raise ValueError("flow: is required for a step of kind flow")
            if self.endpoint is not None:
                raise ValueError("endpoint: not allowed for a step of kind flow")
            for name in ("parallelism", "rate_limit"):
                if getattr(self.work, name) is not None:
                    raise ValueError(f"work.{name}: not allowed for a step of kind flow; fan_out has its own limit")
            if self.control.approval is not None:
                raise ValueError(
                    "control.approval: not allowed for a step of kind flow; set it on the steps of its sub-flow"
                )
            if self.effect.holds_unknown or self.effect.dedupes:
                raise ValueError("effect: not allowed for a step of kind flow; set it on the steps of its sub-flow")
            if self.status_url is not None:
                raise ValueError("status_url: not allowed for a step of kind flow")
            _known("flow.inputs", self.flow.inputs.values(), self.input_names, "takes")
            _known("flow.outputs", self.flow.outputs, self.outputs, "gives")
            unmapped = sorted(self.outputs.keys() - self.flow.outputs.keys())
            if unmapped:
                raise ValueError(f"flow.outputs: nothing is mapped to {', '.join(unmapped)}")
        elif self.flow is not None:
            raise ValueError("flow: only allowed for a step of kind flow")
        elif self.endpoint is None and self.kind != "hook":
            raise ValueError("endpoint: is required")
        return self

    @model_validator(mode="after")
    def _is_a_hook_or_none(self) -> Self:
        """A hook calls nothing, so nothing that is about a call can be said of it."""
        if self.kind != "hook":
            if self.hook is not None:
                raise ValueError("hook: only allowed for a step of kind hook")
            return self
        if self.hook is None:
            raise ValueError("hook: is required for a step of kind hook")
        for name in ("endpoint", "status_url", "cancel_url"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: not allowed for a step of kind hook, which calls nothing")
        for name in ("parallelism", "rate_limit"):
            if getattr(self.work, name) is not None:
                raise ValueError(f"work.{name}: not allowed for a step of kind hook, which calls nothing")
        if self.control.approval is not None:
            raise ValueError("control.approval: not allowed for a step of kind hook, which calls nothing")
        if self.effect.holds_unknown or self.effect.dedupes:
            raise ValueError("effect: not allowed for a step of kind hook, which calls nothing")
        if self.require_signature:
            raise ValueError("require_signature: not allowed for a step of kind hook; use accept.signature")
        self.hook.refuse_unusable(self.inputs, self.outputs)
        return self

    @model_validator(mode="after")
    def _names_what_it_has(self) -> Self:
        if self.attributes:
            _known("effect.key.keep", self.effect.key.keep or (), self.input_names, "takes")
        if self.predicate is not None:
            try:
                self.compiled_predicate()
            except ValueError as error:
                raise ValueError(f"predicate: {error}") from None
        return self

    @model_validator(mode="after")
    def _accepts_what_it_can_record(self) -> Self:
        if self.accept is None:
            return self
        if self.kind not in CALLBACK_KINDS:
            raise ValueError(f"accept: only allowed for a step of kind {' or '.join(CALLBACK_KINDS)}")
        if self.accept.signature is not None and self.require_signature:
            raise ValueError("require_signature: accept.signature says how completions are signed; give one of the two")
        if self.accept.map is None:
            return self
        collects = self.hook is not None and self.hook.collect > 1  # then each payload is one of several
        problem = None if collects else self.accept.map.declared_problem(self.outputs)
        if self.kind == "hook" and self.accept.map.retriable not in (None, "false"):
            problem = "retriable: must be false for a step of kind hook, which calls nothing"
        if problem is not None:
            raise ValueError(f"accept.map.{problem}")
        return self

    def compiled_predicate(self) -> Predicate | None:
        """The compiled predicate. Compiling is slow: see ``StepVersion.predicate``."""
        if self.predicate is None:
            return None
        types = {
            name: attribute.type if not (attribute.for_each and attribute.type == "array") else "any"
            for name, attribute in self.inputs.items()
        }
        return Predicate.compile(self.predicate, types)

    @cached_property
    def inputs(self) -> dict[str, Attribute]:
        """The declared inputs of the step, including constants."""
        return {name: attribute for name, attribute in self.attributes.items() if attribute.role != "output"}

    @cached_property
    def outputs(self) -> dict[str, Attribute]:
        """The declared outputs of the step."""
        return {name: attribute for name, attribute in self.attributes.items() if attribute.role == "output"}

    @cached_property
    def input_names(self) -> frozenset[str]:
        return frozenset(self.inputs)

    @cached_property
    def required(self) -> tuple[str, ...]:
        return tuple(name for name, attribute in self.attributes.items() if attribute.role == "required")

    @cached_property
    def fanned_out(self) -> tuple[str, ...]:
        """The attributes that the step fans out over, in their order."""
        return tuple(name for name, attribute in self.attributes.items() if attribute.for_each)

    @cached_property
    def fans_out(self) -> bool:
        return bool(self.fanned_out)

    @cached_property
    def makes_token(self) -> bool:
        """Whether it is a hook whose token the engine makes."""
        return self.hook is not None and self.hook.token is None

    @cached_property
    def fail_fast(self) -> bool:
        """Whether the step fails as soon as one of its items fails."""
        return not self.fans_out or self.fan_out.on_failure == "fail_fast"

    @cached_property
    def repeat_status(self) -> int:
        """The status of a result that is reported again: 400, unless its sender would then go on repeating it."""
        return self.duplicate_status if self.accept is None else 200

    def masked_urls(self) -> list[str]:
        """The places of URLs with a masked password, which cannot be called."""
        found = {name: getattr(self, name) for name in STEP_URLS}
        if self.compensate is not None:
            found["compensate.endpoint"] = self.compensate.endpoint
        return [place for place, url in found.items() if url is not None and is_masked(url)]

    def undoing(self) -> StepDefinition:
        """The compensating step as a definition of its own: it is dispatched, retried and reported like any other."""
        assert self.compensate is not None
        return StepDefinition(
            kind=self.compensate.kind,
            endpoint=self.compensate.endpoint,
            work=self.compensate.work,
            duplicate_status=self.duplicate_status,
            require_signature=self.require_signature,
        )


def _known(place: str, names: Iterable[str], known: Container[str], verb: str) -> None:
    unknown = sorted(name for name in names if name not in known)
    if unknown:
        raise ValueError(f"{place}: the step {verb} no {', '.join(unknown)}")
