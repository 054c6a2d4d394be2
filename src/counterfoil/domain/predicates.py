"""Predicates: a CEL expression over ``inputs`` that says whether a step (or an item of it) is wanted.

Whatever the text and the inputs are, compiling and asking end, and end with an answer or a ValueError. The library
alone does not promise that: values nested too deeply end the process, text after a NUL character is dropped silently,
and its budget of 10,000 iterations does not count what one iteration costs. So inputs are looked over before they are
handed on, and the work that an expression could do with them is estimated.

Threads: the library holds the interpreter's lock while it compiles and evaluates, and a Predicate is never changed
after it was compiled: it may be asked from several threads at once. They wait for one another, and so does an event
loop; the limit of work keeps that short.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from counterfoil.domain.expressions import VARIABLE, Tree, Use, read

if TYPE_CHECKING:
    from cel_expr_python import cel

MAX_TEXT = 4096
MAX_DEPTH = 100
MAX_WORK = 50_000_000
"""Elements looked at: one or two seconds at the very worst, if somebody wants it so."""

_MAX_ITERATIONS = 10_000  # the library's own budget
_CHARACTERS_PER_ELEMENT = 8
_MAX_USES_CHECKED_ONE_BY_ONE = 64

# Which CEL types a value of a wire type may have. Wrappers are types that may be null, as an optional input may.
# A number of JSON is an int or a double, and CEL converts between them nowhere: with either type for all uses,
# amount > 100 or amount > 99.5 would be refused. So each use by itself must fit one of both, while it is evaluated as
# dyn, where CEL compares int and double by value. Lists and maps know no null, so null is an alternative of theirs.
_ALTERNATIVES = {
    "string": ("google.protobuf.StringValue",),
    "boolean": ("google.protobuf.BoolValue",),
    "number": ("google.protobuf.Int64Value", "google.protobuf.DoubleValue"),
    "object": ("map(string, dyn)", "null"),
    "array": ("list(dyn)", "null"),
    "any": ("dyn",),
}
_WHOLE = "_whole"  # as long as VARIABLE, so that places in messages stay right
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACED = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
_FRIENDLY_TYPES = {
    "wrapper(int)": "number",
    "wrapper(double)": "number",
    "wrapper(string)": "string",
    "wrapper(bool)": "boolean",
}


class PredicateFailed(ValueError):
    """A predicate has no answer for these inputs. The message never contains a value of the inputs."""


class Predicate:
    """A compiled predicate; immutable."""

    def __init__(self, text: str, expression: cel.Expression, tree: Tree) -> None:
        self.text = text
        self._expression = expression
        self._tree = tree
        names = {use.name for use in tree.uses}
        self._names = None if None in names else sorted(name for name in names if name is not None)

    @classmethod
    def compile(cls, text: str, types: Mapping[str, str]) -> Self:
        """Check and compile; ``types`` has the step's inputs by name, and is empty if the step declares nothing."""
        if len(text) > MAX_TEXT:
            raise ValueError(f"must have {MAX_TEXT} characters at most")
        if "\0" in text or not _encodable(text):
            raise ValueError("must hold no NUL characters and no halves of characters (surrogates)")
        expression = _compiled(text, _environment())
        tree = read(expression.serialize())
        if types:
            _check_names(tree, types)
            _check_types(text, tree, types)
        if expression.return_type().name() not in ("BOOL", "DYN"):
            raise ValueError(f"must give true or false, not {expression.return_type().name().lower()}")
        return cls(text, expression, tree)

    def holds(self, inputs: Mapping[str, Any]) -> bool:
        """Whether the predicate holds; PredicateFailed if that cannot be said."""
        # Only what the expression reads is converted: the rest may be large, and is nobody's business here.
        data = dict(inputs) if self._names is None else {name: inputs[name] for name in self._names if name in inputs}
        self._bound_work(data)
        try:
            value = self._expression.eval(data={VARIABLE: data})
            kind, result = value.type().name(), value.value()
        except (RuntimeError, ValueError, TypeError, OverflowError, MemoryError) as error:
            raise PredicateFailed(_explain(str(error), self.text)) from None
        if kind == "ERROR":
            raise PredicateFailed(_explain(str(result), self.text))
        if not isinstance(result, bool):
            raise PredicateFailed(f"gave a value of type {kind.lower()}, not true or false")
        return result

    def _bound_work(self, data: dict[str, Any]) -> None:
        longest, weight = _look_over(data)
        tree = self._tree
        iterations = min(_MAX_ITERATIONS, tree.macros * max(longest, tree.literals) ** tree.nesting)
        size = weight + tree.literals
        if size * (1 + tree.work_once + iterations * tree.work_repeated) > MAX_WORK:
            raise PredicateFailed("the inputs are too large for what the predicate does with them")


@functools.cache
def _library() -> Any:
    from cel_expr_python import cel as library  # noqa: PLC0415 - 17 MB that most processes never need

    return library


@functools.cache
def _environment() -> cel.Env:
    types = _library().Type
    environment: cel.Env = _library().NewEnv(variables={VARIABLE: types.Map(types.STRING, types.DYN)})
    return environment


def _compiled(text: str, environment: cel.Env) -> cel.Expression:
    try:
        return environment.compile(text)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(_complaint(str(error))) from None


def _complaint(message: str) -> str:
    """What the compiler has to say, in one line and without its way of pointing."""
    if "recursion" in message:
        return "is nested too deeply: 32 levels are allowed, and each further + or - in a row is one"
    placed = _PLACED.search(message)
    if placed is None:
        return "is no valid CEL expression"
    line, column, reason = placed.groups()
    reason = reason.removesuffix(" [INVALID_ARGUMENT]").replace(" (in container '')", "").split(" expecting {")[0]
    for name, friendly in _FRIENDLY_TYPES.items():
        reason = reason.replace(name, friendly)
    return f"line {line}, column {column}: {reason}"


def _check_names(tree: Tree, types: Mapping[str, str]) -> None:
    unknown = sorted({use.name for use in tree.uses if use.name is not None} - types.keys())
    if unknown:
        raise ValueError(f"the step takes no {', '.join(unknown)}")


def _check_types(text: str, tree: Tree, types: Mapping[str, str]) -> None:
    """Have CEL check each ``inputs.name`` with the type that is declared for it.

    CEL knows maps with values of one type, but no maps with declared fields (other than protobuf messages). But a
    variable's name may have dots. So each use of ``inputs`` is renamed, to a variable of its own type; has() and
    inputs["name"] go on reading a map of anything. The result is checked and thrown away.
    """
    uses = {
        f"_{number:05d}": use
        for number, use in enumerate(tree.uses)
        if use.selected and use.name is not None and _IDENTIFIER.fullmatch(use.name)
    }
    renamed = _renamed(text, tree.uses, {use.offset: name for name, use in uses.items()})
    if renamed is None:
        return
    alternatives = {name: _ALTERNATIVES[types[use.name or ""]] for name, use in uses.items()}
    certain = {name: given[0] for name, given in alternatives.items() if len(given) == 1}
    open_uses = [name for name in uses if name not in certain]

    def check(chosen: Mapping[str, str]) -> str | None:
        return _type_problem(renamed, {name: (uses[name], chosen.get(name, "dyn")) for name in uses})

    _insist(check(certain))
    # Most predicates pass at once; only the others pay for a look at each use.
    if any(check(certain | {n: alternatives[n][i] for n in open_uses}) is None for i in (0, 1)):
        return
    for name in open_uses[:_MAX_USES_CHECKED_ONE_BY_ONE]:
        _insist(_first_problem(check, [certain | {name: chosen} for chosen in alternatives[name]]))


def _first_problem(check: Callable[[Mapping[str, str]], str | None], choices: list[dict[str, str]]) -> str | None:
    """None if one of the choices has no problem, else the problem of the first."""
    problems: list[str] = []
    for choice in choices:
        problem = check(choice)
        if problem is None:
            return None
        problems.append(problem)
    return problems[0]


def _insist(problem: str | None) -> None:
    if problem is not None:
        raise ValueError(problem)


def _renamed(text: str, uses: list[Use], names: Mapping[int, str]) -> str | None:
    """The text with another name of the same length for each use; None if a use is not where it should be."""
    characters = list(text)
    for use in uses:
        end = use.offset + len(VARIABLE)
        if use.offset < 0 or text[use.offset : end] != VARIABLE:
            return None
        characters[use.offset : end] = names.get(use.offset, _WHOLE)
    return "".join(characters)


def _type_problem(text: str, uses: Mapping[str, tuple[Use, str]]) -> str | None:
    types = _library().Type
    special = {"map(string, dyn)": types.Map(types.STRING, types.DYN), "list(dyn)": types.List(types.DYN)}
    special |= {"null": types.NULL, "dyn": types.DYN}
    variables = {f"{name}.{use.name}": special.get(kind) or types(kind) for name, (use, kind) in uses.items()}
    variables[_WHOLE] = special["map(string, dyn)"]
    try:
        expression = _compiled(text, _library().NewEnv(variables=variables))
    except ValueError as problem:
        return str(problem)
    kind = expression.return_type().name().lower().removesuffix("_wrapper")
    return None if kind in ("bool", "dyn") else f"must give true or false, not {kind}"


def _look_over(data: dict[str, Any]) -> tuple[int, int]:
    """The longest list or map, and the weight of all; refuse what the library would crash on or misread."""
    elements = weight = longest = 0
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            elements += 1
            if isinstance(value, str):
                weight += len(value) // _CHARACTERS_PER_ELEMENT
                _look_over_text(value)
            elif isinstance(value, dict):
                longest = max(longest, len(value))
                below.extend(value)
                below.extend(value.values())
                if not all(isinstance(key, str) for key in value):
                    raise PredicateFailed("an object has a key that is no text")
            elif isinstance(value, list):
                longest = max(longest, len(value))
                below.extend(value)
            elif isinstance(value, int):
                if not -(2**63) <= value < 2**64:
                    raise PredicateFailed("a whole number has more than 64 bits: give it as text")
            elif value is not None and not isinstance(value, float):
                raise PredicateFailed(f"a value is no JSON: {type(value).__name__}")
        if elements + len(below) > MAX_WORK:
            raise PredicateFailed("the inputs are too large")
        if not below:
            return longest, elements + weight
        level = below
    raise PredicateFailed(f"the inputs are nested too deeply: {MAX_DEPTH} levels are allowed")


def _look_over_text(value: str) -> None:
    # The library takes text up to its first NUL: "admin\0x" would be "admin".
    if "\0" in value:
        raise PredicateFailed("a text has a NUL character")
    if not _encodable(value):
        raise PredicateFailed("a text has half a character (a surrogate)")


def _encodable(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


_REASONS = (
    ("Iteration budget", f"it looks at more than {_MAX_ITERATIONS} elements"),
    ("divide by zero", "it divides by zero"),
    ("modulus by zero", "it divides by zero"),
    ("overflow", "a number or time is out of range"),
    ("out of range", "a number or time is out of range"),
    ("out of int64 range", "a number or time is out of range"),
    ("Index error", "a list has no element at the given place"),
    ("regular expression", "a regular expression is not valid, or too large"),
    ("imezone", "a time zone is unknown"),
    ("imestamp", "a text is no timestamp such as 2026-01-31T12:00:00Z"),
    ("uration", "a text is no duration such as 90s"),
    ("convert", "a value cannot be converted"),
    ("conversion", "a value cannot be converted"),
)
_NO_OVERLOAD = re.compile(r"No matching overloads found : ([\w<>=!+*/%@?:&|\[\]-]+\([\w, .<>]*\))")
_NO_KEY = re.compile(r'Key not found in map : "?(.*?)"?$', re.DOTALL)


def _explain(message: str, text: str) -> str:
    """The library's message in our words: its own may contain values, and those may be secrets."""
    overload = _NO_OVERLOAD.search(message)
    if overload:
        return f"a value is not of the type that is needed: {overload[1]}"
    missing = _NO_KEY.search(message)
    if missing:  # a key that is part of the text is no secret
        named = missing[1] and missing[1] in text
        return f"there is no value {missing[1]}" if named else "there is no value with that key"
    return next((reason for part, reason in _REASONS if part in message), "it cannot be evaluated with these inputs")
