"""Creates and verifies Standard Webhooks signatures (``v1``, HMAC-SHA256), using the engine's own clock.

The signed text is ``<id>.<timestamp>.<body>``. A setting may hold several secrets, separated by commas: messages are
signed with each of them, and any of them is accepted, so that a secret can be replaced without downtime.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping

from counterfoil.domain.errors import InvalidSignature

MESSAGE_ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"
TOLERANCE_MS = 5 * 60 * 1000

_PREFIX = "whsec_"
_SECONDS = re.compile(r"[0-9]{1,12}", re.ASCII)


class Signer:
    """Signs outgoing messages."""

    def __init__(self, secret: str) -> None:
        self._keys = parse_secrets(secret)
        if not self._keys:
            raise ValueError("a signer needs a secret")

    def headers(self, message_id: str, now_ms: int, body: bytes) -> dict[str, str]:
        """The three headers of a message; the id must stay the same when the message is sent again."""
        timestamp = str(now_ms // 1000)
        signed = _signed_text(message_id, timestamp, body)
        signatures = " ".join(_signature(key, signed) for key in self._keys)
        return {MESSAGE_ID: message_id, TIMESTAMP: timestamp, SIGNATURE: signatures}


class Verifier:
    """Verifies received messages. Without a secret it refuses all of them."""

    def __init__(self, secrets: str) -> None:
        self._keys = parse_secrets(secrets)

    def verify(self, headers: Mapping[str, str], body: bytes, now_ms: int) -> None:
        """Raise InvalidSignature, with the reason, unless the body was recently signed with one of the secrets."""
        if not self._keys:
            raise InvalidSignature("this engine has no signing secret, so no signature can be checked")
        message_id, timestamp, signatures = (_header(headers, name) for name in (MESSAGE_ID, TIMESTAMP, SIGNATURE))
        if not (message_id and timestamp and signatures):
            raise InvalidSignature(f"the headers {MESSAGE_ID}, {TIMESTAMP} and {SIGNATURE} are needed")
        _check_time(timestamp, now_ms)
        signed = _signed_text(message_id, timestamp, body)
        given = [text for text in signatures.split() if text.isascii()]  # other text cannot be compared safely
        for key in self._keys:
            expected = _signature(key, signed)
            if any(hmac.compare_digest(text, expected) for text in given):
                return
        raise InvalidSignature("no signature matches the body, id and timestamp")


def parse_secrets(text: str) -> list[bytes]:
    """The keys of a setting: ``whsec_<base64>``, or several separated by commas. ValueError says which one is wrong."""
    keys: list[bytes] = []
    for position, part in enumerate(text.split(","), start=1):
        encoded = part.strip().removeprefix(_PREFIX).rstrip("=")
        if not part.strip():
            continue
        try:
            key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not key:
            raise ValueError(f"signing secret {position}: must be {_PREFIX} followed by base64 text")
        keys.append(key)
    return keys


def _header(headers: Mapping[str, str], name: str) -> str | None:
    """Header names are case-insensitive; a case-insensitive mapping finds the header at once."""
    value = headers.get(name)
    if value is None:
        value = next((headers[given] for given in headers if given.lower() == name), None)
    return value


def _check_time(timestamp: str, now_ms: int) -> None:
    if not _SECONDS.fullmatch(timestamp):
        raise InvalidSignature(f"{TIMESTAMP} must be whole seconds since 1970")
    age_ms = now_ms - int(timestamp) * 1000
    if age_ms > TOLERANCE_MS:
        raise InvalidSignature("the message was signed more than five minutes ago")
    if age_ms < -TOLERANCE_MS:
        raise InvalidSignature("the message is dated more than five minutes ahead")


def _signed_text(message_id: str, timestamp: str, body: bytes) -> bytes:
    """Header bytes that are not UTF-8 arrive as lone surrogates: they are signed as the original bytes."""
    try:
        return f"{message_id}.{timestamp}.".encode("utf-8", "surrogateescape") + body
    except UnicodeEncodeError:
        raise InvalidSignature(f"{MESSAGE_ID} is not text") from None


def _signature(key: bytes, signed: bytes) -> str:
    return "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode("ascii")
