"""The signatures of known vendors, each as a value of the fields of ``accept.signature``."""

from __future__ import annotations

from typing import Any, Literal, get_args

PresetName = Literal["stripe", "github", "slack", "standard-webhooks"]
SchemeName = Literal["standard-webhooks", "hmac"]

TOLERANCE_SECONDS = 300
"""How far the timestamp of a signature may be from the engine's clock, unless the definition says otherwise."""

SCHEMES: dict[SchemeName, dict[str, Any]] = {
    "hmac": {"format": "{signature}", "signed": "{body}", "algorithm": "sha256", "encoding": "hex"},
    "standard-webhooks": {
        "header": "webhook-signature",
        "format": "v1,{signature}",
        "timestamp_header": "webhook-timestamp",
        "signed": "{header:webhook-id}.{timestamp}.{body}",
        "algorithm": "sha256",
        "encoding": "base64",
    },
}
"""What a scheme means where a definition leaves a field out. A secret of ``standard-webhooks`` is decoded."""

PRESETS: dict[PresetName, dict[str, Any]] = {
    "stripe": {
        "scheme": "hmac",
        "header": "Stripe-Signature",
        "format": "t={timestamp},v1={signature}",
        "signed": "{timestamp}.{body}",
        "algorithm": "sha256",
        "encoding": "hex",
        "tolerance_seconds": TOLERANCE_SECONDS,
    },
    "github": {
        "scheme": "hmac",
        "header": "X-Hub-Signature-256",
        "format": "sha256={signature}",
        "signed": "{body}",
        "algorithm": "sha256",
        "encoding": "hex",
    },
    "slack": {
        "scheme": "hmac",
        "header": "X-Slack-Signature",
        "format": "v0={signature}",
        "timestamp_header": "X-Slack-Request-Timestamp",
        "signed": "v0:{timestamp}:{body}",
        "algorithm": "sha256",
        "encoding": "hex",
        "tolerance_seconds": TOLERANCE_SECONDS,
        "challenge": "payload.type == 'url_verification' ? payload.challenge : null",
    },
    "standard-webhooks": {
        "scheme": "standard-webhooks",
        **SCHEMES["standard-webhooks"],
        "tolerance_seconds": TOLERANCE_SECONDS,
    },
}
"""Every preset, with each field that its vendor's signature needs. The reference shows this table."""

assert set(PRESETS) == set(get_args(PresetName))
