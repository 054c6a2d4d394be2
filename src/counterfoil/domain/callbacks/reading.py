"""Reads a vendor's callback: first its signature, then its JSON, then what it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from counterfoil.domain.callbacks.accept import Accept
from counterfoil.domain.callbacks.mapping import Ignored
from counterfoil.domain.callbacks.secrets import Secrets
from counterfoil.domain.errors import Invalid, InvalidPayload, InvalidResult
from counterfoil.domain.jsontext import JsonError, accept_json
from counterfoil.domain.places import place_errors
from counterfoil.domain.work.results import StepResult

NOT_JSON = "the body is not JSON that this engine accepts"


@dataclass(frozen=True)
class Unmapped:
    """A payload as its sender wrote it."""

    payload: Any


def read_callback(
    accept: Accept, headers: Mapping[str, str], body: bytes, secrets: Secrets, now: int
) -> Ignored | StepResult:
    """The result that a callback reports about a work item, or that it reports none.

    InvalidSignature: it is not from the vendor, or not recent. InvalidPayload, InvalidResult: it cannot be read. The
    body is that of the request as it was received, after content coding: the signature covers every byte of it.
    """
    verify_callback(accept, headers, body, secrets, now)
    return read_report(accept, headers, body)


def read_report(accept: Accept, headers: Mapping[str, str], body: bytes) -> Ignored | StepResult:
    """The same without the signature, which was verified before."""
    payload = _parsed(body, InvalidResult if accept.map is None else InvalidPayload)
    challenge = _challenge(accept, payload, headers)
    if challenge is not None:
        return challenge
    if accept.map is not None:
        return accept.map.read(payload, headers)
    try:
        return StepResult.model_validate(payload)
    except ValidationError as error:
        raise InvalidResult(errors=place_errors(error)) from None


def verify_callback(accept: Accept, headers: Mapping[str, str], body: bytes, secrets: Secrets, now: int) -> None:
    """Raise InvalidSignature unless the body is signed as the step requires, if it requires that at all."""
    if accept.signature is not None:
        accept.signature.check.verify(headers, body, secrets, now)


def read_payload(accept: Accept | None, headers: Mapping[str, str], body: bytes) -> Ignored | StepResult | Unmapped:
    """The same for a hook, whose payload needs no form of its own; the signature was verified before."""
    payload = _parsed(body, InvalidPayload)
    challenge = None if accept is None else _challenge(accept, payload, headers)
    if challenge is not None:
        return challenge
    return Unmapped(payload) if accept is None or accept.map is None else accept.map.read(payload, headers)


def _challenge(accept: Accept, payload: Any, headers: Mapping[str, str]) -> Ignored | None:
    """A payload by which its sender only verifies the URL, or None. Nothing else of it is read."""
    wanted = None if accept.signature is None else accept.signature.challenge_in(payload, headers)
    return None if wanted is None else Ignored(wanted)


def _parsed(body: bytes, invalid: type[Invalid]) -> Any:
    try:
        return accept_json(body)
    except JsonError as error:
        raise invalid(NOT_JSON, errors=[{"place": "body", "message": str(error)}]) from None
