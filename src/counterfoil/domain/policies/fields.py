"""The fields that a policy can name: of which type each is, and how it is read.

A field is *absent* if nothing is known of it: no such key in an input, no such label, no tool, no model. Null counts as
absent, too: nobody should have to think about both. Reading never fails; it gives None for what is absent.
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
    """A field: its type (``any`` for what is in an input), how it is read, and its values if they are known."""

    type: str
    read: Reading
    choices: tuple[str, ...] = ()


_OBJECT = (dict, Mapping)  # in this order: it is a dict nearly always, and asking for that is much quicker
_STATUSES = ("none", "completed", "gated_not_completed")
_DECISIONS = ("", "allow", "block", "require_approval")


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
    """The field of that name; ValueError if there is none."""
    known = _FIELDS.get(name)
    if known is not None:
        return known
    if name.startswith("flow.labels.") and (label := name.removeprefix("flow.labels.")):
        return Field("string", lambda subject: subject.labels.get(label))  # a label's name may have dots itself
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
    """What lies at the end of a path of keys, and of places in lists; None if the path leads nowhere."""
    for key in path:
        if isinstance(value, _OBJECT):
            value = value.get(key)
        elif isinstance(value, list) and key.isdecimal() and key.isascii() and len(key) < 8 and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value
