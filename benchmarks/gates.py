"""The cost of policies: gate calls for new steps, at an engine with many policies and at one without any."""

from __future__ import annotations

import statistics
from typing import Any

import aiohttp
import orjson

from benchmarks.load import post_request, run_load
from benchmarks.measures import CONNECTIONS, Measure, Outcome, Size
from benchmarks.processes import Server, engine

POLICIES = 100
WORKFLOWS = 16
CALL = orjson.dumps(
    {
        "step_name": "Wire transfer",
        "step_type": "tool_call",
        "step_input": {"amount": 120, "currency": "EUR", "account": {"country": "DE", "age_days": 400}, "memo": "rent"},
        "tool_context": {"tool_name": "bank", "tool_type": "api", "tool_input": {"speed": "normal"}},
        "cost_usd": 0.01,
    }
)
LABELS = {"region": "eu", "team": "payments"}


def _when(field: str, operator: str, value: Any) -> dict[str, Any]:
    return {"field": field, "operator": operator, "value": value}


def policy(number: int) -> dict[str, Any]:
    """One of a realistic mix: a third names other steps, the others read the call, a few of them by an expression.

    None of them matches, so that both engines decide and write the same.
    """
    others: list[dict[str, Any]] = [
        {"match": {"step_id": f"ledger-{number}"}},
        {"match": {"step_id": f"report-{number}-*"}},
    ]
    looks: list[dict[str, Any]] = [
        {"conditions": [_when("step.gate_count", "greater_than", 3 + number)]},
        {
            "conditions": [
                _when("step.prior_completion_status", "equals", "gated_not_completed"),
                _when("step.first_attempt_age_seconds", "less_than", 30 + number),
            ]
        },
        {"conditions": [_when("step.input.amount", "greater_than", 1_000 + number)]},
        {"conditions": [_when("step.input.account.country", "in", ["IR", "KP", f"X{number}"])]},
        {
            "match": {"flow_labels": {"region": "eu"}, "step_id": "transfer-*"},
            "conditions": [
                _when("step.input.currency", "equals", "EUR"),
                _when("step.input.memo", "contains", f"gift {number}"),
            ],
        },
        {"conditions": [_when("tool.name", "regex", f"^shell{number}")]},
        {"conditions": [_when("cost_usd", "greater_than", 1 + number)]},
    ]
    written: list[dict[str, Any]] = [
        {"expression": f"step.gate_count > {number + 3} && step.completion_count == 0"},
        {"expression": f"step.input.amount > {number + 1_000} && step.input.currency != 'EUR'"},
    ]
    group = others if number % 3 == 0 else written if number % 16 == 1 else looks
    parts = group[number // 3 % len(group)]
    return {"name": f"policy {number}", "priority": number % 10, **parts, "action": {"type": "block", "reason": "no"}}


async def gate(size: Size) -> list[Outcome]:
    """Gate calls/s for new steps with many policies over those with none."""
    ratios = []
    with engine() as guarded, engine() as unguarded:
        await put_policies(guarded)
        for turn in range(size.turns + 1):
            ratio = await rate(guarded, size.gates) / await rate(unguarded, size.gates)
            if turn:  # the first round is a warm-up
                ratios.append(ratio)
    name = f"gates/s of new steps, {POLICIES} policies over none"
    return [Outcome(name, statistics.median(ratios), 0.5, rounds=ratios)]


async def put_policies(server: Server) -> None:
    """Register all policies, and check that none of them matches."""
    async with aiohttp.ClientSession() as session:
        for number in range(POLICIES):
            async with session.put(f"{server.url}/api/v1/policies/policy-{number}", json=policy(number)) as answer:
                assert answer.status == 201, await answer.text()
        await _refuse_a_match(session, server)


async def _refuse_a_match(session: aiohttp.ClientSession, server: Server) -> None:
    """If a policy matched, or could not be evaluated, the two engines would do different work."""
    url = f"{server.url}/api/v1/workflows/{await _begin(session, server)}/steps/transfer-0/gate"
    async with session.post(url, data=CALL, headers={"Content-Type": "application/json"}) as answer:
        told = await answer.json()
        assert (told["decision"], told["policy_ids"]) == ("allow", []), told


async def rate(server: Server, count: int) -> float:
    """Call the gate for ``count`` new steps of new workflows; returns the rate per second."""
    async with aiohttp.ClientSession() as session:
        workflows = [await _begin(session, server) for _ in range(WORKFLOWS)]
    steps = [
        f"{server.url}/api/v1/workflows/{workflows[number % WORKFLOWS]}/steps/transfer-{number}/gate"
        for number in range(count)
    ]
    load = await run_load([server], [post_request(url, CALL) for url in steps], CONNECTIONS)
    assert set(load.statuses) == {200}, load.statuses
    return load.rate


async def _begin(session: aiohttp.ClientSession, server: Server) -> str:
    wanted = {"workflow_name": "bench", "labels": LABELS}
    async with session.post(f"{server.url}/api/v1/workflows", json=wanted) as answer:
        assert answer.status == 201, await answer.text()
        workflow_id: str = (await answer.json())["workflow_id"]
        return workflow_id


MEASURES: dict[str, Measure] = {"gate": gate}
