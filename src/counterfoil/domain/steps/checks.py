"""Checks of values that may take long, and how a decision comes by their findings without waiting for them.

A decision checks at once what is surely short. Of everything else it needs a finding: if there is none yet it raises
``CheckNeeded``, the check is made elsewhere (in a process that can be given up), and the decision is made again. A
finding is a fact about a schema and a value: it is named by the content of both, and never out of date.
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
"""Units (of 100 ns) that the checks of one inspection may take at once, by a bound that none comes near.

Of all that was tried the worst took less than half of what the bound says: about a millisecond.
"""

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
    """The checks of one decision. All that it needs from elsewhere is told at once, by ``close``."""

    __slots__ = ("_findings", "_left", "_needed")

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._left = SHORT
        self._needed: list[ValueCheck] = []

    def problem(self, attribute: Attribute, value: Any) -> str | None:
        """What is wrong with a value; None: nothing, or nothing is known before ``close`` was called."""
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
        found = self._findings.get(check.key, _UNKNOWN)  # in one step: another thread may be forgetting old ones
        if found is _UNKNOWN:
            self._needed.append(check)
            return None
        return found

    def close(self) -> None:
        """Raise CheckNeeded if something was not known."""
        if self._needed:
            raise CheckNeeded(tuple(self._needed))


def _bound(attribute: Attribute, value: Any, enough: float) -> float:
    """What it takes to see whether a value fits, at most."""
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
