"""Callbacks: what arrived at a webhook, heartbeat or hook URL, and what the engine answered.

The journal has every accepted callback already: ``accepted_in`` reads one from an event. All others (refused,
duplicate, stale, ignored) become ``Callback`` records. Neither ever holds a token.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from counterfoil.domain.jsontext import JsonError, dump_json, parse_json
from counterfoil.domain.redaction import may_hold_receipt, without_receipts

ACCEPTED = "accepted"
IGNORED = "ignored"
"""Answered as accepted, and nothing was changed: a heartbeat for work that was cancelled."""

KeptBodies = Literal["none", "refused", "all"]


class CallbackKind(StrEnum):
    COMPLETION = "completion"
    HEARTBEAT = "heartbeat"
    HOOK = "hook"


@dataclass(frozen=True, slots=True)
class CallbackRules:
    """What is kept of callbacks, how much of it, and for how long."""

    keep_bodies: KeptBodies = "none"
    body_bytes: int = 16_384
    """Longer bodies are not kept."""
    unknown_per_second: int = 10
    unknown_burst: int = 50
    most_rows: int = 100_000
    kept_ms: int | None = None
    """None: until there are more than ``most_rows``."""


@dataclass(frozen=True, slots=True)
class Callback:
    """One request to a webhook, heartbeat or hook URL. What is not known of it is None.

    ``verdict``: ``accepted``, ``duplicate``, ``stale``, ``ignored``, or the code of the error that refused it.
    A record with the verdict ``accepted`` only completes an event of the journal (``keep_bodies = "all"``).
    """

    callback_id: str
    at: int
    kind: CallbackKind
    verdict: str
    status: int
    flow_id: str | None = None
    step_id: str | None = None
    work_id: str | None = None
    attempt: int | None = None
    size: int | None = None
    digest: str | None = None
    source: str | None = None
    trace_id: str | None = None
    body: str | None = None
    headers: dict[str, str] | None = None
    """Those that the map of its step reads, kept with the body: a replay reads them again."""


@dataclass(frozen=True, slots=True)
class AcceptedCallback:
    """An accepted callback, as an event of the journal tells of it."""

    number: int
    at: int
    kind: CallbackKind
    status: int
    flow_id: str
    step_id: str | None
    work_id: str | None
    attempt: int | None


_REPORTED = frozenset({"work_succeeded", "work_failed", "work_not_completed", "work_postponed"})
ANSWERED = "answered"
"""The status that a vendor was answered with, in the data of the event; without it, 200."""


def accepted_in(
    number: int,
    event_type: str,
    at: int,
    flow_id: str,
    step_id: str | None,
    work_id: str | None,
    attempt: int | None,
    data: Mapping[str, Any],
) -> AcceptedCallback | None:
    """The accepted callback that led to an event; None: something else did."""
    kind = _kind_of(event_type, data)
    if kind is None:
        return None
    return AcceptedCallback(number, at, kind, data.get(ANSWERED, 200), flow_id, step_id, work_id, attempt)


def _kind_of(event_type: str, data: Mapping[str, Any]) -> CallbackKind | None:
    via = data.get("via")
    if event_type == "work_heartbeat":
        return CallbackKind.HEARTBEAT
    if event_type in _REPORTED and via == "webhook":
        return CallbackKind.COMPLETION
    reported_to_hook = event_type == "work_failed" and via == "hook" and data["error"]["code"] == "STEP_FAILED"
    return CallbackKind.HOOK if reported_to_hook or (event_type == "hook_received" and via is None) else None


# -- bodies -------------------------------------------------------------------------------------------------------


def digest_of(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def kept_text(body: bytes) -> str | None:
    """A body as it is kept: receipts blanked. None: it is no text that every database can store, so it is not kept.

    That includes text in another encoding than UTF-8, in which a receipt would not be recognised.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    return _blanked(text) if may_hold_receipt(body) else text


_ESCAPED_ASCII = re.compile(r"\\u00([2-7][0-9A-Fa-f])")


def _blanked(text: str) -> str:
    try:
        return dump_json(without_receipts(parse_json(text))).decode()  # JSON may spell a receipt with escapes
    except (JsonError, ValueError):
        return str(without_receipts(_ESCAPED_ASCII.sub(lambda found: chr(int(found[1], 16)), text)))


# -- traces -------------------------------------------------------------------------------------------------------

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_NO_TRACE = "0" * 32


def trace_of(traceparent: str | None) -> str | None:
    """The trace id of a ``traceparent`` header (W3C Trace Context); None: there is none, or it is not valid."""
    found = _TRACEPARENT.fullmatch(traceparent.strip()) if traceparent else None
    return None if found is None or found[1] == _NO_TRACE else found[1]
