from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import pytest

import counterfoil.domain.policies.policy_set as module
from counterfoil.domain.policies.policy_set import MAX_REASONS, MAX_REMEMBERED, NO_POLICIES, PolicySet, Ruling, Terms
from counterfoil.domain.states import Decision
from tests.unit.policies.policy_subjects import attempt, policy, subject


def condition(field: str, operator: str, value: Any) -> dict[str, Any]:
    return {"field": field, "operator": operator, "value": value}


def ids(ruling: Ruling) -> list[str]:
    return [matched.policy_id for matched in ruling.matched]


HOLD = "require_approval"
BAD_AMOUNT: dict[str, Any] = {"conditions": [condition("step.input.amount", "greater_than", 5)]}
TEXT_AMOUNT = subject({"amount": "secret"})


def test_no_policy_allows_everything() -> None:
    assert len(NO_POLICIES) == 0
    assert NO_POLICIES.evaluate(subject()) == Ruling(Decision.ALLOW, (), None, None)
    assert not NO_POLICIES.concerns("transfer", "tool_call")


@pytest.mark.parametrize(
    ("actions", "decision"),
    [
        (["allow"], "allow"),
        (["allow", HOLD], HOLD),
        ([HOLD, "allow"], HOLD),
        (["allow", HOLD, "block"], "block"),
        (["block", "allow"], "block"),
        ([HOLD, "block"], "block"),
        (["block", HOLD], "block"),
    ],
)
def test_block_beats_approval_beats_allow_whatever_the_priorities(actions: list[str], decision: str) -> None:
    policies = [policy(f"p{number}", action, priority=-number) for number, action in enumerate(actions)]
    ruling = PolicySet(policies).evaluate(subject())
    assert ruling.decision == decision
    assert [matched.action for matched in ruling.matched] == actions
    assert (ruling.terms is not None) == (decision == HOLD)


def test_all_that_matched_are_listed_by_priority_then_id() -> None:
    given = [("c", 0), ("a", 0), ("z", 5), ("b", -5), ("B", 0)]
    ruling = PolicySet(policy(name, "allow", priority=priority) for name, priority in given).evaluate(subject())
    assert ids(ruling) == ["z", "B", "a", "c", "b"]


def test_a_disabled_policy_never_matches_but_is_counted() -> None:
    policies = PolicySet([policy("off", enabled=False)])
    assert policies.evaluate(subject()).decision == "allow"
    assert not policies.concerns("transfer", "tool_call")
    assert len(policies) == 1


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ({}, True),
        ({"step_id": "transfer"}, True),
        ({"step_id": "Transfer"}, False),
        ({"step_id": "trans*"}, True),
        ({"step_id": "trans?er"}, True),
        ({"step_id": "[t]ransfer"}, False),
        ({"step_type": "tool_*"}, True),
        ({"step_type": "llm_call"}, False),
        ({"step_id": "transfer", "step_type": "llm_call"}, False),
        ({"flow_labels": {"team": "payments"}}, True),
        ({"flow_labels": {"team": "pay*"}}, False),
        ({"flow_labels": {"team": "payments", "env": "prod"}}, True),
        ({"flow_labels": {"team": "payments", "region": "eu"}}, False),
        ({"flow_labels": {"region": ""}}, False),
    ],
)
def test_everything_in_match_must_fit(match: dict[str, Any], matches: bool) -> None:
    asked = subject(labels={"team": "payments", "env": "prod"})
    assert ids(PolicySet([policy("p", match=match)]).evaluate(asked)) == (["p"] if matches else [])


def test_conditions_and_expression_must_all_hold() -> None:
    both = policy(
        "p",
        conditions=[condition("step.gate_count", "at_least", 2), condition("model", "equals", "a")],
        expression="cost_usd != null && cost_usd > 1",
    )
    policies = PolicySet([both])
    assert policies.evaluate(subject(at=attempt(2), model="a", cost_usd=2)).decision == "block"
    assert policies.evaluate(subject(at=attempt(1), model="a", cost_usd=2)).decision == "allow"
    assert policies.evaluate(subject(at=attempt(2), model="b", cost_usd=2)).decision == "allow"
    assert policies.evaluate(subject(at=attempt(2), model="a", cost_usd=1)).decision == "allow"


@pytest.mark.parametrize("action", ["allow", HOLD, "block"])
@pytest.mark.parametrize("fields", [BAD_AMOUNT, {"expression": "step.input.amount > 5"}])
def test_a_policy_that_cannot_be_evaluated_blocks_and_says_so(action: str, fields: dict[str, Any]) -> None:
    ruling = PolicySet([policy("limit", action, **fields), policy("fine", HOLD)]).evaluate(TEXT_AMOUNT)
    assert (ruling.decision, ruling.terms) == ("block", None)
    by_id = {matched.policy_id: matched for matched in ruling.matched}
    assert (by_id["limit"].failed, by_id["limit"].action) == (True, "block")
    assert (by_id["fine"].failed, by_id["fine"].action) == (False, HOLD)
    assert ruling.reason == by_id["limit"].reason
    assert ruling.reason is not None
    assert ruling.reason.startswith("policy limit could not be evaluated: ")
    assert "secret" not in ruling.reason


def test_an_unexpected_error_blocks_without_its_message() -> None:
    class Odd(dict[str, Any]):
        def get(self, key: object, default: object = None) -> Any:
            raise KeyError("secret")

    asking: list[dict[str, Any]] = [BAD_AMOUNT, {"expression": "tool.name == 'x'"}]
    for fields in asking:
        ruling = PolicySet([policy("p", **fields)]).evaluate(subject(Odd(x=1), tool=Odd()))
        assert ruling.reason == "policy p could not be evaluated: KeyError"


@pytest.mark.parametrize("turned", [False, True])
def test_a_failure_does_not_matter_where_another_part_says_false(turned: bool) -> None:
    conditions = [*BAD_AMOUNT["conditions"], condition("model", "equals", "a")]
    policies = PolicySet([policy("p", conditions=conditions[::-1] if turned else conditions)])
    assert policies.evaluate(subject({"amount": "x"})).matched == ()
    assert policies.evaluate(subject({"amount": "x"}, model="a")).matched[0].failed
    ruled_out = PolicySet([policy("p", **BAD_AMOUNT, expression="step.gate_count > 5")])
    assert ruled_out.evaluate(TEXT_AMOUNT).matched == ()


def test_a_failing_policy_about_other_steps_blocks_nothing() -> None:
    policies = PolicySet([policy("p", **BAD_AMOUNT, match={"flow_labels": {"team": "x"}})])
    assert policies.evaluate(TEXT_AMOUNT).decision == "allow"


def test_what_is_asked_about_may_be_any_mapping() -> None:
    frozen = MappingProxyType
    asked = subject(
        frozen({"a": {"b": 1}}), labels=frozen({"team": "x"}), tool=frozen({"name": "t", "input": frozen({"c": 2})})
    )
    text = "step.input.a.b == 1 && flow.labels.team == 'x' && tool.name == 't' && tool.input.c == 2"
    fields = [("step.input.a.b", 1), ("flow.labels.team", "x"), ("tool.name", "t"), ("tool.input.c", 2)]
    conditions = [condition(field, "equals", value) for field, value in fields]
    [matched] = PolicySet([policy("p", conditions=conditions, expression=text)]).evaluate(asked).matched
    assert not matched.failed


def test_reasons_of_those_that_decide_are_joined() -> None:
    policies = [
        policy("a", {"type": "block", "reason": "too late"}),
        policy("b", {"type": "block", "reason": "too much"}),
        policy("c", {"type": "block", "reason": "too late"}),
        policy("d", {"type": HOLD, "reason": "ask first"}),
        policy("e", "block"),
    ]
    assert PolicySet(policies).evaluate(subject()).reason == "too late; too much; policy e"
    assert PolicySet(policies[3:4]).evaluate(subject()).reason == "ask first"
    assert PolicySet([policy("x", "allow")]).evaluate(subject()).reason is None
    assert PolicySet([policy("x", {"type": "allow", "reason": "fine"})]).evaluate(subject()).reason == "fine"


def test_a_reason_stays_readable_however_many_block() -> None:
    ruling = PolicySet(policy(f"p{number:02d}") for number in range(20)).evaluate(subject())
    assert ruling.reason is not None
    assert ruling.reason.count(";") == MAX_REASONS
    assert ruling.reason.endswith("; and 12 more")
    assert len(ruling.matched) == 20


def test_the_terms_of_an_approval_are_the_strictest_of_all() -> None:
    def hold(policy_id: str, **terms: Any) -> Any:
        return policy(policy_id, {"type": HOLD, **terms})

    one = hold("a", approvals=3, expires_in="7d", severity="low")
    two = hold("b", approvals=1, expires_in="15m", severity="critical")
    three = hold("c", approvals=2, expires_in=60_000 * 60, severity="high", separate_requester=True)
    allows = policy("d", {"type": "allow", "approvals": 9, "expires_in": "1s", "severity": "critical"})
    assert PolicySet([one]).evaluate(subject()).terms == Terms(3, 604_800_000, False, "low")
    assert PolicySet([one, allows]).evaluate(subject()).terms == Terms(3, 604_800_000, False, "low")
    assert PolicySet([one, two]).evaluate(subject()).terms == Terms(3, 900_000, False, "critical")
    assert PolicySet([one, two, three]).evaluate(subject()).terms == Terms(3, 900_000, True, "critical")
    assert PolicySet([one, policy("e", "block")]).evaluate(subject()).terms is None


def test_a_match_as_a_document() -> None:
    [matched] = (
        PolicySet([policy("p", {"type": HOLD, "reason": "why", "severity": "high"}, name="A policy")])
        .evaluate(subject())
        .matched
    )
    assert matched.document() == {
        "policy_id": "p",
        "policy_name": "A policy",
        "version": 1,
        "action": "require_approval",
        "reason": "why",
        "severity": "high",
        "failed": False,
    }
    assert type(matched.document()["action"]) is str


def test_which_steps_are_concerned() -> None:
    policies = PolicySet([policy("a", match={"step_id": "pay"}), policy("b", match={"step_type": "llm*"})])
    assert policies.concerns("pay", "tool_call")
    assert policies.concerns("other", "llm_call")
    assert not policies.concerns("other", "tool_call")
    labelled = PolicySet([policy("a", match={"flow_labels": {"team": "x"}})])
    assert labelled.concerns("any", "thing"), "it depends on the labels, which are not known yet"


def test_what_is_remembered_of_steps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_REMEMBERED == 4096
    monkeypatch.setattr(module, "MAX_REMEMBERED", 10)
    policies = PolicySet([policy("a", match={"step_id": "s1*"})])
    for number in range(100):
        assert policies.concerns(f"s{number}", "t") == str(number).startswith("1")
        assert len(policies._remembered) <= 10


def test_a_set_that_is_built_again_compiles_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    policies = [
        policy(f"p{n}", conditions=[condition("model", "regex", f"a{n}")], expression=f"step.id != 'x{n}'")
        for n in range(20)
    ]

    def refuse(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr("counterfoil.domain.policies.definitions.compile_condition", refuse)
    monkeypatch.setattr("counterfoil.domain.policies.expressions.compile_expression", refuse)
    assert PolicySet(policies[1:]).evaluate(subject(model="a3")).decision == "block"


def test_one_set_may_be_asked_from_several_threads() -> None:
    policies = PolicySet(
        [policy("a", match={"step_id": "s?"}), policy("b", expression="step.input.n > 500", match={"step_id": "s*"})]
    )

    def ask(number: int) -> list[str]:
        return ids(policies.evaluate(subject({"n": number}, step_id=f"s{number}")))

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(1_000)))
    assert answers == [["a"] if number < 10 else ["b"] if number > 500 else [] for number in range(1_000)]


def quickest(policies: PolicySet) -> float:
    """Microseconds of one evaluation, at the best of several tries: others use this machine, too."""
    asked = subject({"amount": 5})
    best = 1.0
    for _ in range(20):
        started = time.perf_counter()
        for _ in range(50):
            policies.evaluate(asked)
        best = min(best, (time.perf_counter() - started) / 50)
    return best * 1e6


def test_a_hundred_policies_cost_little() -> None:
    held: dict[str, Any] = {"match": {"step_id": "trans*"}, "conditions": [condition("step.gate_count", "at_least", 3)]}
    elsewhere: dict[str, Any] = {"match": {"step_id": "refund*"}}
    one = quickest(PolicySet([policy("p", **held)]))
    assert quickest(PolicySet(policy(f"p{number}", **held) for number in range(100))) < 200 * one  # about 50
    assert quickest(PolicySet(policy(f"p{number}", **elsewhere) for number in range(100))) < 5 * one  # less than one
