"""Vendors as tests play them: each signs by an implementation that is not the engine's.

Stripe, Slack and Standard Webhooks sign with their own Python packages, GitHub as its public documentation describes.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from slack_sdk.signature import SignatureVerifier
from standardwebhooks import Webhook
from stripe import WebhookSignature

Sign = Callable[[str, bytes, int], dict[str, str]]


@dataclass(frozen=True)
class Vendor:
    """A preset, two secrets of the vendor's form, and the headers of a signed body: (secret, body, unix seconds)."""

    preset: str
    secret: str
    other_secret: str
    sign: Sign
    has_time: bool = True


def _stripe(secret: str, body: bytes, seconds: int) -> dict[str, str]:
    signature = WebhookSignature._compute_signature(f"{seconds}.{body.decode()}", secret)
    header = f"t={seconds},v1={signature},v0={'0' * 64}"
    assert WebhookSignature.verify_header(body.decode(), header, secret)
    return {"Stripe-Signature": header}


def _github(secret: str, body: bytes, seconds: int) -> dict[str, str]:
    return {"X-Hub-Signature-256": "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}


def _slack(secret: str, body: bytes, seconds: int) -> dict[str, str]:
    signature = SignatureVerifier(secret).generate_signature(timestamp=str(seconds), body=body)
    assert signature is not None
    return {"X-Slack-Signature": signature, "X-Slack-Request-Timestamp": str(seconds)}


def _standard(secret: str, body: bytes, seconds: int) -> dict[str, str]:
    signature = Webhook(secret).sign("msg_1", datetime.fromtimestamp(seconds, UTC), body.decode())
    return {"webhook-id": "msg_1", "webhook-timestamp": str(seconds), "webhook-signature": signature}


STRIPE = Vendor("stripe", "whsec_0aBcDeFgHiJkLmNoPqRsTuVw", "whsec_another_secret_of_the_endpoint", _stripe)
GITHUB = Vendor("github", "It's a Secret to Everybody", "the secret before that one", _github, has_time=False)
SLACK = Vendor("slack", "8f742231b10e8888abcd99yyyzzz85a5", "8f742231b10e8888abcd99yyyzzz85a6", _slack)
STANDARD = Vendor(
    "standard-webhooks", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", _standard
)
VENDORS = (STRIPE, GITHUB, SLACK, STANDARD)
