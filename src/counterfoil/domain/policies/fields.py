"""The fields that a policy can name: the type of each, and how it is read.

A field is *absent* if it has no value: no such key in an input, no such label, no tool, no model. Null counts as absent
too, so that a policy need not handle both. Reading never fails; an absent field gives None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from counterfoil.domain.policies.subject import Subject

MAX_PATH = 32

Reading = Callable[[Subject], Any]


@dataclass(frozen=True, slots=True)
class Field:
    """A field: its type (``any`` for a value inside an input), how it is read, and its values if they are known."""

    type: str
    read: Reading
    choices: tuple[str, ...] = ()


_OBJECT = (dict, Mapping)  # in this order: it is nearly always a dict, which is tested much faster
_STATUSES = ("none", "completed", "gated_not_completed")
_DECISIONS = ("", "allow", "block", "require_approval")
_EFFECTS = ("", "pure", "idempotent", "dedupe", "reconcile", "unsafe_once")
_DELIVERIES = ("", "not_delivered", "delivered", "unknown")


def _of_tool(name: str) -> Reading:
    return lambda subject: None if subject.tool is None else subject.tool.get(name)


_FIELDS = {
    "step.gate_count": Field("number", lambda subject: subject.attempt.gate_count),
    "step.completion_count": Field("number", lambda subject: subject.attempt.completion_count),
    "step.prior_completion_status": Field(
        "string", lambda subject: subject.attempt.prior_completion_status, choices=_STATUSES
    ),
    "step.prior_output_available": Field("boolean", lambda subject: subject.attempt.prior_output_available),
    "step.last_decision": Field("string", lambda subject: subject.attempt.last_decision, choices=_DECISIONS),
    "step.first_attempt_age_seconds": Field("number", lambda subject: subject.attempt.first_attempt_age_seconds),
    "step.idempotency_key": Field("string", lambda subject: subject.attempt.idempotency_key),
    "step.effect": Field("string", lambda subject: subject.attempt.effect, choices=_EFFECTS),
    "step.prior_delivery": Field("string", lambda subject: subject.attempt.prior_delivery, choices=_DELIVERIES),
    "step.id": Field("string", lambda subject: subject.step_id),
    "step.type": Field("string", lambda subject: subject.step_type),
    "step.name": Field("string", lambda subject: subject.step_name),
    "flow.id": Field("string", lambda subject: subject.flow_id),
    "tool.name": Field("string", _of_tool("name")),
    "tool.type": Field("string", _of_tool("type")),
    "model": Field("string", lambda subject: subject.model),
    "provider": Field("string", lambda subject: subject.provider),
    "cost_usd": Field("number", lambda subject: subject.cost_usd),
}
FIELD_NAMES = (*_FIELDS, "step.input.<path>", "tool.input.<path>", "flow.labels.<key>")


def field_named(name: str) -> Field:
    """The field of that name; raises ValueError if there is none."""
    known = _FIELDS.get(name)
    if known is not None:
        return known
    if name.startswith("flow.labels.") and (label := name.removeprefix("flow.labels.")):
        return Field("string", lambda subject: subject.labels.get(label))  # the name of a label may contain dots
    if name.startswith("step.input."):
        return _within("step.input.", name, lambda subject: subject.step_input)
    if name.startswith("tool.input."):
        return _within("tool.input.", name, _of_tool("input"))
    raise ValueError(f"no such field; the fields are {', '.join(FIELD_NAMES)}")


def _within(prefix: str, name: str, whole: Reading) -> Field:
    path = name.removeprefix(prefix).split(".")
    if not all(path) or len(path) > MAX_PATH:
        raise ValueError(f"must be a path in the input, such as {prefix}order.total, with at most {MAX_PATH} names")
    return Field("any", lambda subject: _follow(whole(subject), path))


def _follow(value: Any, path: list[str]) -> Any:
    """The value at the end of a path of keys and list indexes; None if there is none."""
    for key in path:
        if isinstance(value, _OBJECT):
            value = value.get(key)
        elif isinstance(value, list) and key.isdecimal() and key.isascii() and len(key) < 8 and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value
