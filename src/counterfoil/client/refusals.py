"""Makes an exception of an error answer: each code has its class, and its text names each place that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from counterfoil.client.errors import ApiError
from counterfoil.domain.errors import error_types

BY_CODE: dict[str, type[ApiError]] = {error.code: error for error in reversed(list(error_types()))}
"""A code of several classes stands for the one that the others are derived from, which comes first."""


def api_error(status: int, body: Any, *, retry_after: float | None = None) -> ApiError:
    """The error of an answer; an answer that is not the engine's (a proxy's page) is named by its status."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("code"), str):
        message = f"the answer (HTTP {status}) is not one of a Counterfoil engine; is the address right?"
        return _answered(ApiError, status, f"HTTP_{status}", message, {}, retry_after)
    code, details = error["code"], error.get("details")
    kind = BY_CODE.get(code, ApiError)
    message = str(error.get("message") or code)
    return _answered(kind, status, code, message, details if isinstance(details, dict) else {}, retry_after)


def _answered(
    kind: type[ApiError], status: int, code: str, message: str, details: Mapping[str, Any], retry_after: float | None
) -> ApiError:
    error = kind(message)
    error.args = (f"{code}: {with_faults(message, details)}",)
    error.code, error.details = code, dict(details)
    error.status, error.retry_after = status, retry_after
    return error


def with_faults(message: str, details: Mapping[str, Any]) -> str:
    """The message with what ``details.errors`` says: each place, and what is wrong there."""
    faults = details.get("errors")
    if not isinstance(faults, list) or not faults:
        return message
    return f"{message} ({'; '.join(_fault(item) for item in faults)})"


def _fault(item: Any) -> str:
    if not isinstance(item, dict):
        return str(item)
    message, place = str(item.get("message") or "is wrong"), item.get("place") or item.get("attribute")
    return f"{place}: {message}" if place else message


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by a ``Retry-After`` header, given as seconds or as a date."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
