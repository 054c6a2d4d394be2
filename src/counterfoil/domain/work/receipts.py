"""Receipt tokens: ``<work id>.<HMAC>``, the credential of one work item of one flow and step.

A forged or mistyped token is recognised without a lookup, and the database holds no token. The first secret signs, all
secrets are accepted. Other secrets are derived from them as well, so that these need not be stored.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest

_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class Receipts:
    """Issues and verifies tokens."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        if not secrets or not all(secrets):
            raise ValueError("receipts need at least one secret, and no secret may be empty")
        self._macs = tuple(_Mac(secret) for secret in secrets)

    def issue(self, flow_id: str, step_id: str, work_id: str) -> str:
        """The token of a work item: always the same one, as long as the first secret stays."""
        signed = _signed_text(flow_id.encode(), step_id.encode(), work_id.encode())
        return f"{work_id}.{self._macs[0].signature(signed).decode()}"

    def work_id_of(self, flow_id: str, step_id: str, token: str) -> str | None:
        """The work item that the token was issued for; None: it is not a token of this flow and step."""
        try:
            return self.work_id_of_bytes(flow_id.encode("ascii"), step_id.encode("ascii"), token.encode("ascii"))
        except UnicodeEncodeError:
            return None

    def work_id_of_bytes(self, flow_id: bytes, step_id: bytes, token: bytes) -> str | None:
        """The same for raw bytes of a request. Ids with a token consist of ASCII characters.

        The signature is compared as text: base64 has several spellings of the same bytes, and only the engine's own is
        valid.
        """
        work_id, _, signature = token.rpartition(b".")
        signed = _signed_text(flow_id, step_id, work_id)
        for mac in self._macs:
            if compare_digest(mac.signature(signed), signature):
                return work_id.decode()
        return None

    def derived(self, purpose: str, name: str) -> list[bytes]:
        """A derived secret for a purpose and a name, from each of the secrets. No receipt has such a text."""
        return [mac.digest(f"{purpose}\0{name}".encode()) for mac in self._macs]


def _signed_text(flow_id: bytes, step_id: bytes, work_id: bytes) -> bytes:
    """Each id is preceded by its length, so that no other three ids give the same text."""
    return b"%d:%d:%b%b%b" % (len(flow_id), len(step_id), flow_id, step_id, work_id)


class _Mac:
    """HMAC-SHA256 (RFC 2104) with the key's part of both hashes computed in advance.

    Every report is checked with it, and ``hmac.digest`` spends most of its time on setting up the key.
    """

    def __init__(self, secret: bytes) -> None:
        key = (sha256(secret).digest() if len(secret) > 64 else secret).ljust(64, b"\0")
        self._inner = sha256(bytes(byte ^ 0x36 for byte in key))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in key))

    def digest(self, signed: bytes) -> bytes:
        inner = self._inner.copy()
        inner.update(signed)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()

    def signature(self, signed: bytes) -> bytes:
        return b2a_base64(self.digest(signed)).translate(_URL_SAFE)[:43]
