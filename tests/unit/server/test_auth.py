from __future__ import annotations

import base64
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from counterfoil.domain.errors import Forbidden, Unauthenticated
from counterfoil.server.auth import ADMINS, OPERATORS, READERS, REVIEWERS, Guard, KeyRing, is_local, same_origin
from counterfoil.settings import ApiKey, Role

SECRETS: dict[Role, str] = {
    "viewer": "looks-only",
    "operator": "starts-and-cancels",
    "reviewer": "approves",
    "admin": "does-all-of-it",
}
KEYS = KeyRing(ApiKey(name=f"{role}-key", role=role, secret=secret) for role, secret in SECRETS.items())
NO_KEYS = KeyRing([])


def request_with(peer: str = "127.0.0.1", method: str = "GET", **headers: str) -> web.Request:
    """A request whose socket has this peer; underscores in header names stand for hyphens."""
    transport = Mock()
    transport.get_extra_info.side_effect = lambda name, default=None: (peer, 4711) if name == "peername" else default
    named = {"Host": "localhost:8080", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return make_mocked_request(method, "/api/v1/flows", headers=named, transport=transport)


def basic(name: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()


@pytest.mark.parametrize("role", SECRETS)
def test_a_key_is_known_by_its_secret_or_by_name_and_secret(role: Role) -> None:
    known = ApiKey(name=f"{role}-key", role=role, secret=SECRETS[role])
    assert KEYS.key_of(f"Bearer {SECRETS[role]}") == known
    assert KEYS.key_of(f"bearer   {SECRETS[role]} ") == known
    assert KEYS.key_of(basic(f"{role}-key", SECRETS[role])) == known


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer unknown",
        "Bearer looks-onl",
        "Bearer looks-only2",
        "Digest looks-only",
        "looks-only",
        "Basic",
        "Basic !!!",
        "Basic " + base64.b64encode(b"\xff\xfe:x").decode(),
        "Basic " + base64.b64encode(b"no colon").decode(),
        basic("viewer-key", ""),
        basic("viewer-key", "does-all-of-it"),
        basic("admin-key", "looks-only"),
        basic("", "looks-only"),
        "Bearer \udcff",
    ],
)
def test_nothing_else_is_a_key(header: str) -> None:
    assert KEYS.key_of(header) is None


def test_a_name_and_a_secret_outside_of_ascii_work() -> None:
    known = ApiKey(name="schlüssel", role="viewer", secret="geheim:ñ")
    assert KeyRing([known]).key_of(basic("schlüssel", "geheim:ñ")) == known


@pytest.mark.parametrize(
    ("roles", "allowed"),
    [
        (READERS, {"viewer", "operator", "reviewer", "admin"}),
        (OPERATORS, {"operator", "admin"}),
        (REVIEWERS, {"reviewer", "admin"}),
        (ADMINS, {"admin"}),
    ],
)
def test_each_role_may_do_what_it_is_for(roles: frozenset[Role], allowed: set[Role]) -> None:
    guard = Guard(KEYS)
    for role, secret in SECRETS.items():
        request = request_with(Authorization=f"Bearer {secret}")
        if role in allowed:
            assert guard.check(request, roles) == f"{role}-key", "what is done is done in the name of the key"
        else:
            with pytest.raises(Forbidden):
                guard.check(request, roles)


def test_without_a_valid_key_there_is_no_caller() -> None:
    for headers in ({}, {"Authorization": "Bearer unknown"}):
        with pytest.raises(Unauthenticated):
            Guard(KEYS).check(request_with(**headers), READERS)


def test_two_authorizations_are_none() -> None:
    transport = Mock()
    transport.get_extra_info.return_value = None
    fields: Any = [("Host", "localhost"), ("Authorization", "Bearer looks-only"), ("Authorization", "Bearer unknown")]
    from multidict import CIMultiDict

    request = make_mocked_request("GET", "/", headers=CIMultiDict(fields), transport=transport)
    with pytest.raises(Unauthenticated):
        Guard(KEYS).check(request, READERS)


def test_open_routes_need_no_key() -> None:
    Guard(KEYS).check(request_with(peer="203.0.113.9"), None)


def test_without_keys_everything_is_allowed() -> None:
    for roles in (READERS, OPERATORS, ADMINS):
        assert Guard(NO_KEYS).check(request_with(method="POST"), roles) == "local"


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_health_needs_no_key_on_loopback(peer: str) -> None:
    Guard(KEYS).check(request_with(peer=peer), READERS, open_on_loopback=True)


@pytest.mark.parametrize("peer", ["203.0.113.9", "10.0.0.1", "2001:db8::1", "::ffff:10.0.0.1", ""])
def test_health_needs_a_key_from_elsewhere(peer: str) -> None:
    with pytest.raises(Unauthenticated):
        Guard(KEYS).check(request_with(peer=peer), READERS, open_on_loopback=True)


def test_headers_of_a_proxy_never_give_and_may_take() -> None:
    assert not is_local(request_with(peer="203.0.113.9", X_Forwarded_For="127.0.0.1", X_Real_IP="127.0.0.1"))
    for header in ("Forwarded", "X_Forwarded_For", "X_Real_IP", "Via"):
        assert not is_local(request_with(**{header: "127.0.0.1"}))
    assert is_local(request_with())


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://localhost:8080", "localhost:8080"),
        ("http://LOCALHOST:8080", "localhost:8080"),
        ("http://localhost", "localhost:80"),
        ("http://localhost:80", "localhost"),
        ("https://flows.example.com", "flows.example.com"),
        ("https://flows.example.com:443", "flows.example.com"),
        ("http://[::1]:8080", "[::1]:8080"),
    ],
)
def test_a_page_of_this_server_is_of_the_same_origin(origin: str, host: str) -> None:
    assert same_origin(origin, host)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://evil.example", "localhost:8080"),
        ("http://localhost:3000", "localhost:8080"),
        ("http://localhost", "localhost:8080"),
        ("http://localhost.evil.example:8080", "localhost:8080"),
        ("null", "localhost:8080"),
        ("", "localhost:8080"),
        ("file://", "localhost:8080"),
        ("http://[", "localhost:8080"),
        ("http://localhost:99999", "localhost:8080"),
        ("http://localhost:8080", "localhost:x"),
        ("http://localhost:8080", ""),
    ],
)
@pytest.mark.parametrize("keys", [KEYS, NO_KEYS], ids=["keys", "no keys"])
def test_pages_of_other_origins_are_refused(origin: str, host: str, keys: KeyRing) -> None:
    request = request_with(Host=host, Origin=origin, Authorization="Bearer does-all-of-it", method="POST")
    with pytest.raises(Forbidden):
        Guard(keys).check(request, ADMINS)


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "app.localhost", "127.0.0.1:8080", "[::1]:8080", ""])
def test_without_keys_loopback_names_are_served(host: str) -> None:
    Guard(NO_KEYS).check(request_with(Host=host), READERS)


@pytest.mark.parametrize("host", ["rebound.evil.example:8080", "localhost.evil.example", "10.0.0.1", "[", "x:y"])
def test_without_keys_other_names_are_refused(host: str) -> None:
    with pytest.raises(Forbidden):
        Guard(NO_KEYS).check(request_with(Host=host), READERS)
    with pytest.raises(Forbidden):
        Guard(NO_KEYS).check(request_with(Host=host), READERS, open_on_loopback=True)


def test_with_keys_any_name_is_served() -> None:
    Guard(KEYS).check(request_with(Host="flows.example.com", Authorization="Bearer looks-only"), READERS)
