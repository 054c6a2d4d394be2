"""``retry_context``: which attempt this is, how earlier ones ended, and whether their output is available.

Always all ten fields, in every answer of the gate and in every dispatch.
"""

from __future__ import annotations

from typing import Any

from counterfoil.domain.policies.policy_set import Attempt
from counterfoil.domain.records import Gate, Work
from counterfoil.domain.states import Decision
from counterfoil.domain.time import optional_rfc3339, rfc3339


def prior_completion_status(gate_count: int, completion_count: int) -> str:
    """How the attempts before this one ended. ``gate_count``: the number of this call."""
    if gate_count <= 1:
        return "none"
    return "completed" if completion_count else "gated_not_completed"


def recorded_output(work: Work) -> dict[str, Any] | None:
    """The outputs of a completion; None: there are none, or they were pruned."""
    result = work.result or {}
    return None if result.get("pruned") else result.get("outputs")


def retry_context(
    gate: Gate, last_decision: Decision, prior_output: dict[str, Any] | None = None, *, counted: bool = True
) -> dict[str, Any]:
    """For the last counted gate call. ``last_decision``: that of the call before, or of the first call itself.

    ``counted``: False for a call that was not counted, which sees the attempts before it.
    """
    status = prior_completion_status(gate.gate_count + (not counted), gate.completion_count)
    return _document(
        gate.gate_count,
        gate.completion_count,
        status,
        prior_output,
        gate.completed_at,
        gate.first_at,
        gate.last_at,
        last_decision,
        gate.idempotency_key,
    )


def retry_context_of_dispatch(work: Work) -> dict[str, Any]:
    """For the attempt that is being sent. Completed work is not sent again, so there is no earlier completion."""
    status = prior_completion_status(work.attempt, 0)
    first_at, last_at = work.first_sent_at or 0, work.sent_at or 0
    return _document(work.attempt, 0, status, None, None, first_at, last_at, Decision.ALLOW, work.idempotency_key)


def _document(
    gate_count: int,
    completion_count: int,
    status: str,
    prior_output: dict[str, Any] | None,
    completed_at: int | None,
    first_at: int,
    last_at: int,
    last_decision: Decision,
    idempotency_key: str,
) -> dict[str, Any]:
    completed = status == "completed"
    return {
        "gate_count": gate_count,
        "completion_count": completion_count,
        "prior_completion_status": status,
        "prior_output_available": completed,
        "prior_output": prior_output if completed else None,
        "prior_completion_at": optional_rfc3339(completed_at),
        "first_attempt_at": rfc3339(first_at),
        "last_attempt_at": rfc3339(last_at),
        "last_decision": last_decision,
        "idempotency_key": idempotency_key,
    }


def attempt_of(gate: Gate | None, key: str, now: int) -> Attempt:
    """The attempt as policies see it: this call is counted, but not decided yet."""
    if gate is None:
        return Attempt(1, 0, "none", False, "", 0.0, key)
    status = prior_completion_status(gate.gate_count + 1, gate.completion_count)
    return Attempt(
        gate_count=gate.gate_count + 1,
        completion_count=gate.completion_count,
        prior_completion_status=status,
        prior_output_available=status == "completed",
        last_decision=gate.decision.value,
        first_attempt_age_seconds=(now - gate.first_at) / 1000,
        idempotency_key=gate.idempotency_key,
    )
