"""Receipts in other programs' texts are blanked, whatever the text around them, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.domain.jsontext import accept_json, is_ordinary
from counterfoil.domain.redaction import REDACTED, holds_receipt, may_hold_receipt, without_receipts
from counterfoil.domain.work.receipts import Receipts

WORK_ID = "0198c0ffee0070008000000000000001"
TOKEN = Receipts([b"a secret of enough length"]).issue("flow-1", "charge", WORK_ID)
SIGNATURE = TOKEN.partition(".")[2]
BLANKED = f"{WORK_ID}.{REDACTED}"
URL = f"http://127.0.0.1:8080/webhook/flow-1/charge/{TOKEN}"

TEXTS = {
    TOKEN: BLANKED,
    f"timed out POST {URL}": f"timed out POST http://127.0.0.1:8080/webhook/flow-1/charge/{BLANKED}",
    f"{URL}/heartbeat": f"http://127.0.0.1:8080/webhook/flow-1/charge/{BLANKED}/heartbeat",
    f"x{TOKEN}y": f"x{BLANKED}y",
    f"{TOKEN},{TOKEN}": f"{BLANKED},{BLANKED}",
    TOKEN.replace(".", "%2E"): BLANKED.replace(".", "%2E", 1),
    TOKEN.replace(".", "%2e"): BLANKED.replace(".", "%2e", 1),
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_receipt_is_blanked_wherever_it_stands(text: str) -> None:
    assert holds_receipt(text)
    for value, expected in (
        (text, TEXTS[text]),
        ([1, [text]], [1, [TEXTS[text]]]),
        ({"a": {"b": text}}, {"a": {"b": TEXTS[text]}}),
        ({text: None}, {TEXTS[text]: None}),
    ):
        assert without_receipts(value) == expected
        assert accept_json(json.dumps(value)) == expected
        assert not is_ordinary(json.dumps(value).encode())


def test_escapes_hide_nothing() -> None:
    escaped = "".join(f"\\u{ord(character):04x}" for character in TOKEN)
    assert accept_json(f'["{escaped}"]') == [BLANKED]
    assert accept_json(f'["{TOKEN.replace(".", chr(92) + "u002e")}"]') == [BLANKED]


@pytest.mark.parametrize(
    "text",
    [
        # a JSON Web Token, whose signature is as long as that of a receipt
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
        WORK_ID,
        f"{WORK_ID}.{SIGNATURE[:42]}",
        f"{WORK_ID[1:]}.{SIGNATURE}",
        f"{WORK_ID}.tar.gz",
        "https://example.com/a%20b%2Fc?q=1.5",
        "d41d8cd98f00b204e9800998ecf8427e.backup-2024-01-01-full",
    ],
)
def test_what_is_no_receipt_stays(text: str) -> None:
    assert not holds_receipt(text)
    assert accept_json(json.dumps({"a": [text]})) == {"a": [text]}


@pytest.mark.parametrize(
    "text",
    ['{"success":true,"outputs":{"n":0.5,"text":"caf\\u00e9 100% of it","url":"http://a.example/x%20y"}}', "{}"],
)
def test_ordinary_text_gives_no_hint(text: str) -> None:
    """The hot path pays for a second look only where a receipt may be."""
    assert not may_hold_receipt(text.encode())


names = st.text(max_size=5) | st.just(TOKEN)
json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=20) | st.just(TOKEN) | st.just(URL),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=10,
)


@given(json_values, st.booleans())
def test_no_signature_survives_the_door(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    accepted = json.dumps(accept_json(text))
    assert SIGNATURE not in accepted
    if TOKEN not in text:
        assert json.loads(accepted) == value
