"""What the contract of the gate says of one workflow, as plainly as it can be written down: no events, no store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LEASE_MS = 60_000
PATIENCE_MS = 3_600_000
EXPIRES_MS = 120_000
OPEN = ("active", "held", "cleared", "not_completed")


class Refusal(Exception):
    """The code with which a call is refused."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass
class Question:
    """What people were asked."""

    about: int
    expires_at: int
    status: str = "pending"


@dataclass
class Step:
    key: str
    first_at: int
    calls: int = 0
    completions: int = 0
    about: int = 0
    decision: str = ""
    standing: str = ""
    item: str = "none"
    attempt: int = 0
    until: int = 0
    holder: str | None = None
    output: int | None = None
    error: str = ""
    question: Question | None = None

    def grant(self, claim: str | None, now: int) -> None:
        if self.item != "active" or self.until <= now:
            self.attempt += 1
        self.item, self.holder = "active", claim
        self.until = now + (PATIENCE_MS if claim is None else LEASE_MS)

    def end(self, item: str) -> None:
        if self.question is not None and self.question.status == "pending" and self.item == "held":
            self.question.status = "void"
        self.item = item


@dataclass
class Gatekeeper:
    """One workflow."""

    status: str = "in_progress"
    verdict: str = "allow"
    """What the policies say of every step at present."""
    steps: dict[str, Step] = field(default_factory=dict)

    # What is asked ------------------------------------------------------------------------------------------------

    def gate(self, name: str, key: str, about: int, reevaluate: bool, claim: str | None, now: int) -> dict[str, Any]:
        if self.status != "in_progress":
            raise Refusal("WORKFLOW_TERMINAL")
        step = self.steps.get(name)
        before = None if step is None else step.decision
        if step is None:
            step = Step(key, now)
            self._evaluate(step, about, claim, now)
            self.steps[name] = step
        else:
            if step.key != key:
                raise Refusal("IDEMPOTENCY_KEY_MISMATCH")
            if step.item == "active" and step.holder is not None and now < step.until and claim != step.holder:
                raise Refusal("STEP_IN_FLIGHT")
            if reevaluate:
                self._evaluate(step, about, claim, now)
            elif step.about != about:
                raise Refusal("STEP_INPUT_MISMATCH")
            elif step.standing == "allow" and step.item != "succeeded":
                step.grant(claim, now)
            else:
                step.holder = None
        step.calls += 1
        step.decision = step.standing
        status = "none" if step.calls == 1 else "completed" if step.completions else "gated_not_completed"
        return {
            "decision": step.standing,
            "cached": before is not None and not reevaluate,
            "attempt": step.attempt,
            "holder": step.holder if step.item == "active" else None,
            "gate_count": step.calls,
            "completion_count": step.completions,
            "prior_completion_status": status,
            "prior_output": None if step.output is None else {"n": step.output},
            "last_decision": before or step.standing,
            "idempotency_key": step.key,
        }

    def _evaluate(self, step: Step, about: int, claim: str | None, now: int) -> None:
        verdict, question = self.verdict, step.question
        if question is not None and question.about == about:
            if question.status in ("pending", "rejected"):
                raise Refusal("APPROVAL_HOLD")
            if question.status == "expired" and verdict == "allow":
                verdict = "require_approval"
            if question.status == "approved" and step.item == "cleared" and verdict == "require_approval":
                step.holder = None
                step.grant(claim, now)
                step.standing = "allow"
                return
        if verdict == "block":
            if step.item in (*OPEN, "none"):
                step.end("blocked")
        elif step.item not in OPEN or step.about != about:
            step.end("new")
            step.attempt = 0
        step.question, step.holder = None, None
        if verdict == "allow":
            step.grant(claim, now)
        elif verdict == "require_approval":
            step.item, step.question = "held", Question(about, now + EXPIRES_MS)
        step.about, step.standing = about, verdict

    # What is reported ---------------------------------------------------------------------------------------------

    def complete(self, name: str, key: str, output: int) -> bool:
        step = self._reported(name, key)
        done = step.item == "succeeded" or (step.output is not None and step.standing != "allow")
        if done and step.output == output:
            return True
        self._refuse_report(step)
        step.item, step.output = "succeeded", output
        step.completions += 1
        return False

    def fail(self, name: str, key: str, error: str) -> bool:
        step = self._reported(name, key)
        if step.item == "not_completed" and step.error == error:
            return True
        self._refuse_report(step)
        if step.item == "cleared":
            step.attempt += 1
        step.item, step.error = "not_completed", error
        return False

    def _reported(self, name: str, key: str) -> Step:
        step = self.steps.get(name)
        if step is None:
            raise Refusal("UNKNOWN_STEP")
        if step.key != key:
            raise Refusal("IDEMPOTENCY_KEY_MISMATCH")
        return step

    def _refuse_report(self, step: Step) -> None:
        if step.item == "succeeded":
            raise Refusal("COMPLETION_CONFLICT")
        if self.status != "in_progress":
            raise Refusal("WORKFLOW_TERMINAL")
        if step.standing != "allow":
            raise Refusal("STEP_NOT_ALLOWED")

    # What people say, and what time does --------------------------------------------------------------------------

    def review(self, name: str, agrees: bool, now: int) -> str:
        step = self.steps.get(name)
        if step is None:
            raise Refusal("UNKNOWN_STEP")
        question = step.question
        if question is None:
            raise Refusal("NO_APPROVAL_NEEDED")
        if question.status == "expired" or (question.status == "pending" and question.expires_at <= now):
            raise Refusal("APPROVAL_EXPIRED")
        if question.status != "pending":
            raise Refusal("NOT_PENDING")
        question.status = "approved" if agrees else "rejected"
        step.item, step.standing = ("cleared", "allow") if agrees else ("blocked", "block")
        return question.status

    def sweep(self, now: int) -> None:
        if self.status != "in_progress":
            return
        for step in self.steps.values():
            if step.item == "active" and step.until <= now:
                step.item, step.error = "not_completed", ""
            question = step.question
            if question is not None and question.status == "pending" and question.expires_at <= now:
                question.status, step.item, step.standing = "expired", "blocked", "block"

    def end(self, status: str) -> str:
        if self.status != "in_progress":
            raise Refusal("WORKFLOW_TERMINAL")
        if status == "completed" and any(step.item == "held" for step in self.steps.values()):
            raise Refusal("APPROVAL_PENDING")
        self.status = status
        for step in self.steps.values():
            if step.item in OPEN:
                step.end("cancelled")
        return status
