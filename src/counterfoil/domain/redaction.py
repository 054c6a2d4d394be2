"""Removes receipts from texts of other programs: an exception of a worker often holds the URL that it posted to.

A receipt is the credential of a work item: a viewer, a subscriber or a reader of the database could complete the work
with it. So every text of that form is blanked before anything is stored. The id in front of the signature stays: it is
not secret, and it tells which item the text is about.
"""

from __future__ import annotations

import re
from typing import Any

REDACTED = "[redacted]"

_RECEIPT = re.compile(r"([0-9a-f]{32}(?:\.|%2[Ee]))[A-Za-z0-9_-]{43}")
"""``<work id>.<signature>``, see receipts.py; the dot may be percent-encoded."""
_SHORTEST = 32 + 1 + 43
_SIGNED = re.compile(rb"\.[A-Za-z0-9_-]{43}")
_SIGNED_ENCODED = re.compile(rb"%2[Ee][A-Za-z0-9_-]{43}")
_ESCAPED_ASCII = re.compile(rb"\\u00[2-7]")


def may_hold_receipt(raw: bytes) -> bool:
    """Whether JSON text may hold a receipt. Fast, and rarely true without one.

    Before each expression, the bytes that it begins with are searched for: that alone is many times faster.
    """
    return len(raw) >= _SHORTEST and (
        (b"." in raw and _SIGNED.search(raw) is not None)
        or (b"%2" in raw and _SIGNED_ENCODED.search(raw) is not None)
        or (b"\\u00" in raw and _ESCAPED_ASCII.search(raw) is not None)  # JSON may escape any character like this
    )


def holds_receipt(text: str) -> bool:
    return _RECEIPT.search(text) is not None


def without_receipts(value: Any) -> Any:
    """A copy of a JSON value in which every receipt, in texts and in names, is blanked."""
    if isinstance(value, str):
        return _RECEIPT.sub(rf"\1{REDACTED}", value)
    if isinstance(value, dict):
        return {without_receipts(name): without_receipts(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_receipts(item) for item in value]
    return value
