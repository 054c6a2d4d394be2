"""Kept bodies: text that every database can store, without a receipt in any spelling."""

from __future__ import annotations

import json

import pytest

from counterfoil.domain.callbacks.inbox import accepted_in, digest_of, kept_text

TOKEN = "0123456789abcdef0123456789abcdef." + "Ab_-" * 10 + "xyz"
SECRET = TOKEN.partition(".")[2]
ESCAPED = "".join(f"\\u{ord(each):04x}" for each in TOKEN)


@pytest.mark.parametrize(
    "text", ["", "{}", '{"a": 1.0}', "not JSON", '{"text":"ä\\u00e4"}', '{"dots":"a.b.c"}']
)  # fmt: skip
def test_a_body_without_a_receipt_is_kept_as_it_is(text: str) -> None:
    assert kept_text(text.encode()) == text


@pytest.mark.parametrize("body", [b"\xff", b"\0", "é".encode("utf-16"), '{"a":1}'.encode("utf-16-le")])
def test_what_is_no_text_is_not_kept(body: bytes) -> None:
    assert kept_text(body) is None


@pytest.mark.parametrize(
    "text",
    [
        TOKEN,
        f"https://engine/webhook/f/s/{TOKEN}",
        json.dumps({"success": True, "error": TOKEN, TOKEN: [TOKEN]}),
        f'{{"error": "{ESCAPED}"}}',
        f'{{"error": "{ESCAPED}',
        f'{{"error": "{TOKEN.replace(".", "%2e")}',
    ],
)
def test_receipts_are_blanked(text: str) -> None:
    kept = kept_text(text.encode())
    assert kept is not None
    assert SECRET not in kept
    assert SECRET not in json.dumps(kept).encode().decode("unicode_escape")
    assert "[redacted]" in kept


def test_a_digest_says_how_it_was_made() -> None:
    assert digest_of(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize(
    ("kind", "via", "found"),
    [
        ("work_succeeded", "webhook", "completion"),
        ("work_failed", "webhook", "completion"),
        ("work_not_completed", "webhook", "completion"),
        ("work_postponed", "webhook", "completion"),
        ("work_succeeded", "response", None),
        ("work_succeeded", "operator", None),
        ("work_failed", "engine", None),
        ("work_heartbeat", None, "heartbeat"),
        ("hook_received", None, "hook"),
        ("hook_received", "operator", None),
        ("hook_received", "signal", None),
        ("work_failed", "hook", "hook"),
        ("work_succeeded", "hook", None),
        ("work_dispatched", None, None),
        ("work_resumed", "heartbeat", None),
    ],
)
def test_which_events_a_callback_led_to(kind: str, via: str | None, found: str | None) -> None:
    data = {"error": {"code": "STEP_FAILED"}} | ({} if via is None else {"via": via})
    event = accepted_in(64, kind, 1, "flow", "step", "work", 2, data)
    assert (None if event is None else event.kind) == found
