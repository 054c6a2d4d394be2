"""Effect policies: what each allows after an attempt whose outcome is unknown, and how long results are reused.

| policy | surely not taken | outcome unknown |
| --- | --- | --- |
| pure, idempotent, dedupe | retry | retry, with the same key |
| reconcile, unsafe_once | retry | hold: never repeated by the engine itself |
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Literal

from counterfoil.domain.durations import UNIT_MS

EffectPolicy = Literal["pure", "idempotent", "dedupe", "reconcile", "unsafe_once"]

DEFAULT_WINDOWS: dict[EffectPolicy, str] = {
    "pure": "24h",
    "idempotent": "24h",
    "dedupe": "24h",
    "reconcile": "7d",
    "unsafe_once": "30d",
}

_WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")


def window_ms(text: str) -> int | None:
    """A window in milliseconds; None: forever."""
    if text == "forever":
        return None
    found = _WINDOW.fullmatch(text)
    if found is None:
        raise ValueError("must be a number followed by s, m, h or d, such as 24h, or forever")
    return int(found[1]) * UNIT_MS[found[2]]


class Cause(StrEnum):
    """Why the outcome of an attempt is unknown."""

    ACK_TIMEOUT = "ack_timeout"
    CONNECTION_LOST = "connection_lost"
    DEADLINE_PASSED = "deadline_passed"
    NODE_LOST = "node_lost"
    SERVER_ERROR = "server_error"


RECONCILE = "reconcile"
UNSAFE_ONCE = "unsafe_once"
DEDUP = "dedup"
UNKNOWN_HOLDS = frozenset({RECONCILE, UNSAFE_ONCE})
"""What ``hold`` of a work item says while its outcome is unknown and its policy forbids to repeat it.

Other values of ``hold``: ``dedup`` while it waits for the result of another item, and the id of an approval.
"""
