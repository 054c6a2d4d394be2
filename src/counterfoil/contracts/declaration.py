"""What a contract declares of its tool, and what makes a declaration wrong: that is found when the contract is made."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel

from counterfoil.contracts.errors import OWN_CODES, RAISED_BY_TOOLS, UPSTREAM_TIMEOUT, ErrorSpec, PartialSuccess
from counterfoil.contracts.keys import names_a_key, unkeyed_fields
from counterfoil.domain.effects.policies import window_ms
from counterfoil.domain.effects.reservations import SHORTEST_TTL_MS

ToolClass = Literal["read", "write-idempotent", "write-non-idempotent", "irreversible"]
CLASSES: tuple[ToolClass, ...] = ("read", "write-idempotent", "write-non-idempotent", "irreversible")

DEFAULT_WINDOWS: Mapping[ToolClass, str] = MappingProxyType(
    {"read": "forever", "write-idempotent": "forever", "write-non-idempotent": "24h", "irreversible": "30d"}
)
HIGH_VALUE_WINDOW = "7d"
DEFAULT_PENDING_TTL = 300.0
LONGEST_NAME = 255

_VERSION = re.compile(r"(0|[1-9][0-9]{0,8})(?:\.(0|[1-9][0-9]{0,8}))?(?:\.(0|[1-9][0-9]{0,8}))?")
_CODE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_BUILT_IN = {
    UPSTREAM_TIMEOUT: ErrorSpec("Try the same call again later.", retriable=True),
    PartialSuccess.code: ErrorSpec(PartialSuccess.default_action),
}


class InvalidContract(ValueError):
    """A contract that promises what cannot be kept, or that cannot be understood. Raised when it is made."""


@dataclass(frozen=True, slots=True)
class TransientRetries:
    """How often a transient error is retried inside one call, and the pauses before: doubled, up to the longest."""

    retries: int = 2
    first_pause: float = 0.2
    longest_pause: float = 5.0

    def pause(self, attempt: int) -> float:
        """Seconds before the attempt after this one."""
        return min(self.longest_pause, self.first_pause * 2.0 ** min(attempt - 1, 30))


@dataclass(frozen=True, slots=True)
class ContractTerms:
    """One contract. ``window_ms`` None: forever."""

    name: str
    version: str
    effect: ToolClass
    purpose: str
    window: str
    window_ms: int | None
    downstream_window: str | None
    pending_ttl_ms: int
    keep: tuple[str, ...] | None
    strip: tuple[str, ...] | None
    scopes: frozenset[str]
    errors: Mapping[str, ErrorSpec]
    retries: TransientRetries = field(default_factory=TransientRetries)
    resource: tuple[str, ...] = ()
    """Fields that identify the resource of an idempotent write: then a call needs no key."""

    @property
    def is_write(self) -> bool:
        return self.effect != "read"

    def declares(self, code: str) -> bool:
        """Whether the tool may raise this code."""
        return code in self.errors

    def spec_of(self, error: BaseException) -> tuple[str, ErrorSpec] | None:
        """The declared error that an exception of the tool means."""
        for code, spec in self.errors.items():
            if spec.raised_as and isinstance(error, spec.raised_as):
                return code, spec
        return None

    def serves(self, version: str) -> bool:
        """Whether a caller that expects a version can call this one: same major, and no older minor or patch."""
        wanted, present = version_parts(version), version_parts(self.version)
        same = 2 if present[0] == 0 and len(wanted) > 1 else 1
        return wanted[:same] == present[:same] and wanted <= present[: len(wanted)]


def version_parts(version: str) -> tuple[int, ...]:
    """The numbers of ``2``, ``2.1`` or ``2.1.0``; raises ValueError."""
    found = _VERSION.fullmatch(version)
    if found is None:
        raise ValueError("a version is one to three numbers with points between them, such as 2.1.0")
    return tuple(int(part) for part in found.groups() if part is not None)


def declare(
    model: type[BaseModel],
    *,
    name: str,
    version: str,
    effect: ToolClass,
    purpose: str = "",
    window: str | None = None,
    value: Literal["high"] | None = None,
    downstream_window: str | None = None,
    pending_ttl: float = DEFAULT_PENDING_TTL,
    keep: Iterable[str] | None = None,
    strip: Iterable[str] | None = None,
    scopes: Iterable[str] = (),
    errors: Mapping[str, str | ErrorSpec] | None = None,
    retries: int | TransientRetries = 2,
    resource: str | Iterable[str] = (),
) -> ContractTerms:
    """Check a declaration as a whole; raises InvalidContract with the first thing that is wrong."""
    if effect not in CLASSES:
        raise InvalidContract(f"effect must be one of {', '.join(CLASSES)}")
    if not name or len(name) > LONGEST_NAME or "\0" in name:
        raise InvalidContract(f"name must be a text of 1 to {LONGEST_NAME} characters without NUL")
    if len(_checked_version(version)) != 3:
        raise InvalidContract("version must have three numbers, such as 2.1.0")
    if value not in (None, "high"):
        raise InvalidContract('value must be "high" or None')
    default = HIGH_VALUE_WINDOW if value and effect == "write-non-idempotent" else DEFAULT_WINDOWS[effect]
    chosen = window or default
    length = _checked_window("window", chosen)
    _check_downstream(chosen, length, downstream_window)
    if not pending_ttl * 1000 >= SHORTEST_TTL_MS:
        raise InvalidContract("pending_ttl must be one second at least, and longer than the tool ever runs")
    return ContractTerms(
        name=name,
        version=version,
        effect=effect,
        purpose=purpose,
        window=chosen,
        window_ms=length,
        downstream_window=downstream_window,
        pending_ttl_ms=round(pending_ttl * 1000),
        **_counted(model, keep, strip),
        scopes=frozenset([scopes] if isinstance(scopes, str) else scopes),
        errors=_checked_errors(errors or {}),
        retries=retries if isinstance(retries, TransientRetries) else TransientRetries(_not_negative(retries)),
        resource=_checked_resource(model, effect, resource),
    )


def _checked_version(version: str) -> tuple[int, ...]:
    try:
        return version_parts(version)
    except ValueError as error:
        raise InvalidContract(str(error)) from None


def _checked_window(field_name: str, text: str) -> int | None:
    try:
        return window_ms(text)
    except ValueError as error:
        raise InvalidContract(f"{field_name} {error}") from None


def _check_downstream(window: str, length: int | None, downstream: str | None) -> None:
    """The downstream system decides what a retry does: a longer window here would be a promise it does not keep."""
    if downstream is None:
        return
    theirs = _checked_window("downstream_window", downstream)
    if theirs is not None and (length is None or theirs < length):
        raise InvalidContract(
            f"the window {window} is longer than the downstream_window {downstream}: "
            "a retry between the two would have its effect again"
        )


def _not_negative(retries: int) -> int:
    if retries < 0:
        raise InvalidContract("retries must not be negative")
    return retries


def _counted(model: type[BaseModel], keep: Iterable[str] | None, strip: Iterable[str] | None) -> dict[str, Any]:
    if keep is not None and strip is not None:
        raise InvalidContract("keep and strip exclude each other")
    kept = None if keep is None else tuple(keep)
    stripped = None if strip is None else tuple(strip)
    _check_fields(model, "keep" if kept is not None else "strip", kept or stripped or ())
    named = {*model.model_fields, *(each.alias for each in model.model_fields.values())}
    if any(names_a_key(name) for name in named):
        raise InvalidContract("the argument model has a field for the idempotency key: a model must never fill one in")
    if kept is not None and (both := set(kept) & set(unkeyed_fields(model))):
        raise InvalidContract(f"keep names fields that are marked NotInKey: {', '.join(sorted(both))}")
    if kept is not None and not kept:
        raise InvalidContract("keep names no field: all calls of a step would share one key")
    return {"keep": kept, "strip": stripped}


def _check_fields(model: type[BaseModel], where: str, names: Collection[str]) -> None:
    unknown = sorted(set(names) - set(model.model_fields))
    if unknown:
        raise InvalidContract(f"{where} names what {model.__name__} does not have: {', '.join(unknown)}")


def _checked_resource(model: type[BaseModel], effect: ToolClass, resource: str | Iterable[str]) -> tuple[str, ...]:
    names = (resource,) if isinstance(resource, str) else tuple(resource)
    if names and effect != "write-idempotent":
        raise InvalidContract("resource is for write-idempotent tools: only there a repeat changes nothing")
    _check_fields(model, "resource", names)
    return names


def _checked_errors(errors: Mapping[str, str | ErrorSpec]) -> Mapping[str, ErrorSpec]:
    declared = dict(_BUILT_IN)
    for code, given in errors.items():
        if not _CODE.fullmatch(code):
            raise InvalidContract(f"an error code has capital letters, digits and underscores, not {code!r}")
        if code in OWN_CODES - RAISED_BY_TOOLS:
            raise InvalidContract(f"{code} is a code of the library itself: a tool cannot raise it")
        built_in = _BUILT_IN.get(code)
        spec = given if isinstance(given, ErrorSpec) else ErrorSpec(given, bool(built_in and built_in.retriable))
        if not spec.corrective_action:
            raise InvalidContract(f"{code} needs a corrective action: what the model should do about it")
        declared[code] = spec
    return MappingProxyType(declared)
