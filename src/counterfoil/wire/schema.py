"""What the published JSON Schema says of a field beyond its Python type.

This module does not import pydantic: the client, which never makes a schema, starts without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True, eq=False)
class Keywords:
    """JSON Schema keywords that are added to the schema of the annotated type."""

    keywords: tuple[tuple[str, Any], ...]

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        schema: dict[str, Any] = handler(core_schema)
        schema.update(self.keywords)
        return schema


@dataclass(frozen=True, eq=False)
class OneOf:
    """A text of a closed set. Programs see a ``str``; the published schema is that of the enumeration or literal."""

    values: Any

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return handler.generate_schema(self.values)


def described(description: str, **keywords: Any) -> Keywords:
    return Keywords((("description", description), *keywords.items()))


def keyword(**keywords: Any) -> Keywords:
    return Keywords(tuple(keywords.items()))


Time = Annotated[str, keyword(format="date-time", examples=["2026-11-16T14:26:10.123Z"])]
Values = dict[str, Any]
"""An object whose members the API does not declare: values of steps, metadata, details."""
