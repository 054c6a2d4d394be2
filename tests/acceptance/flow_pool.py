"""A pool of steps that compute, and the plain reference: what a flow of them must come to, whatever happens on the way.

A step's outcome is a function of its arguments: every attempt of a work item and every run of a flow gives the same.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import orjson

Values = dict[str, Any]
NONE = "none"


def number_of(step_id: str, arguments: Values) -> int:
    """Any number, but always the same for the same."""
    return zlib.crc32(orjson.dumps([step_id, arguments], option=orjson.OPT_SORT_KEYS)) % 1_000


@dataclass(frozen=True)
class Step:
    """One step of the pool: takes values, gives one."""

    gives: str
    takes: tuple[str, ...] = ()
    kind: str = "sync"
    each: str | None = None
    """What it fans out over."""
    may_take: str | None = None
    only_even: str | None = None
    """Its predicate: this value must be even."""
    fails: bool = False
    """It fails for every third set of arguments."""
    goal_inside: str | None = None
    """It is a flow with this goal."""
    undone: str | None = None
    """It can be undone: by a sync or an async call."""
    makes_list: bool = False


POOL: dict[str, Step] = {
    "num": Step("a", ("n",), undone="async"),
    "text": Step("b", ("n",), "async", undone="sync"),
    "pair": Step("c", ("a", "b")),
    "list": Step("items", ("c",), "async", makes_list=True),
    "each": Step("done", ("n",), "async", each="items"),
    "each-sync": Step("done2", each="items"),
    "join": Step("d", ("done", "done2")),
    "even": Step("e", ("a",), only_even="a"),
    "after": Step("f", ("e",), "async"),
    "option": Step("g", ("a",), "async", may_take="e"),
    "inner": Step("h", ("n",), goal_inside="join"),
    "risky": Step("z", ("b",), "async", fails=True),
    "last": Step("y", ("h", "g")),
}
PROVIDER = {step.gives: step_id for step_id, step in POOL.items()}


def definition(step_id: str, endpoint: str) -> dict[str, Any]:
    """As it is registered; ``endpoint`` is where its worker is."""
    step = POOL[step_id]
    attributes: dict[str, Any] = {name: {"role": "required"} for name in step.takes}
    attributes[step.gives] = {"role": "output"}
    if step.each:
        attributes[step.each] = {"role": "required", "for_each": True}
    if step.may_take:
        attributes[step.may_take] = {"role": "optional", "default": NONE, "timeout_ms": 3_600_000}
    if step.goal_inside:
        inside = {"goals": [step.goal_inside], "inputs": {name: name for name in step.takes}}
        inside["outputs"] = {step.gives: POOL[step.goal_inside].gives}
        return {"kind": "flow", "attributes": attributes, "flow": inside}
    work = {"max_retries": 1000, "init_backoff_ms": 30, "max_backoff_ms": 200, "ack_timeout_ms": 2000}
    found: dict[str, Any] = {"kind": step.kind, "endpoint": endpoint, "attributes": attributes, "work": work}
    if step.each:
        found["fan_out"] = {"parallelism": 2 if step.kind == "async" else None}
    if step.only_even:
        found["predicate"] = f"int(inputs.{step.only_even}) % 2 == 0"
    if step.undone:
        found["compensate"] = {"kind": step.undone, "endpoint": f"{endpoint}-undo", "work": work}
    return found


def outcome(step_id: str, arguments: Values) -> dict[str, Any]:
    """What the worker of a step reports."""
    step = POOL[step_id]
    number = number_of(step_id, arguments)
    if step.fails and number % 3 == 0:
        return {"success": False, "error": f"cannot do {number}"}
    value: Any = [number + place for place in range(number % 5)] if step.makes_list else number
    return {"success": True, "outputs": {step.gives: value}}


class Failed(Exception):
    """The flow fails."""


def expected(goals: list[str], init: Values) -> tuple[str, Values]:
    """Status and outputs of the flow."""
    reference = _Reference(goals, init)
    try:
        for goal in goals:
            reference.run(goal)
        for step_id in reference.planned:
            reference.run(step_id)
    except Failed:
        return "failed", {}
    return "completed", {name: value for name, value in reference.values.items() if name not in init}


class _Reference:
    """Runs the steps of a flow one after the other."""

    def __init__(self, goals: list[str], init: Values) -> None:
        self.values = dict(init)
        self.ended: set[str] = set()
        self.planned: set[str] = set()
        queue = list(goals)
        while queue:
            step_id = queue.pop()
            self.planned.add(step_id)
            step = POOL[step_id]
            needs = [*step.takes, *([step.each] if step.each else [])]
            queue += [PROVIDER[name] for name in needs if name not in init and PROVIDER[name] not in self.planned]

    def run(self, step_id: str) -> None:
        if step_id in self.ended:
            return
        self.ended.add(step_id)
        step = POOL[step_id]
        names = [*step.takes, *([step.each] if step.each else [])]
        for name in [*names, *([step.may_take] if step.may_take else [])]:
            if name not in self.values and PROVIDER[name] in self.planned:
                self.run(PROVIDER[name])
        if any(name not in self.values for name in names):
            return  # skipped: what it needs was
        arguments = {name: self.values[name] for name in names}
        if step.may_take:
            arguments[step.may_take] = self.values.get(step.may_take, NONE)
        if step.only_even and arguments[step.only_even] % 2:
            return
        if step.each:
            items = [{**arguments, step.each: item} for item in arguments[step.each]]
            self.values[step.gives] = [self.one(step_id, item) for item in items]
        else:
            self.values[step.gives] = self.one(step_id, arguments)

    def one(self, step_id: str, arguments: Values) -> Any:
        step = POOL[step_id]
        if step.goal_inside:
            status, outputs = expected([step.goal_inside], arguments)
            if status == "failed":
                raise Failed
            return outputs[POOL[step.goal_inside].gives]
        result = outcome(step_id, arguments)
        if not result["success"]:
            raise Failed
        return result["outputs"][step.gives]
