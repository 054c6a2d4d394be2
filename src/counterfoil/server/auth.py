"""Authorization: API keys with roles, and a guard against requests that a foreign page makes a browser send.

The socket's peer address is the only one that counts; headers of proxies can take a privilege away, never give one.
Without keys the engine serves loopback only, and then there are two dangers. A page in a browser on the same machine is
told apart by its ``Origin``, and by a ``Host`` that is no loopback name (DNS rebinding). A proxy on the same machine
would make every caller in the world a local one: requests with forwarding headers are refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

from aiohttp import web

from counterfoil.domain.approvals.decisions import NOBODY
from counterfoil.domain.approvals.terms import Reviewers
from counterfoil.domain.errors import Forbidden, Unauthenticated
from counterfoil.server.throttle import KeyThrottle
from counterfoil.settings import ROLES, ApiKey, Role

READERS: frozenset[Role] = frozenset(ROLES)
OPERATORS: frozenset[Role] = frozenset({"operator", "admin"})
REVIEWERS: frozenset[Role] = frozenset({"reviewer", "admin"})
ADMINS: frozenset[Role] = frozenset({"admin"})

CALLER: web.RequestKey[str] = web.RequestKey("caller", str)
"""The name of the API key of a request: it identifies the caller, never a field of a body."""

WITHOUT_KEY = NOBODY
"""The name of a caller whose request needs no API key."""

PROXY_HEADERS = frozenset({"forwarded", "x-real-ip", "via"})
PROXY_HEADER_PREFIX = "x-forwarded"
_DEFAULT_PORTS = {"http": 80, "https": 443}


def caller(request: web.Request) -> str:
    """The name of the API key that was admitted; ``local`` where there are no keys."""
    return request[CALLER]


def named_caller(request: web.Request) -> str | None:
    """The same, with None where there are no keys."""
    name = request[CALLER]
    return None if name == NOBODY else name


def reviewers_among(keys: Iterable[ApiKey]) -> Reviewers:
    """How many callers can approve, as these keys tell them apart. A requester may be an operator, or else an admin."""
    roles = {key.name: key.role for key in keys}
    if not roles:
        return Reviewers()
    reviewers = sum(role in REVIEWERS for role in roles.values())
    return Reviewers(reviewers, reviewers if "operator" in roles.values() else max(reviewers - 1, 0))


class KeyRing:
    """The configured keys. Secrets are compared as digests, each with each, so that time tells nothing."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._keys = [(_digest(key.name), _digest(key.secret), key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._keys)

    def key_of(self, authorization: str) -> ApiKey | None:
        """The key that an ``Authorization`` header presents; None when it presents none of ours."""
        scheme, _, credentials = authorization.strip().partition(" ")
        name: str | None = None
        secret = credentials.strip()
        if scheme.lower() == "basic":
            name, secret = _basic(secret)
        elif scheme.lower() != "bearer":
            return None
        return self._find(None if name is None else _digest(name), _digest(secret)) if secret else None

    def _find(self, name: bytes | None, secret: bytes) -> ApiKey | None:
        found: ApiKey | None = None
        for key_name, key_secret, key in self._keys:
            same = hmac.compare_digest(key_secret, secret)
            same &= name is None or hmac.compare_digest(key_name, name)
            if same and found is None:
                found = key
        return found


class Guard:
    """Lets a request through to a route, or raises Unauthenticated or Forbidden."""

    def __init__(self, keys: KeyRing, throttle: KeyThrottle | None = None) -> None:
        self._keys = keys
        self._throttle = throttle or KeyThrottle()

    async def admit(
        self, request: web.Request, roles: frozenset[Role] | None, *, open_on_loopback: bool = False
    ) -> str:
        """The same as ``check``; the refusal of a wrong key may come late. A right key never waits."""
        try:
            return self.check(request, roles, open_on_loopback=open_on_loopback)
        except Unauthenticated:
            if "Authorization" in request.headers:
                await self._throttle.failed(request.remote)
            raise

    def check(self, request: web.Request, roles: frozenset[Role] | None, *, open_on_loopback: bool = False) -> str:
        """The name of the key that asks. ``roles`` may use the route; None: every caller may."""
        self.refuse_forwarded(request)
        self._refuse_foreign_pages(request)
        if roles is None or not self._keys or (open_on_loopback and is_local(request) and names_loopback(request)):
            return NOBODY  # a caller on this machine
        given = request.headers.getall("Authorization", [])
        key = self._keys.key_of(given[0]) if len(given) == 1 else None
        if key is None:
            raise Unauthenticated
        if key.role not in roles:
            raise Forbidden(needs=sorted(roles))
        return key.name

    def refuse_forwarded(self, request: web.Request) -> None:
        """Without keys every caller is an admin: behind a proxy, callers from anywhere would be."""
        if not self._keys and is_forwarded(request):
            raise Forbidden(
                "this request came through a proxy (it carries forwarding headers), and without API keys the engine "
                "serves this machine only; set api_keys (COUNTERFOIL_API_KEYS) to serve it behind a proxy"
            )

    def _refuse_foreign_pages(self, request: web.Request) -> None:
        host = request.headers.get("Host", "")
        origin = request.headers.get("Origin")
        if origin is not None and not same_origin(origin, host):
            raise Forbidden("cross-origin requests to this API are not allowed")
        if not self._keys and not names_loopback(request):
            raise Forbidden(
                "without API keys, the engine answers only to loopback names such as localhost; "
                "configure API keys to serve it under another name"
            )


def is_local(request: web.Request) -> bool:
    """Whether the request comes from this machine, and not through a proxy on it."""
    try:
        peer = ipaddress.ip_address(request.remote or "")
    except ValueError:
        return False
    mapped = peer.ipv4_mapped if isinstance(peer, ipaddress.IPv6Address) else None
    return (mapped or peer).is_loopback and not is_forwarded(request)


def is_forwarded(request: web.Request) -> bool:
    """Whether a proxy says that it has passed the request on."""
    names = (name.lower() for name in request.headers)
    return any(name in PROXY_HEADERS or name.startswith(PROXY_HEADER_PREFIX) for name in names)


def names_loopback(request: web.Request) -> bool:
    """Whether the request is for a loopback name. Without a ``Host`` it is from no browser, so for none of a page."""
    host = request.headers.get("Host", "")
    return not host or is_loopback_name(_split(f"//{host}"))


def same_origin(origin: str, host: str) -> bool:
    """Whether a page of this origin was served under this ``Host``; ``null`` and nonsense never were."""
    page, server = _split(origin), _split(f"//{host}")
    if page is None or server is None or page.scheme not in _DEFAULT_PORTS or not page.hostname:
        return False
    default = _DEFAULT_PORTS[page.scheme]
    return page.hostname == server.hostname and (page.port or default) == (server.port or default)


def is_loopback_name(host: SplitResult | None) -> bool:
    """Whether a name can only mean this machine, whatever a name server says."""
    name = host.hostname if host is not None else None
    if not name:
        return False
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for a port that is no port
    except ValueError:
        return None
    return parts


def _basic(credentials: str) -> tuple[str, str]:
    try:
        name, _, secret = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return name, secret


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()
