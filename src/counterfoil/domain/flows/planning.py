"""Planning: finds the smallest set of steps that reaches the goals, and the source of each of their inputs.

A pure function of the register, the goals and the names of the inputs, so equal starts have equal plans. An optional
attribute adds no provider to the plan: its value comes from a planned step that happens to give it.

1. Search backward from the goals over all providers of required values.
2. Search forward from the inputs for the steps that can run at all. A goal that cannot run is refused, with its missing
   inputs.
3. Choose a provider for each value, by priority. Where that would close a cycle, choose one that can run earlier.
4. Drop every step that is not needed: one whose values other steps of the plan supply as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from counterfoil.domain.canonical import digest
from counterfoil.domain.errors import PlanCycle, UnknownStep, UnreachableGoal
from counterfoil.domain.flows.ordering import in_circles, in_order
from counterfoil.domain.steps.definitions import StepDefinition
from counterfoil.domain.steps.register import Register

INIT = "init"


@dataclass(frozen=True)
class Plan:
    """The steps that a flow runs, why, and their dependencies. Immutable, and named by its content."""

    goals: list[str]
    steps: list[str]
    """In an order that respects dependencies."""
    inputs: dict[str, str]
    """The source of each value that the steps take: ``init`` or a step."""
    included: dict[str, str]
    excluded: dict[str, str]
    versions: dict[str, str]
    requires: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """By step: the values that must come from other steps, each with its possible providers."""
    options: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """By step: the optional values from other steps, each with its possible providers (``of``) and how long to wait for
    it."""
    rivals: dict[str, list[str]] = field(default_factory=dict)
    """By value: its providers, where there are several. The first outcome wins."""
    waits: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By step: how many of which other steps must have completed."""
    compensated: list[str] = field(default_factory=list)
    """The steps that can be compensated."""
    hooks: dict[str, bool] = field(default_factory=dict)
    """The hook steps whose tokens the engine makes, each with whether it fans out."""
    gives_anything: bool = False
    """Whether the plan has a step without declared outputs, which may give a value of any name."""

    is_cooperative: ClassVar[bool] = False
    """Whether an agent decides which step comes next, and when the flow ends."""

    @cached_property
    def plan_id(self) -> str:
        return digest(self.stored())[:32]

    def document(self) -> dict[str, Any]:
        """The plan as the API shows it."""
        return {
            "goals": self.goals,
            "steps": self.steps,
            "inputs": self.inputs,
            "included": self.included,
            "excluded": self.excluded,
            "takes": {step_id: takes for step_id in self.steps if (takes := self._takes(step_id))},
            "waits_for": self.waits,
        }

    def _takes(self, step_id: str) -> dict[str, list[str]]:
        """The values that a step takes from other steps, each with its possible providers."""
        optional = {name: option["of"] for name, option in self.options.get(step_id, {}).items()}
        return {**self.requires.get(step_id, {}), **optional}

    def stored(self) -> dict[str, Any]:
        """The whole plan, as JSON. Without hooks it has the name that it had before there were hooks."""
        stored = asdict(self)
        if not self.hooks:
            del stored["hooks"]
        return stored

    @cached_property
    def sources(self) -> dict[str, tuple[str, ...]]:
        """By step: the other steps that it waits for, or may take a value from."""
        found = {}
        for step_id in self.steps:
            steps = [*self.waits.get(step_id, {}).get("of", ())]
            for bringers in self.requires.get(step_id, {}).values():
                steps += bringers
            for option in self.options.get(step_id, {}).values():
                steps += option["of"]
            found[step_id] = tuple(dict.fromkeys(steps))
        return found

    @cached_property
    def consumers(self) -> dict[str, tuple[str, ...]]:
        """By step: the steps to re-evaluate when it has ended."""
        found: dict[str, list[str]] = {step_id: [] for step_id in self.steps}
        for step_id, sources in self.sources.items():
            for source in sources:
                found[source].append(step_id)
        return {step_id: tuple(consumers) for step_id, consumers in found.items()}

    @cached_property
    def neighbours(self) -> dict[str, tuple[str, ...]]:
        """By step: its consumers and every step that these wait for. Evaluating its end needs all of them."""
        found = {}
        for step_id, consumers in self.consumers.items():
            near = dict.fromkeys(consumers)
            for consumer in consumers:
                near.update(dict.fromkeys(self.sources[consumer]))
            near.pop(step_id, None)
            found[step_id] = tuple(near)
        return found

    @cached_property
    def connected(self) -> frozenset[str]:
        """The steps that wait for another, or for which another waits."""
        return frozenset(step_id for step_id in self.steps if self.sources[step_id] or self.consumers[step_id])


NO_PLAN = Plan([], [], {}, {}, {}, {})
"""The plan of flows from before planning existed: every step is a goal, and no step waits for another."""


def make_plan(register: Register, goals: Iterable[str], given: Collection[str]) -> Plan:
    """The plan for these goals and input names; raises UnknownStep, UnreachableGoal or PlanCycle if there is none."""
    goals = tuple(goals)
    key = (tuple(dict.fromkeys(goals)), frozenset(given))
    plan = register.plans.get(key)
    if plan is None:
        register.refuse_unknown(goals)
        plan = _Planner(register, *key).plan()
        register.keep(key, plan)
    return plan


class _Planner:
    """Computes one plan."""

    def __init__(self, register: Register, goals: tuple[str, ...], given: frozenset[str]) -> None:
        self._register = register
        self._goals = goals
        self._given = given
        self._round = self._rounds(self._looked_back())
        """The steps that can run, each with the earliest round in which it can."""

    def plan(self) -> Plan:
        self._refuse_unreachable()
        chosen = self._chosen(self._round, earlier_only=False)
        if not self._reaches_goals(self._rounds(chosen)):  # the preferred providers form a cycle
            chosen = self._chosen(self._round, earlier_only=True)
        return self._described(self._ordered(self._rounds(self._without_unneeded(chosen))))

    # Search -------------------------------------------------------------------------------------------------------

    def _definition(self, step_id: str) -> StepDefinition:
        version = self._register.steps.get(step_id)
        if version is None:
            raise UnknownStep("a step in wait_for is not registered", step_id=step_id)
        return version.definition

    def _required(self, step_id: str) -> list[str]:
        """The required values that the step must get from other steps."""
        return [name for name in self._definition(step_id).required if name not in self._given]

    def _waited_for(self, step_id: str) -> list[str]:
        wait_for = self._definition(step_id).wait_for
        return [] if wait_for is None else wait_for.of

    def _others(self, step_id: str, name: str) -> list[str]:
        return [provider for provider in self._register.providers(name) if provider != step_id]

    def _looked_back(self) -> list[str]:
        """The goals and every possible provider, direct or indirect."""

        def near(step_id: str) -> list[str]:
            providers = [other for name in self._required(step_id) for other in self._others(step_id, name)]
            return [*self._waited_for(step_id), *providers]

        return self._closure(near)

    def _closure(self, near: Callable[[str], Iterable[str]]) -> list[str]:
        """The goals and every step that they lead to."""
        seen = dict.fromkeys(self._goals)
        queue = deque(self._goals)
        while queue:
            for other in near(queue.popleft()):
                if other not in seen:
                    seen[other] = None
                    queue.append(other)
        return list(seen)

    def _rounds(self, steps: Iterable[str]) -> dict[str, int]:
        """The steps of these that can run, each with the round in which all its required values can be available."""
        lacking: dict[str, set[tuple[str, str]]] = {}
        lacked: dict[tuple[str, str], list[str]] = {}
        for step_id in steps:
            wants = {("value", name) for name in self._required(step_id)}
            wants |= {("step", other) for other in self._waited_for(step_id)}
            lacking[step_id] = wants
            for want in wants:
                lacked.setdefault(want, []).append(step_id)
        rounds: dict[str, int] = {}
        ready, number = [step_id for step_id, wants in lacking.items() if not wants], 0
        while ready:
            number += 1
            rounds.update(dict.fromkeys(ready, number))
            then: dict[str, None] = {}
            for step_id in ready:
                for got in (("step", step_id), *(("value", name) for name in self._definition(step_id).outputs)):
                    for other in lacked.get(got, ()):
                        lacking[other].discard(got)
                        if not lacking[other] and other not in rounds:
                            then[other] = None
            ready = list(then)
        return rounds

    def _reaches_goals(self, rounds: dict[str, int]) -> bool:
        return all(goal in rounds for goal in self._goals)

    # Missing inputs -----------------------------------------------------------------------------------------------

    def _refuse_unreachable(self) -> None:
        if self._reaches_goals(self._round):
            return
        missing: list[dict[str, Any]] = []
        waiting: dict[str, list[str]] = {}

        def near(step_id: str) -> list[str]:
            if step_id in self._round:
                return []
            lost = [other for other in self._waited_for(step_id) if other not in self._round]
            for name in self._required(step_id):
                others = self._others(step_id, name)
                if not any(other in self._round for other in others):
                    missing.append({"step_id": step_id, "attribute": name, "could_be_provided_by": others})
                    lost += others
            waiting[step_id] = lost
            return lost

        self._closure(near)
        missing.sort(key=lambda item: bool(item["could_be_provided_by"]))  # values without any provider first
        if not missing or missing[0]["could_be_provided_by"]:
            circle = sorted(in_circles(waiting))
            raise PlanCycle(f"these steps wait for each other: {', '.join(circle)}", steps=circle)
        names = ", ".join(f"{item['step_id']} needs {item['attribute']}" for item in missing)
        raise UnreachableGoal(f"missing inputs: {names}", missing=missing)

    # Choice of providers ------------------------------------------------------------------------------------------

    def _chosen(self, rounds: dict[str, int], *, earlier_only: bool) -> list[str]:
        """The goals and all steps that they need, with each value from its preferred provider that can run."""

        def near(step_id: str) -> list[str]:
            sources = list(self._waited_for(step_id))
            for name in self._required(step_id):
                able = [other for other in self._others(step_id, name) if other in rounds]
                if earlier_only:
                    able = [other for other in able if rounds[other] < rounds[step_id]]
                sources.append(able[0])
            return sources

        return self._closure(near)

    def _without_unneeded(self, chosen: list[str]) -> list[str]:
        """Drop every step that is not needed, the least preferred first, until none can be dropped."""
        kept = chosen
        settled: set[str] = set()
        while True:
            essential = self._essential(kept)
            candidates = [step_id for step_id in kept if step_id not in essential and step_id not in settled]
            if not candidates:
                return kept
            step_id = min(candidates, key=self._preference)
            rounds = self._rounds(other for other in kept if other != step_id)
            if self._reaches_goals(rounds):
                kept = self._chosen(rounds, earlier_only=True)
            else:
                settled.add(step_id)  # dropping other steps cannot change this

    def _essential(self, kept: Collection[str]) -> set[str]:
        """Steps that cannot be dropped: goals, steps in ``wait_for``, and the only providers of required values."""
        among = set(kept)
        essential = set(self._goals)
        for step_id in kept:
            essential.update(self._waited_for(step_id))
            for name in self._required(step_id):
                givers = [other for other in self._others(step_id, name) if other in among]
                if len(givers) == 1:
                    essential.add(givers[0])
        return essential

    def _preference(self, step_id: str) -> tuple[int, str]:
        outputs = self._definition(step_id).outputs
        return (max((attribute.priority for attribute in outputs.values()), default=0), step_id)

    # Order --------------------------------------------------------------------------------------------------------

    def _ordered(self, rounds: dict[str, int]) -> list[str]:
        waits = {step_id: self._waited_for(step_id) for step_id in rounds}
        bringers = {
            step_id: [other for name in self._taken(step_id) for other in self._others(step_id, name)]
            for step_id in rounds
        }
        return in_order(rounds, waits, bringers)

    def _taken(self, step_id: str) -> list[str]:
        """The values that the step takes from other steps if they are available."""
        inputs = self._definition(step_id).inputs
        return [name for name, value in inputs.items() if value.role != "const" and name not in self._given]

    # The plan's contents ------------------------------------------------------------------------------------------

    def _described(self, order: list[str]) -> Plan:
        definitions = {step_id: self._definition(step_id) for step_id in order}
        inputs: dict[str, str] = {}
        requires: dict[str, dict[str, list[str]]] = {}
        options: dict[str, dict[str, dict[str, Any]]] = {}
        before: set[str] = set()
        for step_id, definition in definitions.items():
            if not definition.attributes:
                inputs.update(dict.fromkeys(sorted(self._given), INIT))
            for name, attribute in definition.inputs.items():
                if attribute.role == "const":
                    continue
                if name in self._given:
                    inputs[name] = INIT
                    continue
                bringers = [other for other in self._others(step_id, name) if other in before]
                if attribute.role == "required":
                    requires.setdefault(step_id, {})[name] = bringers
                elif bringers:
                    option = {"of": bringers, "timeout_ms": attribute.timeout_ms}
                    options.setdefault(step_id, {})[name] = option
                if bringers:
                    inputs.setdefault(name, bringers[0])
            before.add(step_id)
        waits = {
            step_id: {"any": definition.wait_for.any, "of": definition.wait_for.of}
            for step_id, definition in definitions.items()
            if definition.wait_for is not None
        }
        return Plan(
            goals=list(self._goals),
            steps=order,
            inputs=inputs,
            included={step_id: self._why(step_id, order) for step_id in order},
            excluded=self._excluded(order, inputs),
            versions={step_id: self._register.steps[step_id].version for step_id in order},
            requires=requires,
            options=options,
            rivals=self._rivals(order),
            waits=waits,
            compensated=[step_id for step_id in order if definitions[step_id].compensate is not None],
            hooks={step_id: definitions[step_id].fans_out for step_id in order if definitions[step_id].makes_token},
            gives_anything=len(order) > 1 and any(not definition.attributes for definition in definitions.values()),
        )

    def _rivals(self, order: list[str]) -> dict[str, list[str]]:
        givers: dict[str, list[str]] = {}
        for step_id in order:
            for name in self._definition(step_id).outputs:
                givers.setdefault(name, []).append(step_id)
        return {name: steps for name, steps in givers.items() if len(steps) > 1}

    def _why(self, step_id: str, order: list[str]) -> str:
        if step_id in self._goals:
            return "it is a goal"
        outputs = self._definition(step_id).outputs
        for other in order:
            if step_id in self._waited_for(other):
                return f"{other} waits for it"
            for name in self._required(other):
                if name in outputs and other != step_id:
                    rivals = [third for third in self._others(other, name) if third != step_id]
                    why = f"it provides {name} for {other}"
                    return f"{why}, with priority {self._register.priority(step_id, name)}" if rivals else why
        raise AssertionError(f"{step_id} is in the plan for no reason")

    def _excluded(self, order: list[str], inputs: dict[str, str]) -> dict[str, str]:
        """Steps that could provide a value of the plan, but are not used for it, each with the reason."""
        excluded: dict[str, str] = {}
        for name, source in inputs.items():
            for step_id in self._register.providers(name):
                if step_id not in order and step_id not in excluded:
                    excluded[step_id] = f"{name} {self._why_not(step_id, name, source)}"
        return excluded

    def _why_not(self, step_id: str, name: str, source: str) -> str:
        if source == INIT:
            return "is given by init"
        if step_id not in self._round:
            return f"is provided by {source}: this step itself lacks inputs"
        mine, theirs = self._register.priority(step_id, name), self._register.priority(source, name)
        if mine < theirs:
            return f"is provided by {source}: priority {theirs} instead of {mine}"
        if mine == theirs and source < step_id:
            return f"is provided by {source}: of the same priority, and its id comes first"
        return f"is provided by {source}, which is needed anyway"
