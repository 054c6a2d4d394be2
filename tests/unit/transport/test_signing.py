"""Standard Webhooks: our signatures and those of the reference library, by our clock."""

from __future__ import annotations

import base64
import json
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy
from standardwebhooks import Webhook

from counterfoil.domain.errors import InvalidSignature
from counterfoil.transport.signing import Signer, Verifier, parse_secrets

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(b"another secret of ours").decode()
NOW = 1_794_839_170_123
BODY = b'{"success":true,"outputs":{"text":"gr\xc3\xbc\xc3\x9fe"}}'

signer = Signer(SECRET)
verifier = Verifier(SECRET)


def test_the_example_of_the_standard() -> None:
    headers = Signer("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").headers(
        "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330_000, b'{"test": 2432232314}'
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_what_we_sign_the_reference_library_accepts() -> None:
    now = time.time_ns() // 1_000_000
    assert Webhook(SECRET).verify(BODY, signer.headers("work-1:2", now, BODY)) == json.loads(BODY)


def test_what_the_reference_library_signs_we_accept() -> None:
    moment = datetime.fromtimestamp(NOW // 1000, UTC)
    signature = Webhook(SECRET).sign("id.with.dots", moment, BODY.decode())
    headers = {"webhook-id": "id.with.dots", "webhook-timestamp": str(NOW // 1000), "webhook-signature": signature}
    verifier.verify(headers, BODY, NOW)


def test_header_names_have_no_case() -> None:
    headers = {name.title(): value for name, value in signer.headers("m", NOW, BODY).items()}
    assert "Webhook-Id" in headers
    verifier.verify(headers, BODY, NOW)
    verifier.verify(CIMultiDictProxy(CIMultiDict(headers)), BODY, NOW)


@pytest.mark.parametrize(
    ("offset_ms", "why"),
    [(301_000, "more than five minutes ago"), (-301_000, "five minutes ahead"), (86_400_000, "ago")],
)
def test_old_and_future_messages_are_refused_by_the_given_clock(offset_ms: int, why: str) -> None:
    with pytest.raises(InvalidSignature, match=why):
        verifier.verify(signer.headers("m", NOW, BODY), BODY, NOW + offset_ms)


@pytest.mark.parametrize("offset_ms", [299_000, -299_000, 0])
def test_five_minutes_are_tolerated(offset_ms: int) -> None:
    verifier.verify(signer.headers("m", NOW, BODY), BODY, NOW + offset_ms)


def test_several_signatures_of_several_versions() -> None:
    headers = signer.headers("m", NOW, BODY)
    headers["webhook-signature"] = f"v1a,AAAA v1,{'A' * 43}= garbage {headers['webhook-signature']}"
    verifier.verify(headers, BODY, NOW)


def test_a_signature_counts_in_its_own_version_only() -> None:
    headers = signer.headers("m", NOW, BODY)
    headers["webhook-signature"] = headers["webhook-signature"].replace("v1,", "v2,")
    with pytest.raises(InvalidSignature, match="no signature matches"):
        verifier.verify(headers, BODY, NOW)


def test_rotation_signs_with_every_secret_and_accepts_any() -> None:
    both = f"{SECRET}, {OTHER}"
    headers = Signer(both).headers("m", NOW, BODY)
    assert len(headers["webhook-signature"].split(" ")) == 2
    for secret in (SECRET, OTHER, both):
        Verifier(secret).verify(headers, BODY, NOW)
        Verifier(both).verify(Signer(secret).headers("m", NOW, BODY), BODY, NOW)
    with pytest.raises(InvalidSignature):
        Verifier(OTHER).verify(signer.headers("m", NOW, BODY), BODY, NOW)


@pytest.mark.parametrize("missing", ["webhook-id", "webhook-timestamp", "webhook-signature"])
@pytest.mark.parametrize("left", [None, ""])
def test_all_three_headers_are_needed(missing: str, left: str | None) -> None:
    headers = signer.headers("m", NOW, BODY)
    del headers[missing]
    if left is not None:
        headers[missing] = left
    with pytest.raises(InvalidSignature, match="are needed"):
        verifier.verify(headers, BODY, NOW)


@pytest.mark.parametrize("changed", ["webhook-id", "webhook-timestamp", "webhook-signature", "body"])
def test_nothing_of_it_can_be_changed(changed: str) -> None:
    headers = signer.headers("m", NOW, BODY)
    body = BODY + b" " if changed == "body" else BODY
    if changed == "webhook-timestamp":
        headers[changed] = str(NOW // 1000 + 1)
    elif changed != "body":
        headers[changed] += "A"
    with pytest.raises(InvalidSignature, match="no signature matches"):
        verifier.verify(headers, body, NOW)


@pytest.mark.parametrize("timestamp", ["now", "1e9", "-1", " 1", "1.5", "NaN", "٣", "9" * 5000, "0x10", "1_000"])
def test_a_timestamp_is_whole_seconds(timestamp: str) -> None:
    headers = {**signer.headers("m", NOW, BODY), "webhook-timestamp": timestamp}
    with pytest.raises(InvalidSignature, match="whole seconds"):
        verifier.verify(headers, BODY, NOW)


garbage = st.text() | st.text(alphabet=st.characters(categories=["Cs"]))


@given(garbage, garbage, garbage, st.binary())
def test_garbage_is_refused_and_never_an_error(message_id: str, timestamp: str, signature: str, body: bytes) -> None:
    for given_time in (timestamp, str(NOW // 1000)):
        headers = {"webhook-id": message_id, "webhook-timestamp": given_time, "webhook-signature": signature}
        with pytest.raises(InvalidSignature):
            verifier.verify(headers, body, NOW)


@given(st.binary())
def test_a_body_of_any_bytes_can_be_signed(body: bytes) -> None:
    verifier.verify(signer.headers("m", NOW, body), body, NOW)


def test_an_id_of_bytes_that_are_no_utf_8_is_signed_as_those_bytes() -> None:
    message_id = b"m\xff".decode("utf-8", "surrogateescape")
    verifier.verify(signer.headers(message_id, NOW, BODY), BODY, NOW)


def test_without_a_secret_nothing_is_accepted_or_signed() -> None:
    with pytest.raises(InvalidSignature, match="no signing secret"):
        Verifier("").verify(signer.headers("m", NOW, BODY), BODY, NOW)
    with pytest.raises(ValueError, match="secret"):
        Signer("")


def test_secrets_with_and_without_prefix_and_padding() -> None:
    padded = base64.b64encode(b"1234567").decode()
    assert padded.endswith("=")
    assert parse_secrets(f"whsec_{padded},{padded},whsec_{padded.rstrip('=')}, ,") == [b"1234567"] * 3


@pytest.mark.parametrize("wrong", ["whsec_", "whsec_*secret*", "whsec_A", "whsec_ab-_", "gräben"])
def test_a_wrong_secret_is_refused_without_being_repeated(wrong: str) -> None:
    with pytest.raises(ValueError, match="signing secret 2") as refusal:
        parse_secrets(f"{SECRET},{wrong}")
    assert wrong.removeprefix("whsec_") not in str(refusal.value) or wrong == "whsec_"
