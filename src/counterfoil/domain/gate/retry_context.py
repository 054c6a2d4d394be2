"""``retry_context``: which attempt this is, what became of those before, and whether their output can be had.

Ten fields, always all of them, on every answer of the gate.
"""

from __future__ import annotations

from typing import Any

from counterfoil.domain.policies.policy_set import Attempt
from counterfoil.domain.records import Gate, Work
from counterfoil.domain.states import Decision
from counterfoil.domain.time import optional_rfc3339, rfc3339


def prior_completion_status(gate_count: int, completion_count: int) -> str:
    """Of a call that is the ``gate_count``-th."""
    if gate_count <= 1:
        return "none"
    return "completed" if completion_count else "gated_not_completed"


def recorded_output(work: Work) -> dict[str, Any] | None:
    """What a completion gave; None: nothing, or it is no longer kept."""
    result = work.result or {}
    return None if result.get("pruned") else result.get("outputs")


def retry_context(
    gate: Gate, last_decision: Decision, prior_output: dict[str, Any] | None = None, *, counted: bool = True
) -> dict[str, Any]:
    """As the call shows it that the gate counted last. ``last_decision``: of the call before, or of the first itself.

    ``counted``: False for who was not counted, and sees the attempts before his own.
    """
    status = prior_completion_status(gate.gate_count + (not counted), gate.completion_count)
    return {
        "gate_count": gate.gate_count,
        "completion_count": gate.completion_count,
        "prior_completion_status": status,
        "prior_output_available": status == "completed",
        "prior_output": prior_output if status == "completed" else None,
        "prior_completion_at": optional_rfc3339(gate.completed_at),
        "first_attempt_at": rfc3339(gate.first_at),
        "last_attempt_at": rfc3339(gate.last_at),
        "last_decision": last_decision,
        "idempotency_key": gate.idempotency_key,
    }


def attempt_of(gate: Gate | None, key: str, now: int) -> Attempt:
    """The next call, as policies see it: this one included, before anything was decided."""
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
