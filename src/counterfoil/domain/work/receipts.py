"""Receipt tokens: ``<work id>.<HMAC>``, the credential of one work item of one flow and step.

A forged or mistyped token is told from a real one without looking anything up, and whoever reads the database finds
no token in it. The first secret signs, all of them are accepted. Beside receipts they serve secrets that follow from
them, so that these need not be stored.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest

_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class Receipts:
    """Issues tokens and knows its own."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        if not secrets or not all(secrets):
            raise ValueError("receipts need at least one secret, and no secret may be empty")
        self._macs = tuple(_Mac(secret) for secret in secrets)

    def issue(self, flow_id: str, step_id: str, work_id: str) -> str:
        """The token of a work item: the same one every time, for as long as the first secret stays."""
        signed = _signed_text(flow_id.encode(), step_id.encode(), work_id.encode())
        return f"{work_id}.{self._macs[0].signature(signed).decode()}"

    def work_id_of(self, flow_id: str, step_id: str, token: str) -> str | None:
        """The work item that the token was issued for; None for anything that is no token of this flow and step."""
        try:
            return self.work_id_of_bytes(flow_id.encode("ascii"), step_id.encode("ascii"), token.encode("ascii"))
        except UnicodeEncodeError:
            return None

    def work_id_of_bytes(self, flow_id: bytes, step_id: bytes, token: bytes) -> str | None:
        """The same for what was received, whatever it is: ids that a token was issued for are made of plain characters.

        The signature is compared as text: base64 has several spellings of the same bytes, and only ours counts.
        """
        work_id, _, signature = token.rpartition(b".")
        signed = _signed_text(flow_id, step_id, work_id)
        for mac in self._macs:
            if compare_digest(mac.signature(signed), signature):
                return work_id.decode()
        return None

    def derived(self, purpose: str, name: str) -> list[bytes]:
        """A secret of its own for a purpose and a name, from each of the secrets. No receipt's text begins so."""
        return [mac.digest(f"{purpose}\0{name}".encode()) for mac in self._macs]


def _signed_text(flow_id: bytes, step_id: bytes, work_id: bytes) -> bytes:
    """Lengths in front, so that no other three ids give the same text."""
    return b"%d:%d:%b%b%b" % (len(flow_id), len(step_id), flow_id, step_id, work_id)


class _Mac:
    """HMAC-SHA256 (RFC 2104) with the key's part of both hashes done beforehand.

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
