"""``accept`` of a step: how the callbacks of a vendor are signed, read and answered."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, StrictInt, model_validator

from counterfoil.domain.callbacks.mapping import CallbackMap, TextOrNull, read_challenge
from counterfoil.domain.callbacks.presets import PRESETS, SCHEMES, TOLERANCE_SECONDS, PresetName, SchemeName
from counterfoil.domain.callbacks.secrets import secret_name
from counterfoil.domain.callbacks.signatures import Algorithm, Encoding, SignatureCheck
from counterfoil.domain.callbacks.templates import HEADER_NAME, TIMESTAMP, parse_format, parse_signed
from counterfoil.domain.steps.attributes import Definition

DAY_SECONDS = 86_400
PRESET_FIELDS = ("scheme", "header", "format", "timestamp_header", "signed", "algorithm", "encoding", "challenge")
"""What a preset sets, and a definition with a preset must leave out."""


def _reference(value: str) -> str:
    secret_name(value)
    return value


def _header(value: str) -> str:
    if not HEADER_NAME.fullmatch(value):
        raise ValueError("must be the name of an HTTP header")
    return value


def _format(value: str) -> str:
    parse_format(value)
    return value


def _signed(value: str) -> str:
    parse_signed(value)
    return value


_Template = Annotated[str, Field(min_length=1, max_length=256)]
_HeaderName = Annotated[str, AfterValidator(_header)]


class SignatureRule(Definition):
    """How callbacks are signed: a preset, or a scheme with its fields. The secret is a reference, never a secret."""

    preset: PresetName | None = None
    scheme: SchemeName | None = None
    secret: Annotated[str, AfterValidator(_reference)]
    header: _HeaderName | None = None
    format: Annotated[_Template, AfterValidator(_format)] | None = None
    timestamp_header: _HeaderName | None = None
    signed: Annotated[_Template, AfterValidator(_signed)] | None = None
    algorithm: Algorithm | None = None
    encoding: Encoding | None = None
    tolerance_seconds: Annotated[StrictInt, Field(ge=1, le=DAY_SECONDS)] | None = None
    challenge: TextOrNull | None = None
    """What a sender that verifies the URL wants back, as an expression over ``payload`` and ``headers``."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.preset is not None:
            for name in PRESET_FIELDS:
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}: is set by the preset; leave one of the two out")
        elif self.scheme is None:
            raise ValueError("scheme: is required, unless preset is given")
        elif self._field("header") is None:
            raise ValueError("header: is required for the scheme hmac")
        self._require_signed_time()
        return self

    def _require_signed_time(self) -> None:
        """A timestamp that is not signed protects from nothing, and a tolerance needs a timestamp."""
        in_format, in_header = self.check.format.has_timestamp, self.check.timestamp_header is not None
        is_signed = TIMESTAMP in self.check.signed.names
        if in_format and in_header:
            raise ValueError("timestamp_header: format has a {timestamp} already")
        if is_signed and not (in_format or in_header):
            raise ValueError("signed: a {timestamp} needs timestamp_header, or a {timestamp} in format")
        if not is_signed and (in_format or in_header):
            raise ValueError("signed: must contain {timestamp}: a timestamp that is not signed can be forged")
        if not is_signed and self.tolerance_seconds is not None:
            raise ValueError("tolerance_seconds: the signature has no timestamp")

    @cached_property
    def check(self) -> SignatureCheck:
        """The rule with everything that its preset and scheme set."""
        scheme: SchemeName = self._field("scheme")
        return SignatureCheck(
            scheme=scheme,
            secret=secret_name(self.secret),
            header=self._field("header"),
            format=parse_format(self._field("format")),
            timestamp_header=self._field("timestamp_header"),
            signed=parse_signed(self._field("signed")),
            algorithm=self._field("algorithm"),
            encoding=self._field("encoding"),
            tolerance_ms=(self.tolerance_seconds or TOLERANCE_SECONDS) * 1000,
        )

    def challenge_in(self, payload: Any, headers: Mapping[str, str]) -> str | None:
        """What the sender of a payload, whose signature was right, wants back; None: nothing."""
        text = self._field("challenge")
        return None if text is None else read_challenge(text, payload, headers)

    def _field(self, name: str) -> Any:
        """A field of the rule itself, else of its preset, else of its scheme."""
        own = getattr(self, name)
        if own is not None:
            return own
        if self.preset is not None:
            return PRESETS[self.preset].get(name)
        return None if self.scheme is None else SCHEMES[self.scheme].get(name)


_Success = Annotated[StrictInt, Field(ge=200, le=299)]


class CallbackAnswers(Definition):
    """The HTTP statuses that a vendor gets, for vendors that require certain ones."""

    accepted: _Success = 200
    duplicate: _Success = 200
    ignored: _Success = 200

    def status_of(self, verdict: str) -> int:
        """The status of a verdict; a stale report is taken like an accepted one, and has no status of its own."""
        return {"duplicate": self.duplicate, "ignored": self.ignored}.get(verdict, self.accepted)


class Accept(Definition):
    """What a step accepts as its callback, besides or instead of a StepResult."""

    signature: SignatureRule | None = None
    map: CallbackMap | None = None
    answer: CallbackAnswers = CallbackAnswers()
