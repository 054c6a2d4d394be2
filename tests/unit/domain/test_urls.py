"""Credentials in URLs: masked where they are shown, and what is masked is known again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.domain.urls import is_masked, mask_credentials, mask_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://worker:9000/a?b=c@d", "http://worker:9000/a?b=c@d"),
        ("http://worker/a:b@c", "http://worker/a:b@c"),
        ("http://user:pass@worker:9000/a", "http://user:***@worker:9000/a"),
        ("https://user:p:a@s@worker", "https://user:***@worker"),
        ('http://user:pa"ss\\<>@worker/', "http://user:***@worker/"),
        ("http://user:@worker/", "http://user:***@worker/"),
        ("http://:pass@worker?x", "http://:***@worker?x"),
        ("http://token@worker#x", "http://***@worker#x"),
        ("HTTP://user:pass@[::1]:80/", "HTTP://user:***@[::1]:80/"),
    ],
)
def test_a_url_is_shown_without_its_credentials(url: str, shown: str) -> None:
    assert mask_url(url) == shown
    assert mask_url(shown) == shown
    assert is_masked(shown) is (url != shown)
    assert is_masked(url) is False
    assert mask_credentials(shown) == shown


SECRET = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="/?#"), min_size=1)


@given(SECRET)
def test_no_password_is_left_in_a_url_or_a_text(secret: str) -> None:
    url = f"https://user:{secret}@worker.test/path"
    assert mask_url(url) == "https://user:***@worker.test/path"
    assert mask_credentials(f"cannot connect to {url} now") == "cannot connect to https://user:***@worker.test/path now"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mail me@example.com about http://worker/", "mail me@example.com about http://worker/"),
        ("postgresql://me:secret@db/x", "postgresql://me:***@db/x"),
        ("postgresql://me@db/x", "postgresql://me@db/x"),
        ("'http://a:b@c', 'http://t0ken@d/'", "'http://a:***@c', 'http://***@d/'"),
    ],
)
def test_texts_keep_what_is_no_credential(text: str, shown: str) -> None:
    assert mask_credentials(text) == shown
