"""Plans of random graphs, compared with an oracle that repeatedly adds the steps that can run."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from counterfoil.domain.errors import PlanCycle, UnknownStep, UnreachableGoal
from counterfoil.domain.flows.planning import INIT, Plan, make_plan
from tests.property.graphs import Graph, Shape, leads_to, questions, register_of, runnable

pytestmark = pytest.mark.timeout(300)

THOROUGH = settings(max_examples=80, suppress_health_check=list(HealthCheck))
Question = tuple[Graph, list[str], frozenset[str]]


def planned(question: Question) -> Plan:
    """The plan; questions that have none are not asked."""
    graph, goals, init = question
    assume(leads_to(graph, graph, goals, init))
    return make_plan(register_of(graph), goals, init)


@THOROUGH
@given(questions())
def test_a_goal_is_planned_exactly_if_it_can_be_reached(question: Question) -> None:
    graph, goals, init = question
    able = runnable(graph, init)
    if set(goals) <= able:
        plan = make_plan(register_of(graph), goals, init)
        assert leads_to(graph, plan.steps, goals, init)
        return
    with pytest.raises((UnreachableGoal, PlanCycle)) as refusal:
        make_plan(register_of(graph), goals, init)
    details = refusal.value.details
    if refusal.type is PlanCycle:
        assert details["steps"]
        assert not able.intersection(details["steps"])
        return
    assert not details["missing"][0]["could_be_provided_by"], "a step needs what no step gives"
    for item in details["missing"]:
        assert item["attribute"] in graph[item["step_id"]].required - init
        providers = {step_id for step_id, shape in graph.items() if item["attribute"] in shape.outputs}
        assert set(item["could_be_provided_by"]) == providers - {item["step_id"]}
        assert not providers & able


@THOROUGH
@given(questions())
def test_no_step_of_a_plan_can_be_left_out(question: Question) -> None:
    graph, goals, init = question
    plan = planned(question)
    assert len(set(plan.steps)) == len(plan.steps)
    for step_id in plan.steps:
        others = [other for other in plan.steps if other != step_id]
        assert step_id in goals or not leads_to(graph, others, goals, init), f"{step_id} is there for nothing"


@THOROUGH
@given(questions(), st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_the_order_of_the_register(question: Question, dice: random.Random) -> None:
    graph, goals, init = question
    plan = planned(question)
    order = list(graph)
    dice.shuffle(order)
    again = make_plan(register_of(graph, order), goals, init)
    assert again.stored() == plan.stored()
    assert again.plan_id == plan.plan_id


@THOROUGH
@given(questions())
def test_the_order_of_a_plan_respects_data_flow(question: Question) -> None:
    graph, _, init = question
    plan = planned(question)
    there, before = set(init), set[str]()
    for step_id in plan.steps:
        shape = graph[step_id]
        assert shape.required <= there
        assert before.issuperset(shape.wait_for)
        assert before.issuperset(plan.sources[step_id]), "no step waits for one that comes later"
        there.update(shape.outputs)
        before.add(step_id)


@THOROUGH
@given(questions())
def test_a_plan_says_where_each_value_comes_from_and_why_each_step_is_there_or_not(question: Question) -> None:
    graph, goals, init = question
    plan = planned(question)
    assert set(plan.included) == set(plan.steps)
    assert not set(plan.excluded) & set(plan.steps)
    assert all(plan.included[goal] == "it is a goal" for goal in goals)
    required = {name for step_id in plan.steps for name in graph[step_id].required}
    assert required <= set(plan.inputs)
    for name, source in plan.inputs.items():
        assert (source == INIT) == (name in init)
        assert source == INIT or (source in plan.steps and name in graph[source].outputs)


@THOROUGH
@given(questions())
def test_every_provider_of_a_value_is_waited_for_unless_it_waits_for_the_step_itself(question: Question) -> None:
    """A value is not missed because of the names of steps, or because its provider comes late by itself."""
    graph, _, init = question
    plan = planned(question)
    for step_id in plan.steps:
        shape = graph[step_id]
        for name in {*shape.required, *shape.optional} - init:
            listened = plan.requires.get(step_id, {}).get(name) or plan.options.get(step_id, {}).get(name, {}).get("of")
            for other in plan.steps:
                if other != step_id and name in graph[other].outputs and step_id not in ancestors(plan, other):
                    assert other in (listened or ()), f"{step_id} does not listen to {other} for {name}"


def ancestors(plan: Plan, step_id: str) -> set[str]:
    found: set[str] = set()
    queue = [step_id]
    while queue:
        for source in plan.sources[queue.pop()]:
            if source not in found:
                found.add(source)
                queue.append(source)
    return found


def test_the_provider_with_the_higher_priority_is_planned_and_the_smaller_id_among_equals() -> None:
    graph = {
        "goal": Shape(required=frozenset({"x", "y"})),
        "low": Shape(outputs={"x": 0}),
        "high": Shape(outputs={"x": 1}),
        "b": Shape(outputs={"y": 0}),
        "a": Shape(outputs={"y": 0}),
    }
    plan = make_plan(register_of(graph), ["goal"], [])
    assert plan.steps == ["a", "high", "goal"]
    assert set(plan.excluded) == {"low", "b"}


def test_waiting_for_an_unregistered_step_is_refused_by_its_name() -> None:
    graph = {"goal": Shape(wait_for=("nobody",))}
    with pytest.raises(UnknownStep) as refusal:
        make_plan(register_of(graph), ["goal"], [])
    assert refusal.value.details["step_id"] == "nobody"
