"""What policies are asked about: one step that somebody wants to take, and how often that was tried before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Attempt:
    """The seven retry fields, as policies see them."""

    gate_count: int
    """Projected: this call included."""
    completion_count: int
    prior_completion_status: str
    """none, completed or gated_not_completed."""
    prior_output_available: bool
    last_decision: str
    """Empty on the first call. A plain text: the library for expressions takes no other."""
    first_attempt_age_seconds: float
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Subject:
    """A step that is asked about. It is built alike for agents that ask the gate and for the engine's own dispatches.

    ``labels`` are those of the flow; ``step_input`` and the tool's input hold JSON values.
    """

    flow_id: str
    step_id: str
    step_type: str
    attempt: Attempt
    labels: Mapping[str, str]
    step_input: Mapping[str, Any]
    step_name: str = ""
    tool: Mapping[str, Any] | None = None
    """``name``, ``type`` and ``input``; None: the step calls no tool."""
    model: str | None = None
    provider: str | None = None
    cost_usd: float | None = None
