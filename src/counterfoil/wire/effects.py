"""Unknown outcomes: the reconciliation queue, and how an item of it is settled."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from counterfoil.domain.effects.policies import Cause
from counterfoil.wire.schema import OneOf, Time, Values, described
from counterfoil.wire.work import WorkState

Hold = Annotated[str, OneOf(Literal["reconcile", "unsafe_once"])]


class LastProbe(TypedDict):
    """The last answer of the `status_url` of a step."""

    at: Time
    state: Annotated[str, OneOf(Literal["running", "done", "not_found", "unknown", "error"])]


class ReconciliationDocument(TypedDict):
    """A work item whose outcome is unknown, and that the engine never repeats by itself."""

    work_id: str
    flow_id: str
    step_id: str
    status: Annotated[WorkState, described("`not_completed`, or `cancelled` if its flow ended meanwhile")]
    hold: Hold
    cause: Annotated[str, OneOf(Cause)]
    attempt: int
    idempotency_key: str
    arguments: Values
    since: Time
    status_url: str | None
    last_probe: LastProbe | None
    next_probe_at: Time | None


class ReconciliationPage(TypedDict):
    reconciliations: list[ReconciliationDocument]
    next_cursor: str | None


class OutcomeSettled(TypedDict):
    """The outcome is settled."""

    work_id: str
    status: WorkState
    approval_id: NotRequired[
        Annotated[str, described("the approval that must be given before an `unsafe_once` item is sent again")]
    ]
