"""Which arguments count for the key, and their one plain form.

The canonical form (RFC 8785) is that of the engine's keys. What pydantic makes of arguments is brought to JSON so that
equal values give equal text in every process: decimals without trailing zeros, times in UTC, sets in order.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic_core import to_jsonable_python

from counterfoil.domain.canonical import canonical_json, digest
from counterfoil.domain.effects.key_digests import kept_arguments, key_digest

LARGEST_DIGITS = 300
"""Longer integers are kept as text: no double holds them."""
_KEY_NAME = "idempotencykey"


@dataclass(frozen=True, slots=True)
class NotInKey:
    """Marks a field of an argument model that does not count for the key: ``reason: Annotated[str, NotInKey()]``.

    For what a model writes anew at each retry without meaning another action: free text, times, trace ids.
    """


def counted_arguments(
    arguments: BaseModel, keep: Collection[str] | None, strip: Collection[str] | None
) -> dict[str, Any]:
    """The arguments that distinguish one action from another, as plain JSON values."""
    return kept_arguments(_plain_model(arguments), keep, strip)


def derived_key(conversation_id: str, step_id: str, tool: str, counted: dict[str, Any]) -> str:
    """The key of an action: the same for every retry of one step with one tool and equal arguments."""
    return key_digest([conversation_id, step_id, tool], counted)


def arguments_digest(counted: dict[str, Any]) -> str:
    return key_digest(["arguments"], counted)


def unkeyed_fields(model: type[BaseModel]) -> list[str]:
    """The names of the fields that are marked with ``NotInKey``."""
    return [name for name, found in model.model_fields.items() if _is_unkeyed(found.metadata)]


def names_a_key(name: object) -> bool:
    return isinstance(name, str) and re.sub(r"[^a-z]", "", name.lower()) == _KEY_NAME


def holds_a_key(value: Any) -> bool:
    """Whether a name anywhere in a JSON value is that of an idempotency key."""
    if isinstance(value, Mapping):
        return any(names_a_key(name) or holds_a_key(item) for name, item in value.items())
    return isinstance(value, list | tuple) and any(map(holds_a_key, value))


def _is_unkeyed(metadata: Iterable[object]) -> bool:
    return any(isinstance(mark, NotInKey) or mark is NotInKey for mark in metadata)


def _plain_model(model: BaseModel) -> dict[str, Any]:
    fields = type(model).model_fields
    found = {name: _plain(getattr(model, name)) for name, each in fields.items() if not _is_unkeyed(each.metadata)}
    return {**found, **{name: _plain(value) for name, value in (model.model_extra or {}).items()}}


def _plain(value: Any) -> Any:  # noqa: PLR0911 (one answer for each kind of value)
    if value is None or type(value) in (str, bool, float):
        return value
    if type(value) is int:
        return value if value.bit_length() < LARGEST_DIGITS * 3 else str(value)
    if isinstance(value, BaseModel):
        return _plain_model(value)
    if isinstance(value, Mapping):
        return {str(to_jsonable_python(name)): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value), key=canonical_json)
    if isinstance(value, Decimal) and value.is_finite():
        return str(value.normalize()) if value else "0"
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    if isinstance(value, SecretStr | SecretBytes):
        return digest(to_jsonable_python(value.get_secret_value()))
    return to_jsonable_python(value)
