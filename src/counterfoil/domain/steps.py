"""Step definitions: what a step is, as registered over the wire, and every rule that it must keep."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, model_validator
from pydantic.functional_validators import AfterValidator

STEP_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._~:-]{0,127}$"
HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS

_WINDOW = re.compile(r"forever|[1-9][0-9]{0,5}[smhd]")


def _http_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http:// or https:// URL with a host")
    if not value.isascii() or any(character <= " " or character == "\x7f" for character in value):
        raise ValueError("must hold no spaces, control or non-ASCII characters")
    _ = parts.port  # raises ValueError for a port that is no port
    return value


def _window(value: str) -> str:
    if not _WINDOW.fullmatch(value):
        raise ValueError("must be a number with s, m, h or d, such as 24h, or forever")
    return value


def _not_yet(value: Any) -> Any:
    if value is not None:
        raise ValueError("is not supported by this version: leave it out or give null")
    return value


HttpUrl = Annotated[str, Field(max_length=2048), AfterValidator(_http_url)]
NotYet = Annotated[None, BeforeValidator(_not_yet)]
"""A field of the contract whose feature does not exist yet: refused rather than ignored."""

ValueType = Literal["string", "number", "boolean", "object", "array", "any"]
Milliseconds = Annotated[StrictInt, Field(ge=0, le=YEAR_MS)]
PositiveMilliseconds = Annotated[StrictInt, Field(ge=1, le=YEAR_MS)]


class _Definition(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Attribute(_Definition):
    """A named value that a step takes or gives."""

    role: Literal["required", "optional", "const", "output"]
    type: ValueType = "any"
    default: Any = None
    value: Any = None
    for_each: Literal[False] = False
    timeout_ms: NotYet = None
    json_schema: NotYet = Field(default=None, alias="schema")
    priority: StrictInt = 0

    @model_validator(mode="after")
    def _fits_its_role(self) -> Self:
        given = self.model_fields_set
        if "default" in given and self.role != "optional":
            raise ValueError("default: only an optional attribute has one")
        if "value" in given and self.role != "const":
            raise ValueError("value: only a const attribute has one")
        if self.role == "const" and "value" not in given:
            raise ValueError("value: a const attribute needs one")
        if self.role == "optional" and self.default is not None and not has_type(self.default, self.type):
            raise ValueError(f"default: must be of type {self.type}")
        if self.role == "const" and not has_type(self.value, self.type):
            raise ValueError(f"value: must be of type {self.type}")
        return self


class WorkDefaults(_Definition):
    """How often, how long and how many at once: complete, as the engine's settings have it."""

    max_retries: Annotated[StrictInt, Field(ge=-1, le=1_000_000)] = 5
    backoff_type: Literal["fixed", "linear", "exponential"] = "exponential"
    init_backoff_ms: Milliseconds = 1_000
    max_backoff_ms: Milliseconds = 60_000
    jitter: StrictBool = True
    ack_timeout_ms: PositiveMilliseconds = 30_000
    deadline_ms: PositiveMilliseconds = HOUR_MS
    heartbeat_timeout_ms: PositiveMilliseconds | None = None
    parallelism: Annotated[StrictInt, Field(ge=1)] | None = None

    @property
    def max_attempts(self) -> int | None:
        """How many dispatches in all; None: as many as it takes."""
        return None if self.max_retries < 0 else self.max_retries + 1


class WorkConfig(_Definition):
    """The same, as a step gives it: what is absent (or null, where null means nothing) is inherited."""

    max_retries: Annotated[StrictInt, Field(ge=-1, le=1_000_000)] | None = None
    backoff_type: Literal["fixed", "linear", "exponential"] | None = None
    init_backoff_ms: Milliseconds | None = None
    max_backoff_ms: Milliseconds | None = None
    jitter: StrictBool | None = None
    ack_timeout_ms: PositiveMilliseconds | None = None
    deadline_ms: PositiveMilliseconds | None = None
    heartbeat_timeout_ms: PositiveMilliseconds | None = None
    parallelism: Annotated[StrictInt, Field(ge=1)] | None = None
    rate_limit: NotYet = None

    def resolve(self, defaults: WorkDefaults) -> WorkDefaults:
        """Inherit field by field; an explicit null switches off what can be off."""
        own = {
            name: getattr(self, name)
            for name in self.model_fields_set
            if name != "rate_limit"
            and (getattr(self, name) is not None or name in ("heartbeat_timeout_ms", "parallelism"))
        }
        return defaults.model_copy(update=own)


class KeyRule(_Definition):
    """Which arguments make up the idempotency key: those kept, or all but those stripped."""

    keep: list[str] | None = None
    strip: list[str] | None = None

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Self:
        if self.keep is not None and self.strip:
            raise ValueError("give keep or strip, not both")
        return self


class Effect(_Definition):
    """What may happen when the outcome of an attempt is unknown."""

    policy: Literal["pure", "idempotent"] = "idempotent"
    key: KeyRule = KeyRule()
    scope: Literal["flow"] = "flow"
    window: Annotated[str, AfterValidator(_window)] | None = None


class Control(_Definition):
    """What must agree before a dispatch."""

    approval: NotYet = None


class StepDefinition(_Definition):
    """A step as it is registered: ``PUT /api/v1/steps/{step_id}``."""

    kind: Literal["async", "sync"] = "async"
    name: Annotated[str, Field(max_length=256)] | None = None
    endpoint: HttpUrl
    attributes: Annotated[
        dict[Annotated[str, Field(min_length=1, max_length=128)], Attribute], Field(max_length=256)
    ] = {}
    work: WorkConfig = WorkConfig()
    effect: Effect = Effect()
    control: Control = Control()
    predicate: NotYet = None
    compensate: NotYet = None
    status_url: NotYet = None
    cancel_url: HttpUrl | None = None
    duplicate_status: Literal[200, 400] = 400
    require_signature: StrictBool = False
    labels: Annotated[dict[str, str], Field(max_length=32)] = {}

    @model_validator(mode="after")
    def _keeps_what_it_has(self) -> Self:
        kept = self.effect.key.keep or []
        inputs = {name for name, attribute in self.attributes.items() if attribute.role != "output"}
        unknown = sorted(set(kept) - inputs) if self.attributes else []
        if unknown:
            raise ValueError(f"effect.key.keep: the step takes no {', '.join(unknown)}")
        return self

    @property
    def output_types(self) -> dict[str, ValueType]:
        """The outputs that the step declares, each with its type."""
        return {name: a.type for name, a in self.attributes.items() if a.role == "output"}


_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float),
    "object": dict,
    "array": list,
}


def has_type(value: Any, wanted: ValueType) -> bool:
    """Whether a JSON value is of a declared type; booleans are no numbers, null fits only any."""
    if wanted == "any":
        return True
    if wanted == "boolean":
        return isinstance(value, bool)
    return isinstance(value, _JSON_TYPES[wanted]) and not isinstance(value, bool)
