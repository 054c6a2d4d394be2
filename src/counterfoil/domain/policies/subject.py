"""The input of policies: a step that is about to run, and its earlier attempts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Attempt:
    """What policies see of an attempt: the seven retry fields, and what is known of its effect."""

    gate_count: int
    """Includes this call."""
    completion_count: int
    prior_completion_status: str
    """none, completed or gated_not_completed."""
    prior_output_available: bool
    last_decision: str
    """Empty on the first call. A plain ``str``, because the library for expressions accepts no subclass."""
    first_attempt_age_seconds: float
    idempotency_key: str
    effect: str = ""
    """The effect policy of a step that the engine dispatches; empty for a step that an agent runs."""
    prior_delivery: str = ""
    """What is known of the delivery of the attempt before this one; empty: there was none, or an agent made it."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A step to evaluate, built in the same way for gate calls of agents and for the engine's own dispatches.

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
