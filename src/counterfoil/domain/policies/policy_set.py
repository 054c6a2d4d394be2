"""The set of all policies: finds those that apply to a step, and evaluates them.

A policy matches if it applies to the step, and all its conditions and its expression are true. Every matching policy
counts: block overrides require_approval, which overrides allow; if none matches, the step is allowed. A policy that
cannot be evaluated blocks. As in CEL, a failure is ignored if another part is false: the policy would not match anyway.

A set is immutable. It caches which policies apply to which step, so it can be used from several threads at once, and
evaluating a step that no policy applies to costs a single lookup.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from counterfoil.domain.expressions.patterns import compile_glob, is_glob
from counterfoil.domain.expressions.values import ExpressionFailed
from counterfoil.domain.policies.conditions import ConditionFailed
from counterfoil.domain.policies.definitions import PolicyDefinition
from counterfoil.domain.policies.expressions import Readings
from counterfoil.domain.policies.subject import Attempt, Subject
from counterfoil.domain.states import Decision

__all__ = ["NO_POLICIES", "Attempt", "Matched", "Policy", "PolicySet", "Ruling", "Subject", "Terms", "strictest"]

MAX_REMEMBERED = 4096
"""The most steps (by id and type) for which the applicable policies are cached."""
MAX_REASONS = 8

_SEVERITIES = ("low", "medium", "high", "critical")
_STRENGTH = {Decision.ALLOW: 0, Decision.REQUIRE_APPROVAL: 1, Decision.BLOCK: 2}


@dataclass(frozen=True, slots=True)
class Policy:
    """A version of a policy, as it is stored."""

    policy_id: str
    version: int
    definition: PolicyDefinition


@dataclass(frozen=True, slots=True)
class Matched:
    """A policy that matched, or could not be evaluated (``failed``) and therefore blocks."""

    policy_id: str
    policy_name: str
    version: int
    action: Decision
    reason: str | None
    severity: str
    failed: bool = False

    def document(self) -> dict[str, Any]:
        return {
            "policy_id": self.policy_id,
            "policy_name": self.policy_name,
            "version": self.version,
            "action": self.action.value,
            "reason": self.reason,
            "severity": self.severity,
            "failed": self.failed,
        }


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of an approval: the strictest value of each, over all policies that require one."""

    approvals: int
    expires_in_ms: int
    separate_requester: bool
    severity: str


@dataclass(frozen=True, slots=True)
class Ruling:
    """The decision of the policies on a subject, and all policies that matched, including overridden ones."""

    decision: Decision
    matched: tuple[Matched, ...] = ()
    """Highest priority first, then by id."""
    reason: str | None = None
    """The reasons of the policies that made the decision; None: they give none."""
    terms: Terms | None = None
    """The terms of the approval, if one is required."""


_ALLOWED = Ruling(Decision.ALLOW)


class _Rule:
    """An enabled policy, compiled."""

    __slots__ = ("conditions", "definition", "expression", "fits_type", "labels", "matched", "policy", "terms")

    def __init__(self, policy: Policy) -> None:
        definition = policy.definition
        action = definition.action
        self.policy = policy
        self.definition = definition
        self.labels = tuple(definition.match.flow_labels.items())
        self.conditions = definition.compiled_conditions()
        self.expression = definition.compiled_expression()
        self.fits_type = compile_glob(definition.match.step_type or "*")
        self.matched = Matched(
            policy.policy_id, definition.name, policy.version, action.type, action.reason, action.severity
        )
        self.terms = Terms(action.approvals, action.expires_in_ms, action.separate_requester, action.severity)

    @property
    def rank(self) -> tuple[int, str]:
        return (-self.definition.priority, self.policy.policy_id)


class PolicySet:
    """The policies in force; immutable. Policies that were compiled for validation are not compiled again."""

    def __init__(self, policies: Iterable[Policy]) -> None:
        given = list(policies)
        self._size = len(given)
        self._by_step_id: defaultdict[str, list[_Rule]] = defaultdict(list)
        self._by_glob: list[tuple[Callable[[str], bool], _Rule]] = []
        self._remembered: dict[tuple[str, str], tuple[_Rule, ...]] = {}
        rules = [_Rule(policy) for policy in given if policy.definition.enabled]
        for rule in sorted(rules, key=lambda rule: rule.rank):
            step_id = rule.definition.match.step_id
            if step_id is not None and not is_glob(step_id):
                self._by_step_id[step_id].append(rule)
            else:
                self._by_glob.append((compile_glob(step_id or "*"), rule))

    def __len__(self) -> int:
        return self._size

    def concerns(self, step_id: str, step_type: str) -> bool:
        """Whether any policy could match such a step. If not, it is allowed without evaluation."""
        return bool(self._rules_for(step_id, step_type))

    def controls(self, step_id: str, step_type: str) -> bool:
        """Whether a policy names the step, by its id or by a pattern, and can stop or hold it."""
        return any(
            rule.definition.match.step_id is not None and rule.matched.action is not Decision.ALLOW
            for rule in self._rules_for(step_id, step_type)
        )

    def evaluate(self, subject: Subject) -> Ruling:
        """The decision of the policies. Never fails: a policy that cannot be evaluated blocks."""
        rules = self._rules_for(subject.step_id, subject.step_type)
        if not rules:
            return _ALLOWED
        readings = Readings(subject)
        found: list[Matched] = []
        terms: list[Terms] = []
        for rule in rules:
            matched = _match(rule, subject, readings)
            if matched is not None:
                found.append(matched)
                if matched.action is Decision.REQUIRE_APPROVAL:
                    terms.append(rule.terms)
        return _ruling(tuple(found), terms) if found else _ALLOWED

    def _rules_for(self, step_id: str, step_type: str) -> tuple[_Rule, ...]:
        key = (step_id, step_type)
        rules = self._remembered.get(key)
        if rules is None:
            concerned = [rule for fits, rule in self._by_glob if fits(step_id)]
            if own := self._by_step_id.get(step_id):
                concerned = sorted([*own, *concerned], key=lambda rule: rule.rank)
            rules = tuple(rule for rule in concerned if rule.fits_type(step_type))
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = rules
        return rules


NO_POLICIES = PolicySet(())


def _match(rule: _Rule, subject: Subject, readings: Readings) -> Matched | None:
    """The match of a rule; None if it does not match."""
    for name, value in rule.labels:
        if subject.labels.get(name) != value:
            return None
    failure: Exception | None = None
    for condition in rule.conditions:
        try:
            if not condition(subject):
                return None
        except Exception as error:  # noqa: BLE001 - whatever it is: what cannot be evaluated blocks
            failure = failure or error
    if rule.expression is not None:
        try:
            if not rule.expression.holds(readings):
                return None
        except Exception as error:  # noqa: BLE001 - as above
            failure = failure or error
    return rule.matched if failure is None else _failed(rule, failure)


def _failed(rule: _Rule, failure: Exception) -> Matched:
    # Only messages of these types are certain to hold no value of the subject.
    told = str(failure) if isinstance(failure, ConditionFailed | ExpressionFailed) else type(failure).__name__
    name = rule.definition.name
    return Matched(
        policy_id=rule.policy.policy_id,
        policy_name=name,
        version=rule.policy.version,
        action=Decision.BLOCK,
        reason=f"policy {name} could not be evaluated: {told}",
        severity=rule.matched.severity,
        failed=True,
    )


def _ruling(found: tuple[Matched, ...], terms: list[Terms]) -> Ruling:
    decision = max((matched.action for matched in found), key=_STRENGTH.__getitem__)
    return Ruling(
        decision,
        found,
        _reason(decision, [matched for matched in found if matched.action is decision]),
        strictest(terms) if decision is Decision.REQUIRE_APPROVAL else None,
    )


def _reason(decision: Decision, deciding: list[Matched]) -> str | None:
    """The reasons of the deciding policies, each once; one that blocks or holds without a reason is named instead."""
    unnamed = decision is Decision.ALLOW
    given = [matched.reason or (None if unnamed else f"policy {matched.policy_name}") for matched in deciding]
    reasons = list(dict.fromkeys(reason for reason in given if reason))
    told, untold = reasons[:MAX_REASONS], len(reasons) - MAX_REASONS
    return "; ".join([*told, f"and {untold} more"] if untold > 0 else told) or None


def strictest(terms: list[Terms]) -> Terms:
    """Combine several terms into the strictest value of each."""
    return Terms(
        approvals=max(each.approvals for each in terms),
        expires_in_ms=min(each.expires_in_ms for each in terms),
        separate_requester=any(each.separate_requester for each in terms),
        severity=max((each.severity for each in terms), key=_SEVERITIES.index),
    )
