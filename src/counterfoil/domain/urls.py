"""Masks credentials in URLs: endpoints are called with them, but no answer or log shows them.

``http://user:password@host/`` is shown as ``http://user:***@host/``, and a user without a password, which is usually a
token, as ``http://***@host/``. A masked URL cannot be registered: otherwise a definition that was read, changed and put
back would lose its password silently.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MASK = "***"
MASKED_FAULT = "the password is masked: send the real one"

_WITH_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^/?#]*)@", re.DOTALL)
_PASSWORD_IN_TEXT = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@:]*):[^\s/?#]*@")
_USER_IN_TEXT = re.compile(r"\b(https?://)[^\s/?#:]+@", re.IGNORECASE)


def mask_url(url: str) -> str:
    """The URL with its credentials masked."""
    return _WITH_USER.sub(lambda found: f"{found[1]}{_masked(found[2])}@", url, count=1)


def is_masked(url: str) -> bool:
    """Whether the credentials of a URL are masked, so that it cannot be called."""
    found = _WITH_USER.match(url)
    return found is not None and found[2] == _masked(found[2])


def mask_credentials(text: str) -> str:
    """Any text with the credentials of everything that looks like a URL masked. In doubt, more is masked."""
    if "@" not in text or "://" not in text:
        return text
    return _USER_IN_TEXT.sub(rf"\1{MASK}@", _PASSWORD_IN_TEXT.sub(rf"\1:{MASK}@", text))


def _masked(userinfo: str) -> str:
    user, colon, _ = userinfo.partition(":")
    return f"{user}:{MASK}" if colon else MASK


# -- relays -------------------------------------------------------------------------------------------------------

RELAY_SCHEME = "relay://"
RELAY_NAME_PATTERN = r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$"
_RELAY = re.compile(r"relay://([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)((?:[/?][\x21-\x7e]*)?)")


class RelayAddress(NamedTuple):
    """Where a request goes through a relay: the relay's name, and path and query at the worker behind it."""

    name: str
    path: str


def relay_address(url: str) -> RelayAddress | None:
    """The parts of ``relay://<name>/<path>``; None: the URL is not of this form."""
    found = _RELAY.fullmatch(url)
    if found is None or "#" in found[2]:
        return None
    return RelayAddress(found[1], found[2] if found[2].startswith("/") else f"/{found[2]}")
