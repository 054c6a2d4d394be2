"""The plan of every workflow: it has no steps, because the agent decides which step comes next."""

from __future__ import annotations

from counterfoil.domain.flows.planning import Plan
from counterfoil.domain.records import COOPERATIVE


class _CooperativePlan(Plan):
    plan_id = COOPERATIVE
    is_cooperative = True


COOPERATIVE_PLAN = _CooperativePlan([], [], {}, {}, {}, {})
"""The plan of workflows: it has no steps until the agent calls the gate for one."""
