"""Admission: whether a start with a run key makes a flow, or is answered with the flow that owns the key.

Decided in the transaction of the start, under the lock of the key: of any number of simultaneous starts one is
admitted, and each of the others sees the flow that was.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from counterfoil.domain.errors import RunKeyConflict, RunKeyReused
from counterfoil.domain.flows.ending import end_early
from counterfoil.domain.flows.settle import settle
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.records import Flow, KeyedFlow
from counterfoil.domain.runs.ownership import RunOwner, claim_key, find_owner
from counterfoil.domain.runs.requests import OnConflict, SeenOwner
from counterfoil.domain.states import FINAL_FLOWS, FlowStatus


class RunVerdict(Enum):
    """What a start does when another flow owns its key."""

    ADMIT = auto()
    """Start: the owner has ended, and the caller does not want its result."""
    SUPERSEDE = auto()
    """Cancel the owner and start."""
    REUSE = auto()
    """Answer with the owner."""
    SIGNAL = auto()
    """Deliver the signal to the owner, and answer with the owner."""
    CONFLICT = auto()
    MISMATCH = auto()
    """The key was used for other goals or another init."""


def judge(on_conflict: OnConflict, owner: FlowStatus, *, same_start: bool) -> RunVerdict:
    """The answer to a start while a flow in this state owns the key, or has ended and is retained.

    A compensating owner is not superseded: cancelling it would leave its effects half undone.
    """
    ended = owner in FINAL_FLOWS
    if on_conflict == "supersede":
        if owner is FlowStatus.COMPENSATING:
            return RunVerdict.CONFLICT
        return RunVerdict.ADMIT if ended else RunVerdict.SUPERSEDE
    if not same_start:
        return RunVerdict.MISMATCH
    if ended or on_conflict == "adopt":
        return RunVerdict.REUSE
    return RunVerdict.SIGNAL if on_conflict == "signal" else RunVerdict.CONFLICT


@dataclass(frozen=True)
class RunClaim:
    """A start that asks for a run key."""

    flow: KeyedFlow
    on_conflict: OnConflict
    seen: SeenOwner | None = None


@dataclass(frozen=True)
class Admission:
    """What was decided. ``owner``: the flow that is the answer; None: the start is admitted, and has the key."""

    owner: Flow | None = None
    signal: bool = False
    """Whether the signal of the start goes to the owner."""
    superseded: str | None = None
    """The flow that was cancelled for this one."""


def admit(view: FlowView, wanted: RunClaim, now: int) -> Admission:
    """Decide about a start, and cancel the owner where that is decided; raises RunKeyConflict or RunKeyReused.

    What raises has changed nothing.
    """
    owner = find_owner(view, wanted.flow.run_key, now)
    if owner is None:
        claim_key(view, wanted.flow)
        return Admission()
    flow = owner.flow
    if wanted.seen is not None and not _is_as_seen(view, flow, wanted.seen):
        message = "the owner of this run key has changed since the caller saw it"
        raise RunKeyConflict(message, flow_id=flow.flow_id, status=flow.status, owner_changed=True)
    verdict = judge(wanted.on_conflict, flow.status, same_start=owner.digest == wanted.flow.digest)
    if verdict in _REFUSED:
        raise _refusal(verdict, owner)
    if verdict in (RunVerdict.REUSE, RunVerdict.SIGNAL):
        return Admission(flow, signal=verdict is RunVerdict.SIGNAL)
    superseded = None
    if verdict is RunVerdict.SUPERSEDE:
        superseded = flow.flow_id
        reason = "the flow was superseded by a newer one with the same run key"
        by = wanted.flow.flow_id
        end_early(view, superseded, now, "cancelled", reason, flow.error, compensate=False, superseded_by=by)
        settle(view, superseded, now)
    claim_key(view, wanted.flow)
    return Admission(superseded=superseded)


_REFUSED = (RunVerdict.CONFLICT, RunVerdict.MISMATCH)


def _refusal(verdict: RunVerdict, owner: RunOwner) -> RunKeyConflict | RunKeyReused:
    details = {"flow_id": owner.flow.flow_id, "status": owner.flow.status}
    if verdict is RunVerdict.MISMATCH:
        return RunKeyReused(**details)
    if owner.flow.status is FlowStatus.COMPENSATING:
        return RunKeyConflict("the owner of this run key is compensating, and holds the key until it ends", **details)
    return RunKeyConflict(**details)


def _is_as_seen(view: FlowView, owner: Flow, seen: SeenOwner) -> bool:
    if owner.flow_id != seen.flow_id or seen.status not in (None, owner.status):
        return False
    if not seen.steps:
        return True
    steps = {step.step_id: step.status for step in view.steps_of(owner.flow_id)}
    return all(steps.get(step_id) is status for step_id, status in seen.steps.items())
