"""Compiles CEL expressions, and checks the names that they use and the types of these names.

Compiling always ends, with an expression or with a ValueError in one line. The library is loaded when the first
expression is compiled.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from counterfoil.domain.expressions.cel import Tree, Use, read

if TYPE_CHECKING:
    from cel_expr_python import cel

MAX_TEXT = 4096

_MAX_USES_CHECKED_ONE_BY_ONE = 64

# The CEL types that a value of a wire type may have. Wrappers are types that may be null, as an optional input may. A
# JSON number is an int or a double, and CEL never converts between them: with a single type for all uses, either amount
# > 100 or amount > 99.5 would be refused. So each use must be valid with one of both types, and is evaluated as dyn,
# where CEL compares int and double by value. Lists and maps cannot be null in CEL, so null is one of their
# alternatives.
_ALTERNATIVES = {
    "string": ("google.protobuf.StringValue",),
    "boolean": ("google.protobuf.BoolValue",),
    "number": ("google.protobuf.Int64Value", "google.protobuf.DoubleValue"),
    "object": ("map(string, dyn)", "null"),
    "array": ("list(dyn)", "null"),
    "any": ("dyn",),
}
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACED = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
_FRIENDLY_TYPES = {
    "wrapper(int)": "number",
    "wrapper(double)": "number",
    "wrapper(string)": "string",
    "wrapper(bool)": "boolean",
}


@dataclass(frozen=True)
class Variable:
    """A variable of expressions: one value, or an object with members."""

    type: str = "object"
    members: Mapping[str, str] | None = None
    """The types of an object's members by name; None: it may have any members."""
    fixed: bool = False
    """Whether each member always exists, and is null if it has no value. Then has() is refused, because it would always
    be true, and so is using the variable as a whole."""
    lacks: str = "there is no"
    """The beginning of the error message for an unknown member."""


Scope = Mapping[str, Variable]
"""The variables of an expression by name. Names have four characters or more."""


class ResultType(NamedTuple):
    """What an expression must evaluate to."""

    kinds: frozenset[str]
    """The types of CEL that are allowed; ``dyn``, whose type is known only when it is evaluated, always is."""
    wording: str


BOOLEAN = ResultType(frozenset({"bool"}), "true or false")
OPTIONAL_TEXT = ResultType(frozenset({"string", "null"}), "a string or null")
OBJECT = ResultType(frozenset({"map"}), "an object")
JSON = ResultType(
    frozenset({"bool", "int", "uint", "double", "string", "null", "list", "map"}), "a value that JSON has"
)


class Compiled(NamedTuple):
    """An expression that has passed every check, what is known about it, and its environment."""

    expression: cel.Expression
    tree: Tree
    environment: cel.Env

    @property
    def kind(self) -> str:
        """The type of CEL that it evaluates to; ``dyn``: any."""
        return _kind_of(self.expression)


def compile_expression(text: str, scope: Scope, result: ResultType = BOOLEAN) -> Compiled:
    """Check and compile an expression over the variables that evaluates to such a result."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"must have at most {MAX_TEXT} characters")
    if "\0" in text or not encodable(text):
        raise ValueError("must not contain NUL characters or unpaired surrogates")
    environment = _environment(frozenset((name, variable.type == "object") for name, variable in scope.items()))
    expression = _compiled(text, environment)
    tree = read(expression.serialize(), scope)
    _check_names(tree, scope)
    if any(variable.members is not None or variable.type != "object" for variable in scope.values()):
        _check_types(text, tree, scope, result)
    _insist(_result_problem(expression, result))
    return Compiled(expression, tree, environment)


def encodable(text: str) -> bool:
    """Whether a text has no unpaired surrogates."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


@functools.cache
def _library() -> Any:
    from cel_expr_python import cel as library  # noqa: PLC0415 - 17 MB that most processes never need

    return library


@functools.cache
def _environment(variables: frozenset[tuple[str, bool]]) -> cel.Env:
    types = _library().Type
    whole = types.Map(types.STRING, types.DYN)
    environment: cel.Env = _library().NewEnv(
        variables={name: whole if is_object else types.DYN for name, is_object in variables}
    )
    return environment


def _compiled(text: str, environment: cel.Env) -> cel.Expression:
    try:
        return environment.compile(text)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(_complaint(str(error))) from None


def _complaint(message: str) -> str:
    """The compiler's message in one line, without its drawing of the place."""
    if "recursion" in message:
        return "is nested too deeply: 32 levels are allowed, and each chained + or - adds one"
    placed = _PLACED.search(message)
    if placed is None:
        return "is not a valid CEL expression"
    line, column, reason = placed.groups()
    reason = reason.removesuffix(" [INVALID_ARGUMENT]").replace(" (in container '')", "").split(" expecting {")[0]
    for name, friendly in _FRIENDLY_TYPES.items():
        reason = reason.replace(name, friendly)
    return f"line {line}, column {column}: {reason}"


def _check_names(tree: Tree, scope: Scope) -> None:
    for name, variable in scope.items():
        uses = [use for use in tree.uses if use.variable == name]
        if variable.members is None:
            continue
        unknown = sorted({use.name for use in uses if use.name is not None} - variable.members.keys())
        if unknown:
            raise ValueError(f"{variable.lacks} {', '.join(unknown)}")
        if variable.fixed and any(use.tested for use in uses):
            raise ValueError(f"has() cannot be used on {name}: its fields are always present, compare them with null")
        if variable.fixed and any(use.name is None for use in uses):
            raise ValueError(f"{name} cannot be used as a value: use one of its fields {', '.join(variable.members)}")


def _check_types(text: str, tree: Tree, scope: Scope, result: ResultType) -> None:
    """Have CEL check each ``variable.name`` with its declared type.

    CEL has maps with values of one type, but no maps with declared fields (other than protobuf messages). But the name
    of a variable may contain dots. So each use of a member is renamed to a variable of the declared type; has() and
    variable["name"] still read a map of any values. The result is checked and thrown away.
    """
    types = {number: kind for number, use in enumerate(tree.uses) if (kind := _declared(use, scope)) is not None}
    uses = {_numbered(number, tree.uses[number].variable): tree.uses[number] for number in types}
    renamed = _renamed(text, tree.uses, {use.offset: name for name, use in uses.items()})
    if renamed is None:
        return
    alternatives = dict(zip(uses, (_ALTERNATIVES[kind] for kind in types.values()), strict=True))
    certain = {name: given[0] for name, given in alternatives.items() if len(given) == 1}
    open_uses = [name for name in uses if name not in certain]
    paths = {name: name if scope[use.variable].type != "object" else f"{name}.{use.name}" for name, use in uses.items()}
    wholes = {_whole(name) for name in scope}

    def check(chosen: Mapping[str, str]) -> str | None:
        return _type_problem(renamed, {paths[name]: chosen.get(name, "dyn") for name in uses}, wholes, result)

    _insist(check(certain))
    # Most expressions pass this check; only for the others is each use checked separately.
    if any(check(certain | {n: alternatives[n][i] for n in open_uses}) is None for i in (0, 1)):
        return
    for name in open_uses[:_MAX_USES_CHECKED_ONE_BY_ONE]:
        _insist(_first_problem(check, [certain | {name: chosen} for chosen in alternatives[name]]))


def _declared(use: Use, scope: Scope) -> str | None:
    """The declared type of what is used; None if it is read from a map of any values."""
    variable = scope[use.variable]
    if variable.type != "object":
        return variable.type
    if variable.members is None or not use.selected or use.name is None or not _IDENTIFIER.fullmatch(use.name):
        return None
    return variable.members[use.name]


def _numbered(number: int, variable: str) -> str:
    """Another name of the same length, so that places in messages stay correct."""
    return f"_{number:0{len(variable) - 1}d}"


def _whole(variable: str) -> str:
    return "_whole".ljust(len(variable), "_")[: len(variable)]


def _first_problem(check: Callable[[Mapping[str, str]], str | None], choices: list[dict[str, str]]) -> str | None:
    """None if one of the choices has no problem, else the problem of the first choice."""
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
    """The text with another name of the same length for each use; None if a use is not at its expected place."""
    characters = list(text)
    for use in uses:
        end = use.offset + len(use.variable)
        if use.offset < 0 or text[use.offset : end] != use.variable:
            return None
        characters[use.offset : end] = names.get(use.offset, _whole(use.variable))
    return "".join(characters)


def _type_problem(text: str, kinds: Mapping[str, str], wholes: set[str], result: ResultType) -> str | None:
    types = _library().Type
    special = {"map(string, dyn)": types.Map(types.STRING, types.DYN), "list(dyn)": types.List(types.DYN)}
    special |= {"null": types.NULL, "dyn": types.DYN}
    variables = {path: special.get(kind) or types(kind) for path, kind in kinds.items()}
    variables |= dict.fromkeys(wholes, special["map(string, dyn)"])
    try:
        expression = _compiled(text, _library().NewEnv(variables=variables))
    except ValueError as problem:
        return str(problem)
    return _result_problem(expression, result)


def _result_problem(expression: cel.Expression, result: ResultType) -> str | None:
    kind = _kind_of(expression)
    return None if kind == "dyn" or kind in result.kinds else f"must evaluate to {result.wording}, not {kind}"


def _kind_of(expression: cel.Expression) -> str:
    """The type of CEL of the result, without the types of its elements and members."""
    return expression.return_type().name().lower().partition("<")[0].removesuffix("_wrapper")
