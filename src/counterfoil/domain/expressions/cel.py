"""Reads the tree of a compiled CEL expression: where it uses variables, and how much work it can cause.

The library exposes its tree only as bytes: a ``cel.expr.CheckedExpr`` in protobuf's wire format, which is a published
and stable format (cel-spec, ``checked.proto`` and ``syntax.proto``). The few fields that matter are read here by
number, so that no protobuf runtime is needed. This module evaluates nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

_CHEAP = frozenset({"_&&_", "_||_", "!_", "_?_:_", "_[_]", "@not_strictly_false"})
_COMPARING = frozenset({"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"})
_COPYING = frozenset({"_+_", "matches"})
_COPYING_FACTOR = 20
_MAX_REPEATED_PATTERN = 64

_Fields = dict[int, list[int | bytes]]


@dataclass(frozen=True)
class Use:
    """One use of a variable in the expression; ``name`` is the member, None if the whole variable is used."""

    variable: str
    offset: int
    name: str | None
    selected: bool
    """Whether it is written ``variable.name``, outside ``has()``."""
    tested: bool = False
    """Whether it is written ``has(variable.name)``."""


@dataclass
class Tree:
    """What is known about an expression without evaluating it."""

    uses: list[Use] = field(default_factory=list)
    literals: int = 0
    """The number of constants, lists and maps in the text: what can be iterated over without any input."""
    macros: int = 0
    nesting: int = 0
    """The nesting depth of macros."""
    work_once: int = 0
    """The number of operations that may read a whole value, once (or once for each element that they belong to)."""
    work_repeated: int = 0
    """The number of operations that may read a whole value again in each iteration."""


def read(serialized: bytes, variables: Collection[str]) -> Tree:
    """Read a serialized, checked expression over these variables; raises ValueError for what is not allowed."""
    checked = _message(_bytes(_message(serialized), 2))
    positions = {_number(entry, 1): _number(entry, 2) for entry in map(_message, _all(_message(_bytes(checked, 5)), 4))}
    reader = _Reader(positions, variables)
    reader.visit(_message(_bytes(checked, 4)), repeated=False, inside=False)
    return reader.tree


class _Reader:
    def __init__(self, positions: dict[int, int], variables: Collection[str]) -> None:
        self.tree = Tree()
        self._variables = variables
        self._nesting = 0
        self._repeated_patterns = 0
        self._positions = positions

    def visit(self, node: _Fields, *, repeated: bool, inside: bool) -> None:
        """Visit a node; ``inside``: in the body of a macro; ``repeated``: its work can exceed that of its element."""
        if 3 in node:
            self.tree.literals += 1
        elif 4 in node:
            self._identifier(node, None, selected=False)
        elif 5 in node:
            self._selection(_message(_bytes(node, 5)), repeated=repeated, inside=inside)
        elif 6 in node:
            self._call(_message(_bytes(node, 6)), repeated=repeated, inside=inside)
        elif 7 in node or 8 in node:
            self._literal(node, repeated=repeated, inside=inside)
        elif 9 in node:
            self._macro(_message(_bytes(node, 9)), repeated=repeated, inside=inside)

    def _identifier(self, node: _Fields, name: str | None, *, selected: bool, tested: bool = False) -> bool:
        variable = _text(_message(_bytes(node, 4)), 1)
        if variable not in self._variables:
            return False
        self.tree.uses.append(Use(variable, self._positions.get(_number(node, 2), -1), name, selected, tested))
        return True

    def _selection(self, selection: _Fields, *, repeated: bool, inside: bool) -> None:
        operand = _message(_bytes(selection, 1))
        tested = _number(selection, 3) == 1
        name = _text(selection, 2)
        if 4 not in operand or not self._identifier(operand, name, selected=not tested, tested=tested):
            self.visit(operand, repeated=repeated, inside=inside)

    def _call(self, call: _Fields, *, repeated: bool, inside: bool) -> None:
        function = _text(call, 2)
        operands = [_message(part) for number in (1, 3) for part in _all(call, number)]
        compares_constant = function in _COMPARING and any(3 in operand for operand in operands)
        if function not in _CHEAP and not compares_constant:
            work = _COPYING_FACTOR if function in _COPYING else 1
            if repeated:
                self.tree.work_repeated += work
            else:
                self.tree.work_once += work
        if function == "matches":
            self._pattern(operands[-1], inside=inside)
        if function == "_[_]" and 4 in operands[0] and 3 in operands[1]:
            constant = _message(_bytes(operands[1], 3))
            if 6 in constant and self._identifier(operands[0], _text(constant, 6), selected=False):
                return
        for operand in operands:
            self.visit(operand, repeated=repeated, inside=inside)

    def _pattern(self, node: _Fields, *, inside: bool) -> None:
        """Matching is linear, but the library compiles a pattern each time, which can take 300 milliseconds."""
        constant = _message(_bytes(node, 3))
        if 6 not in constant:
            raise ValueError("the pattern of matches() must be a literal")
        pattern = _text(constant, 6)
        if r"\p" in pattern.lower():
            raise ValueError(r"matches() does not support Unicode classes (\p)")
        if inside:
            self._repeated_patterns += 1
            if "{" in pattern or len(pattern) > _MAX_REPEATED_PATTERN or self._repeated_patterns > 1:
                raise ValueError(
                    "inside all(), exists() or filter(), only one matches() is allowed, with a pattern of at most "
                    f"{_MAX_REPEATED_PATTERN} characters and without counted repetition ({{}})"
                )

    def _literal(self, node: _Fields, *, repeated: bool, inside: bool) -> None:
        self.tree.literals += 1
        for part in _parts(node):
            # Lists of variables that are iterated over in turn could double the values with every level.
            if inside and not _constant(part):
                raise ValueError("a list or map inside all(), exists() or filter() may contain only constants")
            self.visit(part, repeated=repeated, inside=inside)

    def _macro(self, macro: _Fields, *, repeated: bool, inside: bool) -> None:
        variable, result = _text(macro, 1), _text(macro, 3)
        if variable in self._variables:
            raise ValueError(f"{variable} is already defined: rename the variable of the macro")
        self.visit(_message(_bytes(macro, 2)), repeated=repeated, inside=inside)
        builds = 7 in _message(_bytes(macro, 4))
        step = _message(_bytes(macro, 6))
        bodies = list(_bodies(step, variable, result))
        # A body that reads only its own element does work in proportion to the number of elements.
        again = repeated or builds or any(_reaches_out(body, self._variables) for body in bodies)
        if builds:  # filter() copies its result so far for each further element
            self.tree.work_repeated += 1
        self._nesting += 1
        self.tree.macros += 1
        self.tree.nesting = max(self.tree.nesting, self._nesting)
        for body in bodies:
            self.visit(body, repeated=again, inside=True)
        self._nesting -= 1


def _bodies(step: _Fields, variable: str, result: str) -> Iterator[_Fields]:
    """The parts of a macro that the author wrote, without those that the macro adds: result so far and next element."""
    if 4 in step and _text(_message(_bytes(step, 4)), 1) == result:
        return
    if 6 not in step:
        yield step
        return
    call = _message(_bytes(step, 6))
    operands = [_message(part) for part in _all(call, 3)]
    if not any(4 in o and _text(_message(_bytes(o, 4)), 1) == result for o in operands):
        yield step
        return
    for operand in operands:
        if _text(call, 2) == "_+_" and 7 in operand:
            elements = [_message(part) for part in _all(_message(_bytes(operand, 7)), 1)]
            if any(4 not in e or _text(_message(_bytes(e, 4)), 1) != variable for e in elements):
                raise ValueError("map() is not available: use all(), exists() or filter()")
        elif _text(call, 2) == "_?_:_" and 6 in operand and operand is operands[1]:
            yield from _bodies(operand, variable, result)
        elif not (4 in operand and _text(_message(_bytes(operand, 4)), 1) == result):
            yield operand


def _reaches_out(node: _Fields, variables: Collection[str]) -> bool:
    """Whether a body reads one of the variables or iterates again."""
    if 9 in node:
        return True
    if 4 in node:
        return _text(_message(_bytes(node, 4)), 1) in variables
    return any(_reaches_out(part, variables) for part in _parts(node))


def _constant(node: _Fields) -> bool:
    if 7 in node or 8 in node:
        return all(_constant(part) for part in _parts(node))
    if 6 in node and _text(_message(_bytes(node, 6)), 2) != "-_":
        return False
    return 3 in node or (6 in node and all(_constant(part) for part in _parts(node)))


def _parts(node: _Fields) -> list[_Fields]:
    """The child nodes of a node, except macros."""
    if 5 in node:
        return [_message(_bytes(_message(_bytes(node, 5)), 1))]
    if 6 in node:
        call = _message(_bytes(node, 6))
        return [_message(part) for number in (1, 3) for part in _all(call, number)]
    if 7 in node:
        return [_message(part) for part in _all(_message(_bytes(node, 7)), 1)]
    if 8 in node:
        entries = [_message(entry) for entry in _all(_message(_bytes(node, 8)), 2)]
        return [_message(part) for entry in entries for number in (3, 4) for part in _all(entry, number)]
    return []


def _message(data: bytes) -> _Fields:
    """The fields of one protobuf message, by number: numbers as they are, everything else as bytes."""
    fields: _Fields = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value: int | bytes
        if key & 7 == 0:
            value, at = _varint(data, at)
        else:
            size, at = _varint(data, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
            value, at = data[at : at + size], at + size
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _all(fields: _Fields, number: int) -> list[bytes]:
    return [value for value in fields.get(number, []) if isinstance(value, bytes)]


def _bytes(fields: _Fields, number: int) -> bytes:
    return next(iter(_all(fields, number)), b"")


def _text(fields: _Fields, number: int) -> str:
    return _bytes(fields, number).decode("utf-8", "replace")


def _number(fields: _Fields, number: int) -> int:
    return next((value for value in fields.get(number, []) if isinstance(value, int)), 0)
