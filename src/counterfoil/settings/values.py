"""Validators and parsers of single setting values."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError
from pydantic_settings import NoDecode

from counterfoil.domain.callbacks.secrets import NAME_PATTERN

Role = Literal["viewer", "operator", "reviewer", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "reviewer", "admin")
MIN_KEY_CHARACTERS = 16
"""Shorter secrets can be guessed."""

MAX_SECRET_CHARACTERS = 4_096

_KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}$)(?=.*[a-z_]){_LABEL}(\.{_LABEL})*", re.IGNORECASE)


@dataclass(frozen=True)
class ApiKey:
    """A caller of the API: its name, role and secret."""

    name: str
    role: Role
    secret: str = field(repr=False)


def refused(message: str) -> PydanticCustomError:
    """An error whose message already says what is allowed."""
    return PydanticCustomError("setting", "{message}", {"message": message})


def no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("whole_number", "must be a whole number, not true or false")
    return value


def comma_separated(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def secret_values(value: Any) -> Any:
    """The table [secrets]: a value, or a list of values, by name. No fault repeats a value."""
    if not isinstance(value, dict):
        return value
    for name, given in value.items():
        if not re.fullmatch(NAME_PATTERN, name):
            raise refused(
                "the name of a secret must have 1 to 64 lower-case letters, digits, _ or -, and begin with a letter or "
                "digit"
            )
        values = given if isinstance(given, list) else [given]
        if not values or not all(isinstance(text, str) and text.strip() == text != "" for text in values):
            raise refused(
                f"{name} must be a string, or a list of strings; none may be empty or begin or end with a space"
            )
        if any(len(text) > MAX_SECRET_CHARACTERS or not text.isprintable() for text in values):
            raise refused(f"{name} must have at most {MAX_SECRET_CHARACTERS} characters, all of them printable")
    return {name: given if isinstance(given, list) else [given] for name, given in value.items()}


def lower_case(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


Whole = Annotated[int, BeforeValidator(no_boolean)]
Names = Annotated[list[str], NoDecode, BeforeValidator(comma_separated)]
SecretValues = Annotated[dict[str, list[str]], NoDecode, BeforeValidator(secret_values)]


def parse_api_keys(text: str) -> list[ApiKey]:
    """Read ``name:role:secret,...``; a secret may hold colons, and no fault repeats it."""
    keys = []
    for place, entry in enumerate((part.strip() for part in text.split(",") if text.strip()), start=1):
        name, role, secret = [*entry.split(":", 2), "", "", ""][:3]
        if not _KEY_NAME.fullmatch(name) or not secret or not secret.isascii() or not secret.isprintable():
            raise refused(f"entry {place} must be name:role:secret, the secret in printable ASCII")
        known = next((each for each in ROLES if each == role), None)
        if known is None:
            raise refused(f"entry {place} has an unknown role; must be one of {', '.join(ROLES)}")
        if len(secret) < MIN_KEY_CHARACTERS:
            raise refused(
                f"the secret of key {name} is too short: at least {MIN_KEY_CHARACTERS} characters are needed; "
                "`counterfoil keys new` generates one"
            )
        keys.append(ApiKey(name, known, secret))
    return keys


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address; a name other than localhost may resolve to any address."""
    if not is_address(host):
        return host.lower() == "localhost"
    address = ipaddress.ip_address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def is_host_name(text: str) -> bool:
    return bool(_HOST_NAME.fullmatch(text)) and not text.rpartition(".")[2].isdigit()


def is_base_url(text: str) -> bool:
    """Whether it can be the base of webhook URLs: no credentials, query or fragment."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError:
        return False
    clean = text.isascii() and text.isprintable() and " " not in text and not set("@?#") & set(text)
    return clean and parts.scheme in ("http", "https") and bool(parts.hostname)


def is_postgres_url(text: str) -> bool:
    """Whether it is a PostgreSQL URL; host, user and password may come from the environment, as in libpq.

    A password with an unescaped slash or at-sign would be parsed into other parts of the URL, which errors show.
    """
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    hosts = parts.netloc.rpartition("@")[2]
    ports = [port for _, port in re.findall(r"(\]|[^:\],]):([^,\]]*)(?=,|$)", hosts)]
    clean = text.isprintable() and parts.netloc.count("@") <= 1 and "@" not in parts.path
    named = parts.scheme in ("postgresql", "postgres") and "://" in text
    return named and clean and all(port.isdigit() for port in ports)


def sqlite_file(url: str) -> str:
    return url.removeprefix("sqlite:///")
