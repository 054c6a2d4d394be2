"""Receipt tokens: ``<work id>.<HMAC>``, the credential of one work item of one flow and step.

A forged or mistyped token is told from a real one without looking anything up, and whoever reads the database finds
no token in it. The secrets serve receipts alone; the first one signs, all of them are accepted.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Sequence


class Receipts:
    """Issues tokens and knows its own."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        if not secrets or not all(secrets):
            raise ValueError("receipts need at least one secret, and none that is empty")
        self._secrets = tuple(secrets)

    def issue(self, flow_id: str, step_id: str, work_id: str) -> str:
        """The token of a work item: the same one every time, for as long as the first secret stays."""
        return f"{work_id}.{_signature(self._secrets[0], _signed_text(flow_id, step_id, work_id))}"

    def work_id_of(self, flow_id: str, step_id: str, token: str) -> str | None:
        """The work item that the token was issued for; None for anything that is no token of this flow and step.

        The signature is compared as text: base64 has several spellings of the same bytes, and only ours counts.
        """
        work_id, dot, signature = token.rpartition(".")
        if not dot or not (token.isascii() and flow_id.isascii() and step_id.isascii()):
            return None
        signed = _signed_text(flow_id, step_id, work_id)
        for secret in self._secrets:
            if hmac.compare_digest(_signature(secret, signed), signature):
                return work_id
        return None


def _signed_text(flow_id: str, step_id: str, work_id: str) -> bytes:
    """Lengths in front, so that no other three ids give the same text."""
    return f"{len(flow_id)}:{len(step_id)}:{flow_id}{step_id}{work_id}".encode()


def _signature(secret: bytes, signed: bytes) -> str:
    return urlsafe_b64encode(hmac.digest(secret, signed, "sha256"))[:43].decode("ascii")
