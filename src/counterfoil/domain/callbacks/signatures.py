"""Checks the signature of a vendor's callback: an HMAC over its body, with a timestamp where the vendor sends one.

A check never depends on anything but its arguments, compares in constant time, and raises nothing but InvalidSignature,
whatever the headers contain.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from counterfoil.domain.callbacks.presets import SchemeName
from counterfoil.domain.callbacks.secrets import Secrets
from counterfoil.domain.callbacks.templates import BODY, HEADER_PREFIX, SIGNATURE, TIMESTAMP, HeaderFormat, SignedText
from counterfoil.domain.errors import InvalidSignature

Algorithm = Literal["sha256", "sha1", "sha512"]
Encoding = Literal["hex", "base64"]

_SECONDS = re.compile(r"[0-9]{1,12}", re.ASCII)
_KEY_PREFIX = "whsec_"


@dataclass(frozen=True)
class SignatureCheck:
    """How the callbacks of one vendor are signed, and with which secret."""

    scheme: SchemeName
    secret: str
    """The name of the secret."""
    header: str
    format: HeaderFormat
    timestamp_header: str | None
    signed: SignedText
    algorithm: Algorithm
    encoding: Encoding
    tolerance_ms: int

    def verify(self, headers: Mapping[str, str], body: bytes, secrets: Secrets, now: int) -> None:
        """Raise InvalidSignature, with the reason, unless the body was signed with the secret, and recently."""
        keys = self._keys(secrets)
        timestamps, signatures = self._fields(headers)
        values = {BODY: body}
        if TIMESTAMP in self.signed.names:
            values[TIMESTAMP] = self._checked_time(timestamps, now)
        for name in self.signed.headers:
            values[HEADER_PREFIX + name] = _only(headers, name)
        text = self.signed.fill(values)
        given = [decoded for signature in signatures if (decoded := _decoded(signature, self.encoding)) is not None]
        for key in keys:
            expected = hmac.digest(key, text, self.algorithm)
            if any(hmac.compare_digest(expected, signature) for signature in given):
                return
        raise InvalidSignature("no signature of the callback matches its body")

    def problem_of_secret(self, secrets: Secrets) -> str | None:
        """Why nothing can be checked with the secret that is referred to; never one of its values."""
        values = secrets.values_of(self.secret)
        if not values:
            configured = ", ".join(secrets.names) or "none"
            return f"the settings have no secret {self.secret}; configured: {configured}"
        if any(not self._key(value) for value in values):
            return f"the secret {self.secret} is not {_KEY_PREFIX} followed by base64, as its scheme requires"
        return None

    def _keys(self, secrets: Secrets) -> list[bytes]:
        values = secrets.values_of(self.secret)
        if not values:
            raise InvalidSignature(f"the engine has no secret {self.secret}, so no signature can be checked")
        return [key for value in values if (key := self._key(value))]

    def _key(self, value: str) -> bytes:
        """The key of a secret; empty: it is not what the scheme requires."""
        if self.scheme == "hmac":
            return value.encode()
        encoded = value.removeprefix(_KEY_PREFIX).rstrip("=")
        try:
            return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
        except ValueError:
            return b""

    def _fields(self, headers: Mapping[str, str]) -> tuple[list[str], list[str]]:
        """Every timestamp and every signature that the headers contain."""
        given = list(_values(headers, self.header))
        if not given:
            raise InvalidSignature(f"the header {self.header} is missing")
        read = [self.format.read(value) for value in given]
        signatures = [signature for fields in read for signature in fields[SIGNATURE]]
        if not signatures:
            raise InvalidSignature(f"the header {self.header} contains no signature of the form that is expected")
        if self.timestamp_header is not None:
            return [value.strip() for value in _values(headers, self.timestamp_header)], signatures
        return [timestamp for fields in read for timestamp in fields.get(TIMESTAMP, ())], signatures

    def _checked_time(self, timestamps: list[str], now: int) -> bytes:
        place = f"the header {self.timestamp_header or self.header}"
        if len(set(timestamps)) != 1 or not _SECONDS.fullmatch(timestamps[0]):
            raise InvalidSignature(f"{place} must contain one timestamp, in whole seconds since 1970")
        age_ms = now - int(timestamps[0]) * 1000
        if age_ms > self.tolerance_ms:
            raise InvalidSignature(f"the callback was signed more than {self.tolerance_ms // 1000} seconds ago")
        if age_ms < -self.tolerance_ms:
            raise InvalidSignature(f"the callback is dated more than {self.tolerance_ms // 1000} seconds ahead")
        return timestamps[0].encode()


def _values(headers: Mapping[str, str], name: str) -> Iterable[str]:
    """Every value of a header, whose name is case-insensitive."""
    wanted = name.lower()
    return (value for given, value in headers.items() if given.lower() == wanted)


def _only(headers: Mapping[str, str], name: str) -> bytes:
    """The bytes of a header that is part of the signed text. Bytes that are not UTF-8 arrive as lone surrogates."""
    given = list(_values(headers, name))
    if len(given) != 1:
        raise InvalidSignature(f"the header {name} must be given once: it is part of what is signed")
    try:
        return given[0].encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidSignature(f"the header {name} is not text") from None


def _decoded(signature: str, encoding: Encoding) -> bytes | None:
    """The bytes of a signature; None: it is not encoded like this."""
    try:
        if encoding == "hex":
            return bytes.fromhex(signature)
        return base64.b64decode(signature + "=" * (-len(signature) % 4), validate=True)
    except (ValueError, binascii.Error):
        return None
