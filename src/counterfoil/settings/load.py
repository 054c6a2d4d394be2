"""Load settings from flags, then environment, then file, then defaults.

Invalid settings stop the start with a ``SettingsError`` that names the setting, the source of its value and what is
allowed. Values that are, or may hold, a secret are never repeated in an error.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import EnvSettingsSource, TomlConfigSettingsSource

from counterfoil.settings.model import PREFIX, SECRET_PREFIX, TABLES, Settings, describe_settings

DEFAULT_CONFIG = Path("counterfoil.toml")
CONFIG_VARIABLE = "COUNTERFOIL_CONFIG"
CLIENT_VARIABLES = frozenset({"COUNTERFOIL_URL", "COUNTERFOIL_KEY"})
"""Variables that the client commands read; they are not settings, so they must not be reported as unknown ones."""
BASE_URL_VARIABLE = "WEBHOOK_BASE_URL"
UNSHOWN = frozenset(
    {"api_keys", "receipt_secrets", "secrets", "signing_secret", "store", "store_listen", "webhook_base_url"}
)
"""Settings whose values are, or may hold, a secret: errors do not repeat them."""


MERGED = (*TABLES, "secrets")
"""Settings that are tables: their entries are overridden one by one."""


class SettingsError(Exception):
    """Invalid settings; each fault has its own line."""

    def __init__(self, *faults: str) -> None:
        self.faults = faults
        super().__init__("\n".join(faults))


class _Layer(NamedTuple):
    """The values of one source, and the origin of each for error messages."""

    values: dict[str, Any]
    origins: dict[str, str]


def load_settings(config: Path | None = None, **flags: Any) -> Settings:
    """Merge flags (None: not given), environment, file and defaults; raises SettingsError.

    The file is the given one, else that of ``COUNTERFOIL_CONFIG``, else ``counterfoil.toml`` in the current directory.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    layers = [
        _read_file(config),
        _read_environment(),
        _Layer(given, {name: f"flag --{name.replace('_', '-')}" for name in given}),
    ]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        merged = {name: {**values.get(name, {}), **_table(layer, name)} for name in MERGED}
        values |= layer.values | {name: table for name, table in merged.items() if table}
        origins |= layer.origins
    try:
        return Settings(**values)
    except ValidationError as error:
        faults = [_fault(detail, values, origins) for detail in error.errors(include_url=False)]
        raise SettingsError(*faults) from None


def _table(layer: _Layer, name: str) -> dict[str, Any]:
    table = layer.values.get(name, {})
    if isinstance(table, BaseModel):
        return table.model_dump()
    if not isinstance(table, dict):
        raise SettingsError(f"{name} ({layer.origins[name]}): must be a table of settings, as in [{name}]")
    return table


def _read_file(config: Path | None) -> _Layer:
    named = config or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    path = named or DEFAULT_CONFIG
    if named is None and not path.exists():
        return _Layer({}, {})
    if not path.is_file():
        raise SettingsError(f"config file {path}: file not found")
    try:
        values = TomlConfigSettingsSource(Settings, toml_file=path).toml_data
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"config file {path}: not valid TOML: {error}") from None
    except OSError as error:
        raise SettingsError(f"config file {path}: cannot be read: {error.strerror}") from None
    private = sorted(name for name in values if name.startswith("_"))  # pydantic-settings reserves these names
    if private:
        raise SettingsError(*(f"{name} (file {path}): no such setting" for name in private))
    return _Layer(values, dict.fromkeys(_places(values), f"file {path}"))


def _read_environment() -> _Layer:
    variables = {item.variable: item.name for item in describe_settings()}
    secrets = _secrets()
    known = {*variables, *secrets, CONFIG_VARIABLE, *CLIENT_VARIABLES}
    unknown = sorted(name for name in os.environ if name.upper().startswith(PREFIX) and name.upper() not in known)
    if unknown:
        raise SettingsError(*(f"environment variable {name}: {_unknown(name.upper(), known)}" for name in unknown))
    values = EnvSettingsSource(Settings)()
    for table in TABLES.keys() & values.keys():  # numbers and booleans are strict here, as in the HTTP API
        values[table] = {name: _scalar(text) for name, text in values[table].items()}
    origins = {name: f"environment variable {variable}" for variable, name in variables.items()}
    if filled := {name: parts for name, parts in secrets.values() if parts}:
        values["secrets"] = filled
        origins["secrets"] = f"environment variables {', '.join(secrets)}"
    if "webhook_base_url" not in values and os.environ.get(BASE_URL_VARIABLE):
        values["webhook_base_url"] = os.environ[BASE_URL_VARIABLE]
        origins["webhook_base_url"] = f"environment variable {BASE_URL_VARIABLE}"
    return _Layer(values, {place: origins[place] for place in _places(values) if place in origins})


def _secrets() -> dict[str, tuple[str, list[str]]]:
    """The secrets of the environment: by variable the name of each and its values, which commas separate."""
    given = {name.upper(): text for name, text in os.environ.items() if name.upper().startswith(SECRET_PREFIX)}
    return {
        variable: (variable.removeprefix(SECRET_PREFIX).lower(), [part.strip() for part in text.split(",") if text])
        for variable, text in given.items()
        if variable != SECRET_PREFIX
    }


def _scalar(text: Any) -> Any:
    try:
        value = json.loads(text)
    except (TypeError, ValueError):
        return text
    return text if isinstance(value, (list, str)) else value


def _places(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from _places(value, f"{prefix}{name}.")


def _fault(detail: ErrorDetails, values: dict[str, Any], origins: dict[str, str]) -> str:
    """One line: the setting, its value if it may be shown, its origin, what is wrong and what is allowed."""
    context = detail.get("ctx", {})
    path = [context["setting"]] if "setting" in context else [str(part) for part in detail["loc"]]
    name = ".".join(path[: 2 if path[0] in MERGED else 1])
    origin = origins.get(name, "default")
    if detail["type"] == "extra_forbidden":
        return f"{name} ({origin}): {_unknown(name, {item.name for item in describe_settings()})}"
    shown = "" if path[0] in UNSHOWN else f" = {_value_at(values, name)!r}"
    allowed = "" if detail["type"] == "setting" else _allowed(name)
    return f"{name}{shown} ({origin}): {f'must be {allowed}' if allowed else detail['msg']}"


def _value_at(values: dict[str, Any], name: str) -> Any:
    table, _, rest = name.partition(".")
    value = values.get(table, Settings.model_fields[table].default)
    return value.get(rest) if rest and isinstance(value, dict) else value


def _unknown(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return "no such setting" + (
        f"; did you mean {near[0]}?" if near else "; config/counterfoil.toml lists all settings"
    )


def _allowed(name: str) -> str:
    """The allowed values of a setting, derived from its schema; empty if the schema does not say enough."""
    table, _, rest = name.partition(".")
    schema = (TABLES[table] if rest else Settings).model_json_schema()["properties"][rest or table]
    options = [option for option in schema.get("anyOf", [schema]) if option.get("type") != "null"]
    option = options[0]
    if "enum" in option:
        return "one of " + ", ".join(option["enum"])
    if option.get("type") == "integer":
        most = f" to {option['maximum']}" if "maximum" in option else " upwards"
        return f"a whole number from {option['minimum']}{most}"
    return {"boolean": "true or false", "string": "a string", "array": "a list of strings"}.get(
        option.get("type", ""), ""
    )
