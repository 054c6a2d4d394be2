"""Translates the payload of a vendor into the result of a step, by CEL expressions over ``payload`` and ``headers``.

Whether the types fit is checked when the step is registered, as far as it can be known then: what a vendor sends has no
declared types. An expression that cannot be evaluated with a payload refuses that payload, with the place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator, TypeAdapter, WithJsonSchema

from counterfoil.domain.errors import InvalidPayload
from counterfoil.domain.expressions.types import (
    BOOLEAN,
    JSON,
    MAX_TEXT,
    OBJECT,
    OPTIONAL_TEXT,
    Compiled,
    ResultType,
    Variable,
    compile_expression,
)
from counterfoil.domain.expressions.values import (
    ExpressionFailed,
    Extent,
    bound_result,
    bound_work,
    evaluate,
    look_over,
)
from counterfoil.domain.jsontext import TOO_DEEP, is_too_deep
from counterfoil.domain.redaction import without_receipts
from counterfoil.domain.steps.attributes import Attribute, Definition
from counterfoil.domain.work.results import StepResult

PAYLOAD, HEADERS = "payload", "headers"
SCOPE = {PAYLOAD: Variable("any"), HEADERS: Variable()}
UNREADABLE_HEADERS = frozenset({"authorization", "cookie", "counterfoil-receipt", "proxy-authorization"})
"""Headers that contain credentials: no expression can read them into a result."""

_KINDS = {
    "bool": "boolean",
    "int": "number",
    "uint": "number",
    "double": "number",
    "string": "string",
    "list": "array",
    "map": "object",
    "null": "null",
}

_Read = tuple[str, str | None]
"""A variable and its member; None: the whole variable."""


@dataclass(frozen=True)
class Ignored:
    """The callback says nothing about the outcome: it is answered, and changes nothing."""

    challenge: str | None = None
    """What the sender wants back, as it verifies the URL; None: nothing."""


class MapExpression:
    """A compiled expression of a map; immutable."""

    def __init__(self, text: str, compiled: Compiled) -> None:
        self.text = text
        self.compiled = compiled
        self.reads = frozenset((use.variable, use.name) for use in compiled.tree.uses)

    def evaluate(self, values: CallbackValues) -> Any:
        """Its value; raises ExpressionFailed if it has none with this payload."""
        extents = values.extents(self.reads)
        bound_work(self.compiled.tree, extents)
        bound_result(self.compiled.tree, extents)
        return evaluate(self.compiled, self.text, self.compiled.environment.Activation(values.variables(self.reads)))


@functools.lru_cache(maxsize=1024)
def compile_map_expression(text: str, result: ResultType) -> MapExpression:
    """Check and compile; cached, because it takes milliseconds. Raises ValueError with what is wrong."""
    return MapExpression(text, compile_expression(text, SCOPE, result))


class CallbackValues:
    """What expressions read of one callback. Only that is checked and converted: the rest may be large or odd."""

    def __init__(self, payload: Any, headers: Mapping[str, str]) -> None:
        self._whole = {PAYLOAD: payload, HEADERS: headers}
        self._extents: dict[_Read, Extent] = {}

    def extents(self, reads: frozenset[_Read]) -> list[Extent]:
        for read in reads:
            if read not in self._extents:
                self._extents[read] = look_over(self._value(*read))
        return [self._extents[read] for read in reads]

    def variables(self, reads: frozenset[_Read]) -> dict[str, Any]:
        return {
            variable: self._members(variable, {member for read, member in reads if read == variable})
            for variable in {variable for variable, _ in reads}
        }

    def _value(self, variable: str, member: str | None) -> Any:
        whole = self._whole[variable]
        return whole if member is None or not isinstance(whole, dict) else whole.get(member)

    def _members(self, variable: str, members: set[str | None]) -> Any:
        whole = self._whole[variable]
        if None in members or not isinstance(whole, dict):
            return whole
        return {name: whole[name] for name in members if name in whole}


def readable_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers by their lower-case names, as expressions see them; several of one name are joined with commas."""
    found: dict[str, str] = {}
    for given, value in headers.items():
        name = given.lower()
        if name not in UNREADABLE_HEADERS:
            text = value.encode("utf-8", "replace").decode()  # bytes that are not UTF-8 arrive as lone surrogates
            found[name] = f"{found[name]}, {text}" if name in found else text
    return found


def _of(result: ResultType) -> Callable[[str], str]:
    def check(text: str) -> str:
        compile_map_expression(text, result)
        return text

    return check


_Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
Condition = Annotated[_Text, AfterValidator(_of(BOOLEAN))]
TextOrNull = Annotated[_Text, AfterValidator(_of(OPTIONAL_TEXT))]
_MEMBERS = TypeAdapter(
    dict[Annotated[str, Field(min_length=1, max_length=128)], Annotated[_Text, AfterValidator(_of(JSON))]]
)
_WHOLE = TypeAdapter(Annotated[_Text, AfterValidator(_of(OBJECT))])


def _outputs(value: Any) -> Any:
    return _MEMBERS.validate_python(value) if isinstance(value, dict) else _WHOLE.validate_python(value)


_EXPRESSION_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}
_OUTPUTS_SCHEMA = {
    "anyOf": [{"type": "object", "additionalProperties": _EXPRESSION_SCHEMA}, _EXPRESSION_SCHEMA],
    "description": "an expression for each output, or one expression that evaluates to an object",
}


class CallbackMap(Definition):
    """CEL expressions over ``payload`` and ``headers`` that make a result of a vendor's payload."""

    ignore: Condition | None = None
    """Whether the callback says nothing about the outcome. Left out: no callback is ignored."""
    success: Condition | None = None
    """Left out: every callback reports a success."""
    outputs: Annotated[dict[str, str] | str, PlainValidator(_outputs), WithJsonSchema(_OUTPUTS_SCHEMA)] | None = None
    """The outputs of a success. Left out: it has none."""
    error: TextOrNull | None = None
    """The message of a failure."""
    retriable: Condition | None = None
    """Whether a failed attempt is to be repeated. Left out: a failure is final."""

    def declared_problem(self, outputs: Mapping[str, Attribute]) -> str | None:
        """What contradicts the outputs that the step declares, with its place; None also if it declares none."""
        if not outputs or isinstance(self.outputs, str):
            return None
        given = self.outputs or {}
        unknown = sorted(given.keys() - outputs.keys())
        if unknown:
            return f"outputs: the step gives no {', '.join(unknown)}"
        missing = sorted(outputs.keys() - given.keys())
        if missing:
            return f"outputs: nothing is mapped to {', '.join(missing)}"
        for name, text in given.items():
            kind = _KINDS.get(compile_map_expression(text, JSON).compiled.kind)
            declared = outputs[name].type
            if kind is not None and declared not in ("any", kind):
                return f"outputs.{name}: must be of type {declared}, and evaluates to {kind}"
        return None

    def headers_read(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Those of the headers that the expressions read, by their lower-case names."""
        conditions = (self.ignore, self.success, self.retriable)
        given = [(text, BOOLEAN) for text in conditions] + [(self.error, OPTIONAL_TEXT)]
        if isinstance(self.outputs, str):
            given.append((self.outputs, OBJECT))
        else:
            given += [(text, JSON) for text in (self.outputs or {}).values()]
        read: set[_Read] = set()
        for text, result in given:
            if text is not None:
                read |= compile_map_expression(text, result).reads
        names = {name for variable, name in read if variable == HEADERS}
        readable = readable_headers(headers) if names else {}
        return {name: value for name, value in readable.items() if None in names or name in names}

    def read(self, payload: Any, headers: Mapping[str, str]) -> Ignored | StepResult:
        """The result that a payload reports; raises InvalidPayload, with the place, if it cannot be read.

        Only what counts is evaluated: outputs for a success, error and retriable for a failure.
        """
        values = CallbackValues(payload, readable_headers(headers))
        if self._holds("ignore", values, otherwise=False):
            return Ignored()
        if self._holds("success", values, otherwise=True):
            return StepResult(success=True, outputs=without_receipts(self._read_outputs(values)))
        error = _evaluated("error", self.error, OPTIONAL_TEXT, values)
        if error is not None and not isinstance(error, str):
            raise _refused("error", "evaluated to a value that is not a string")
        retriable = self._holds("retriable", values, otherwise=False)
        return StepResult(success=False, error=without_receipts(error), retriable=retriable)

    def _holds(self, field: str, values: CallbackValues, *, otherwise: bool) -> bool:
        text = getattr(self, field)
        if text is None:
            return otherwise
        value = _evaluated(field, text, BOOLEAN, values)
        if not isinstance(value, bool):
            raise _refused(field, "evaluated to a value that is neither true nor false")
        return value

    def _read_outputs(self, values: CallbackValues) -> dict[str, Any]:
        if isinstance(self.outputs, str):
            outputs = _evaluated("outputs", self.outputs, OBJECT, values)
        else:
            given = self.outputs or {}
            outputs = {name: _evaluated(f"outputs.{name}", text, JSON, values) for name, text in given.items()}
        if not isinstance(outputs, dict):
            raise _refused("outputs", "evaluated to a value that is not an object")
        if is_too_deep(outputs):
            raise _refused("outputs", TOO_DEEP)
        return outputs


def read_challenge(text: str, payload: Any, headers: Mapping[str, str]) -> str | None:
    """What the sender of a payload wants back; None: the expression has no text as its value, or none at all."""
    try:
        value = compile_map_expression(text, OPTIONAL_TEXT).evaluate(CallbackValues(payload, readable_headers(headers)))
    except ExpressionFailed:
        return None
    return without_receipts(value) if isinstance(value, str) else None


def _evaluated(field: str, text: str | None, result: ResultType, values: CallbackValues) -> Any:
    if text is None:
        return None
    try:
        return compile_map_expression(text, result).evaluate(values)
    except ExpressionFailed as failure:
        raise _refused(field, str(failure)) from None


def _refused(field: str, message: str) -> InvalidPayload:
    return InvalidPayload(errors=[{"place": f"accept.map.{field}", "message": message}])
