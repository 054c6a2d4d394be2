"""The secrets of vendors, which definitions refer to by name and never contain."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

NAME_PATTERN = r"[a-z0-9][a-z0-9_-]{0,63}"
REFERENCE_PREFIX = "setting:"
REFERENCE_FORM = f"{REFERENCE_PREFIX}<name>"

_REFERENCE = re.compile(f"{REFERENCE_PREFIX}({NAME_PATTERN})")


class Secrets:
    """The values of each secret by its name: several while a secret is replaced. No text of it contains a value."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Sequence[str]] | None = None) -> None:
        self._values = {name: tuple(given) for name, given in (values or {}).items()}

    @property
    def names(self) -> list[str]:
        return sorted(self._values)

    def values_of(self, name: str) -> tuple[str, ...]:
        """Every value that is accepted at present; empty: no secret has this name."""
        return self._values.get(name, ())

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self.names)})"


def secret_name(reference: str) -> str:
    """The name in ``setting:<name>``; ValueError for any other text, which may be a secret and is not repeated."""
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ValueError(
            f"must be {REFERENCE_FORM}, the name of an entry of the table [secrets] of the settings (lower-case "
            "letters, digits, _ and -); a definition never contains a secret itself"
        )
    return match[1]
