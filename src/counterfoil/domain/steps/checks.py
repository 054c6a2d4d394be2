"""Checks of values against schemas that may be slow, and how a decision gets their findings without waiting.

A decision makes a check itself if it is certain to be fast. Any other check needs a finding: if there is none yet, the
decision raises ``CheckNeeded``, the check is made in another process that can be killed, and the decision is repeated.
A finding is named by the content of schema and value, so it never becomes outdated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from counterfoil.domain.jsontext import dump_json
from counterfoil.domain.steps.schema_costs import EXPLAINING

if TYPE_CHECKING:
    from counterfoil.domain.steps.attributes import Attribute

SHORT = 20_000.0
"""The most units (of 100 ns) that the checks of one decision may take at once, by an upper bound.

The slowest checks in tests took less than half of their bound: about a millisecond."""

Findings = Mapping[bytes, str | None]
"""By the key of a check: what is wrong with the value, or None."""

NO_FINDINGS: Findings = {}
_UNKNOWN = "not checked yet"
TOO_MUCH_WORK = "takes too long to check against its schema"
CANNOT_BE_CHECKED = "cannot be checked against its schema"


@dataclass(frozen=True)
class ValueCheck:
    """A schema and a value as JSON text; ``each``: the value is an array, and the schema is that of its elements."""

    schema: bytes
    value: bytes
    each: bool = False

    @cached_property
    def key(self) -> bytes:
        name = hashlib.blake2b(self.schema, digest_size=32, person=b"each" if self.each else b"whole")
        name.update(b"\n")
        name.update(self.value)
        return name.digest()


class CheckNeeded(Exception):
    """A decision cannot be made before these values are checked."""

    def __init__(self, checks: tuple[ValueCheck, ...]) -> None:
        self.checks = checks
        super().__init__(f"{len(checks)} values must be checked first")


class Inspection:
    """The checks of one decision. ``close`` reports all missing findings together."""

    __slots__ = ("_findings", "_left", "_needed")

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._left = SHORT
        self._needed: list[ValueCheck] = []

    def problem(self, attribute: Attribute, value: Any) -> str | None:
        """What is wrong with a value; None: nothing, or it is not known yet, which ``close`` will report."""
        problem = attribute.type_problem(value)
        schema = attribute.compiled_schema
        if problem or schema is None:
            return problem
        units = _bound(attribute, value, self._left)
        if units <= self._left:
            self._left -= units
            if all(map(schema.fits, value)) if attribute.for_each else schema.fits(value):
                return None
            if EXPLAINING.bound(value, SHORT) <= SHORT:
                return attribute.problem(value)
        check = ValueCheck(attribute.schema_text, dump_json(value), attribute.for_each)
        found = self._findings.get(check.key, _UNKNOWN)  # a single lookup: another thread may remove old findings
        if found is _UNKNOWN:
            self._needed.append(check)
            return None
        return found

    def close(self) -> None:
        """Raise CheckNeeded if a finding was missing."""
        if self._needed:
            raise CheckNeeded(tuple(self._needed))


def _bound(attribute: Attribute, value: Any, enough: float) -> float:
    """An upper bound for the cost of checking a value."""
    schema = attribute.compiled_schema
    assert schema is not None
    if not attribute.for_each:
        return schema.bound(value, enough)
    units = 0.0
    for element in value:
        units += 1 + schema.bound(element, enough - units)
        if units > enough:
            break
    return units
