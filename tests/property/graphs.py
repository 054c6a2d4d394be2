"""Random graphs of steps, and an oracle for what is reachable: repeatedly add the steps that can run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from counterfoil.domain.records import StepVersion
from counterfoil.domain.steps.definitions import StepDefinition, WorkDefaults
from counterfoil.domain.steps.register import Register

NAMES = [f"v{number}" for number in range(6)]
STEPS = [f"s{number}" for number in range(7)]


@dataclass(frozen=True)
class Shape:
    """What planning sees of a step."""

    required: frozenset[str] = frozenset()
    optional: Mapping[str, int | None] = field(default_factory=dict)
    """By name: how long it is waited for."""
    outputs: Mapping[str, int] = field(default_factory=dict)
    """By name: with which priority."""
    wait_for: tuple[str, ...] = ()
    any: int = 1

    def definition(self, step_id: str, **more: Any) -> StepDefinition:
        attributes: dict[str, dict[str, Any]] = {
            **{name: {"role": "required"} for name in sorted(self.required)},
            **{
                name: {"role": "optional", "default": "default", "timeout_ms": timeout_ms}
                for name, timeout_ms in self.optional.items()
            },
            **{name: {"role": "output", "priority": priority} for name, priority in self.outputs.items()},
            "own": {"role": "const", "value": step_id},  # no step is without attributes: that would mean all of them
        }
        definition: dict[str, Any] = {"endpoint": f"http://worker/{step_id}", "attributes": attributes, **more}
        if self.wait_for:
            definition["wait_for"] = {"any": self.any, "of": list(self.wait_for)}
        return StepDefinition.model_validate(definition)


Graph = Mapping[str, Shape]


def register_of(graph: Graph, order: Iterable[str] | None = None) -> Register:
    """The register with these steps, put in this order."""
    defaults = WorkDefaults()
    return Register(
        1, [StepVersion.of(step_id, graph[step_id].definition(step_id), defaults) for step_id in order or graph]
    )


@st.composite
def shapes(draw: st.DrawFn, step_id: str, steps: list[str]) -> Shape:
    roles = draw(st.lists(st.sampled_from("rrooO---"), min_size=len(NAMES), max_size=len(NAMES)))
    named = dict(zip(NAMES, roles, strict=True))
    others = [other for other in steps if other != step_id]
    waits: list[str] = []
    if draw(_RARELY) and others:
        waits = draw(st.lists(st.sampled_from(others), unique=True, max_size=3))
    return Shape(
        required=frozenset(name for name, role in named.items() if role == "r"),
        optional={name: draw(st.sampled_from([None, 5_000])) for name, role in named.items() if role == "O"},
        outputs={name: draw(st.integers(-1, 2)) for name, role in named.items() if role == "o"},
        wait_for=tuple(waits),
        any=draw(st.integers(1, len(waits))) if waits else 1,
    )


_RARELY: st.SearchStrategy[bool] = st.sampled_from([False, False, False, True])


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Shape]:
    steps = STEPS[: draw(st.integers(1, len(STEPS)))]
    return {step_id: draw(shapes(step_id, steps)) for step_id in steps}


@st.composite
def questions(draw: st.DrawFn) -> tuple[dict[str, Shape], list[str], frozenset[str]]:
    """A graph, goals, and what is given."""
    graph = draw(graphs())
    goals = draw(st.lists(st.sampled_from(sorted(graph)), min_size=1, max_size=3, unique=True))
    given = draw(st.frozensets(st.sampled_from(NAMES), max_size=3))
    return graph, goals, given


def runnable(graph: Graph, given: Collection[str]) -> set[str]:
    """The steps that can run at all if only these steps exist: the oracle."""
    able: set[str] = set()
    while True:
        there = set(given).union(*(graph[step_id].outputs for step_id in able))
        more = {
            step_id
            for step_id, shape in graph.items()
            if step_id not in able and shape.required <= there and able.issuperset(shape.wait_for)
        }
        if not more:
            return able
        able |= more


def leads_to(graph: Graph, plan_steps: Iterable[str], goals: Iterable[str], given: Collection[str]) -> bool:
    """Whether these steps alone reach all goals."""
    kept = {step_id: graph[step_id] for step_id in plan_steps}
    return set(goals) <= runnable(kept, given)
