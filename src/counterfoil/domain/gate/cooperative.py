"""The plan of every workflow: nothing is planned, its agent says what comes next."""

from __future__ import annotations

from counterfoil.domain.flows.planning import Plan
from counterfoil.domain.records import COOPERATIVE


class _CooperativePlan(Plan):
    plan_id = COOPERATIVE
    is_cooperative = True


COOPERATIVE_PLAN = _CooperativePlan([], [], {}, {}, {}, {})
"""Of workflows: no step, until the agent asks for it."""
