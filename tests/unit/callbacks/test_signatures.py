"""Signatures of vendors: each preset against signatures that another implementation made, and everything that is not
one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from counterfoil.domain.callbacks.accept import Accept
from counterfoil.domain.callbacks.presets import PRESETS, SCHEMES
from counterfoil.domain.callbacks.reading import verify_callback
from counterfoil.domain.callbacks.secrets import Secrets
from counterfoil.domain.errors import InvalidSignature
from tests.vendors import GITHUB, SLACK, STANDARD, STRIPE, VENDORS, Vendor

NOW = 1_760_000_000_000
SECONDS = NOW // 1000
BODY = '{"type": "ping", "text": "grüße  \\u00e9"}'.encode()

every_vendor = pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.preset)
with_time = pytest.mark.parametrize("vendor", [v for v in VENDORS if v.has_time], ids=lambda vendor: vendor.preset)


@pytest.fixture(autouse=True)
def _stripe_reads_the_same_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: NOW / 1000)


def accept_of(vendor: Vendor, **more: Any) -> Accept:
    return Accept.model_validate({"signature": {"preset": vendor.preset, "secret": "setting:it", **more}})


def verify(
    vendor: Vendor, headers: Any, body: bytes = BODY, values: list[str] | None = None, now: int = NOW, **more: Any
) -> None:
    secrets = Secrets({"it": [vendor.secret] if values is None else values})
    verify_callback(accept_of(vendor, **more), headers, body, secrets, now)


def refused(vendor: Vendor, headers: Any, **arguments: Any) -> str:
    with pytest.raises(InvalidSignature) as caught:
        verify(vendor, headers, **arguments)
    assert vendor.secret not in caught.value.message
    return caught.value.message


@every_vendor
def test_a_right_signature(vendor: Vendor) -> None:
    verify(vendor, vendor.sign(vendor.secret, BODY, SECONDS))


@every_vendor
def test_header_names_are_case_insensitive_and_other_headers_do_not_matter(vendor: Vendor) -> None:
    signed = {name.upper(): value for name, value in vendor.sign(vendor.secret, BODY, SECONDS).items()}
    verify(vendor, {"User-Agent": "vendor", **signed, "X-Odd": "\udcff"})
    verify(vendor, CIMultiDict(signed))


@every_vendor
def test_another_secret(vendor: Vendor) -> None:
    assert refused(vendor, vendor.sign(vendor.other_secret, BODY, SECONDS)) == (
        "no signature of the callback matches its body"
    )


@every_vendor
@pytest.mark.parametrize("body", [b"", BODY + b" ", BODY[:-1], BODY.replace(b"  ", b" ")])
def test_another_body(vendor: Vendor, body: bytes) -> None:
    """Not one byte may differ: the text is not parsed and written again."""
    refused(vendor, vendor.sign(vendor.secret, BODY, SECONDS), body=body)


@every_vendor
def test_each_missing_header_is_named(vendor: Vendor) -> None:
    signed = vendor.sign(vendor.secret, BODY, SECONDS)
    for name in signed:
        message = refused(vendor, {other: value for other, value in signed.items() if other != name})
        assert name.lower() in message.lower()


@with_time
def test_an_old_signature_is_a_replay(vendor: Vendor) -> None:
    """Taken to the last second of the tolerance, and not after it; the same message, byte for byte."""
    signed = vendor.sign(vendor.secret, BODY, SECONDS)
    verify(vendor, signed, now=NOW + 300_000)
    assert refused(vendor, signed, now=NOW + 300_001) == "the callback was signed more than 300 seconds ago"


@with_time
def test_a_signature_from_the_future(vendor: Vendor) -> None:
    signed = vendor.sign(vendor.secret, BODY, SECONDS)
    verify(vendor, signed, now=NOW - 300_000)
    assert refused(vendor, signed, now=NOW - 300_001) == "the callback is dated more than 300 seconds ahead"


@with_time
def test_the_tolerance_is_a_field(vendor: Vendor) -> None:
    signed = vendor.sign(vendor.secret, BODY, SECONDS)
    verify(vendor, signed, now=NOW + 3_600_000, tolerance_seconds=3600)
    refused(vendor, signed, now=NOW + 11_000, tolerance_seconds=10)


@with_time
@pytest.mark.parametrize("text", ["", "soon", "-5", "1760000000.5", "9" * 13, "١٧٦٠٠٠٠٠٠٠", " 1760000000 1"])
def test_a_time_that_is_none(vendor: Vendor, text: str) -> None:
    headers = vendor.sign(vendor.secret, BODY, SECONDS)
    assert "seconds" in refused(vendor, {name: value.replace(str(SECONDS), text) for name, value in headers.items()})


@with_time
def test_another_time_is_another_signature(vendor: Vendor) -> None:
    """The time is signed: an old message cannot be given a new one."""
    headers = vendor.sign(vendor.secret, BODY, SECONDS - 3600)
    moved = {name: value.replace(str(SECONDS - 3600), str(SECONDS)) for name, value in headers.items()}
    assert refused(vendor, moved) == "no signature of the callback matches its body"


def test_github_has_no_time() -> None:
    verify(GITHUB, GITHUB.sign(GITHUB.secret, BODY, SECONDS), now=NOW + 10**12)


@every_vendor
def test_each_value_of_a_secret_counts_while_it_is_replaced(vendor: Vendor) -> None:
    for secret in (vendor.secret, vendor.other_secret):
        verify(vendor, vendor.sign(secret, BODY, SECONDS), values=[vendor.other_secret, vendor.secret])
    refused(vendor, vendor.sign(vendor.other_secret, BODY, SECONDS), values=[vendor.secret])


@every_vendor
def test_a_secret_that_was_removed(vendor: Vendor) -> None:
    message = refused(vendor, vendor.sign(vendor.secret, BODY, SECONDS), values=[])
    assert message == "the engine has no secret it, so no signature can be checked"


def test_stripe_sends_one_signature_for_each_secret_while_it_is_rolled() -> None:
    ours = STRIPE.sign(STRIPE.secret, BODY, SECONDS)["Stripe-Signature"].split(",")[1]
    theirs = STRIPE.sign(STRIPE.other_secret, BODY, SECONDS)["Stripe-Signature"].split(",")[1]
    for order in ((ours, theirs), (theirs, ours)):
        verify(STRIPE, {"Stripe-Signature": f"t={SECONDS},{','.join(order)}"})


def test_stripe_signs_with_its_secret_as_it_stands_and_standard_webhooks_decodes_it() -> None:
    secret = STANDARD.secret
    verify(STRIPE, STRIPE.sign(secret, BODY, SECONDS), values=[secret])
    verify(STANDARD, STANDARD.sign(secret, BODY, SECONDS), values=[secret])
    unprefixed = secret.removeprefix("whsec_")
    verify(STANDARD, STANDARD.sign(secret, BODY, SECONDS), values=[unprefixed])
    refused(STRIPE, STRIPE.sign(secret, BODY, SECONDS), values=[unprefixed])


def test_a_signature_of_another_version_does_not_count() -> None:
    """Stripe's v0 and v2 are signed otherwise; so are those of others."""
    header = STRIPE.sign(STRIPE.secret, BODY, SECONDS)["Stripe-Signature"]
    for version in ("v0", "v2", "v11", "V1", ""):
        refused(STRIPE, {"Stripe-Signature": header.replace("v1=", f"{version}=").replace(",v0=" + "0" * 64, "")})
    standard = STANDARD.sign(STANDARD.secret, BODY, SECONDS)
    refused(STANDARD, {**standard, "webhook-signature": standard["webhook-signature"].replace("v1,", "v1a,")})


def test_two_times_are_no_time() -> None:
    header = STRIPE.sign(STRIPE.secret, BODY, SECONDS)["Stripe-Signature"]
    assert "one timestamp" in refused(STRIPE, {"Stripe-Signature": f"t={SECONDS + 1},{header}"})


def test_the_example_of_github() -> None:
    """The values that its documentation gives for trying an implementation."""
    headers = {"X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}
    verify(GITHUB, headers, body=b"Hello, World!", values=["It's a Secret to Everybody"])


def test_the_example_of_slack() -> None:
    """The values that its documentation gives."""
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name="
        b"foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks."
        b"slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121."
        b"803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "X-Slack-Request-Timestamp": "1531420618",
        "X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    }
    verify(SLACK, headers, body=body, values=["8f742231b10e8888abcd99yyyzzz85a5"], now=1_531_420_618_000)


@pytest.mark.parametrize("algorithm", ["sha1", "sha256", "sha512"])
@pytest.mark.parametrize("encoding", ["hex", "base64"])
def test_a_vendor_without_a_preset(algorithm: str, encoding: str) -> None:
    import base64
    import hmac

    rule = {
        "scheme": "hmac",
        "secret": "setting:it",
        "header": "X-Signed",
        "format": "id={signature}; at={timestamp}",
        "signed": "{timestamp}|{header:X-Event}|{body}|",
        "algorithm": algorithm,
        "encoding": encoding,
    }
    digest = hmac.digest(b"key", f"{SECONDS}|paid|".encode() + BODY + b"|", algorithm)
    text = digest.hex().upper() if encoding == "hex" else base64.b64encode(digest).decode()
    headers = {"x-signed": f"at={SECONDS}; id={text}", "x-event": "paid"}
    accept = Accept.model_validate({"signature": rule})
    verify_callback(accept, headers, BODY, Secrets({"it": ["key"]}), NOW)
    for wrong in ({**headers, "x-event": "other"}, {"x-signed": headers["x-signed"]}):
        with pytest.raises(InvalidSignature):
            verify_callback(accept, wrong, BODY, Secrets({"it": ["key"]}), NOW)


def test_svix_signs_like_standard_webhooks_under_other_names() -> None:
    rule = {
        "scheme": "standard-webhooks",
        "secret": "setting:it",
        "header": "svix-signature",
        "timestamp_header": "svix-timestamp",
        "signed": "{header:svix-id}.{timestamp}.{body}",
    }
    signed = STANDARD.sign(STANDARD.secret, BODY, SECONDS)
    headers = {name.replace("webhook-", "svix-"): value for name, value in signed.items()}
    verify_callback(Accept.model_validate({"signature": rule}), headers, BODY, Secrets({"it": [STANDARD.secret]}), NOW)


def test_every_preset_is_a_value_of_the_same_fields() -> None:
    """Written out, a preset is a valid rule that checks the same."""
    for vendor in VENDORS:
        written = Accept.model_validate({"signature": {**PRESETS[vendor.preset], "secret": "setting:it"}})  # type: ignore[index]
        assert written.signature is not None
        named = accept_of(vendor).signature
        assert named is not None
        assert written.signature.check == named.check
    assert {PRESETS[name]["scheme"] for name in PRESETS} == set(SCHEMES)


HEADER_TEXT = st.text(st.characters(exclude_characters="\r\n"), max_size=200)


@every_vendor
@given(data=st.data())
def test_whatever_the_headers_contain_it_is_refused_as_a_signature(vendor: Vendor, data: st.DataObject) -> None:
    """No header and no body raises anything else, nor is any of them taken."""
    names = list(GITHUB.sign("x", b"", 0)) + list(vendor.sign(vendor.secret, b"", SECONDS))
    parts = st.one_of(
        HEADER_TEXT,
        st.sampled_from(
            ["t=", "v1=", "v0=", "v1,", "sha256=", ",", " ", str(SECONDS), "0" * 64, "=", "\udcff", "\ud800"]
        ),
    )
    value = st.lists(parts, max_size=6).map("".join)
    headers = data.draw(st.dictionaries(st.sampled_from(names), value, max_size=4))
    with pytest.raises(InvalidSignature):
        verify(vendor, headers, body=data.draw(st.binary(max_size=64)))


def test_the_text_of_secrets_has_names_only() -> None:
    secrets = Secrets({"b": ["hidden"], "a": ["hidden", "hidden too"]})
    assert (repr(secrets), str(secrets), secrets.names) == ("Secrets(a, b)", "Secrets(a, b)", ["a", "b"])
