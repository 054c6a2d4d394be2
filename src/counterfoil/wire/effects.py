"""Unknown outcomes: the reconciliation queue, and how an item of it is settled. Effects of tools."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict

from counterfoil.domain.effects.reservations import AuditType, EffectClass
from counterfoil.wire.schema import OneOf, Time, Values, described
from counterfoil.wire.work import WorkState

Hold = Annotated[str, OneOf(Literal["reconcile", "unsafe_once", "irreversible"])]


class LastProbe(TypedDict):
    """The last answer of the `status_url` of a step."""

    at: Time
    state: Annotated[str, OneOf(Literal["running", "done", "not_found", "unknown", "error"])]


class ReconciliationDocument(TypedDict):
    """A work item whose outcome is unknown, and that the engine never repeats by itself.

    Or a lapsed reservation of an irreversible effect (`hold` is `irreversible`), which belongs to no flow: it has
    `tool`, `effect_key` and `holder`, and is settled through the effects API.
    """

    work_id: Annotated[str | None, described("null: a lapsed reservation")]
    flow_id: str | None
    step_id: str | None
    status: Annotated[
        WorkState, described("`not_completed`, or `cancelled` if its flow ended meanwhile; `pending`: a reservation")
    ]
    hold: Hold
    cause: Annotated[
        str,
        OneOf(
            Literal[
                "ack_timeout", "connection_lost", "deadline_passed", "node_lost", "server_error", "reservation_lapsed"
            ]
        ),
    ]
    attempt: Annotated[int, described("of a reservation: its fence")]
    idempotency_key: str
    arguments: Annotated[Values | None, described("null: the engine does not know those of a reserved effect")]
    since: Annotated[Time, described("of a reservation: when it lapsed")]
    status_url: str | None
    last_probe: LastProbe | None
    next_probe_at: Time | None
    tool: NotRequired[Annotated[str, described("only of a lapsed reservation, like the next two")]]
    effect_key: NotRequired[str]
    holder: NotRequired[str]


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


EffectStateName = Annotated[str, OneOf(Literal["pending", "complete-success", "complete-failed"])]
EffectError = Annotated[Values, described("of `complete-failed`: the error that its holder reported")]
EffectResult = Annotated[Any, described("of `complete-success`: the result that its holder reported")]


class EffectReserved(TypedDict):
    """A reservation (`pending`), or the recorded outcome of the effect."""

    tool: str
    key: str
    state: EffectStateName
    fence: Annotated[int, described("the number of the reservation; those of a key never go back")]
    holder: Annotated[str, described("the holder of the reservation, or the one that completed it")]
    expires_at: NotRequired[Annotated[Time, described("of `pending`: when the reservation lapses")]]
    recorded_at: NotRequired[Time]
    result: NotRequired[EffectResult]
    error: NotRequired[EffectError]


class EffectCompleted(TypedDict):
    """The outcome is recorded."""

    tool: str
    key: str
    state: EffectStateName
    fence: int
    recorded_at: Time
    duplicate: Annotated[bool, described("the same outcome was recorded before")]


class EffectSettled(TypedDict):
    """The reservation is settled; `free`: the key may be reserved again."""

    tool: str
    key: str
    state: Annotated[str, OneOf(Literal["complete-success", "complete-failed", "free"])]
    fence: int
    recorded_at: Time


class AuditEntry(TypedDict):
    """What happened to an effect. `effect_settled` also has the outcome, the operator (`by`) and the note."""

    at: Time
    type: Annotated[str, OneOf(AuditType)]
    holder: Annotated[str, described("of `dedup_hit`: the caller that was given the outcome")]
    outcome: NotRequired[Annotated[str, OneOf(Literal["applied", "not_applied", "failed"])]]
    by: NotRequired[str]
    note: NotRequired[str | None]


EffectSummary = TypedDict(
    "EffectSummary",
    {
        "tool": str,
        "key": str,
        "class": Annotated[str, OneOf(EffectClass)],
        "state": EffectStateName,
        "fence": int,
        "holder": str,
        "reserved_at": Time,
        "expires_at": Annotated[Time | None, described("of `pending`: when the reservation lapses, or has lapsed")],
        "lapsed": Annotated[bool, described("it is pending, and its time to live is over")],
        "window_seconds": Annotated[int | None, described("how long the outcome is kept; null: forever")],
        "arguments_digest": str | None,
        "recorded_at": Time | None,
        "forget_at": Time | None,
        "hits": Annotated[int, described("how often the outcome was given to a caller")],
        "result": NotRequired[EffectResult],
        "error": NotRequired[EffectError],
    },
)
"""An effect as a list shows it: without its audit. Not a class: `class` is no name of Python's."""


class EffectDetail(EffectSummary):
    """An effect with its audit: the first and the last entries, if there are many."""

    audit: list[AuditEntry]
    audit_omitted: Annotated[int, described("how many entries of the middle of the audit are not kept")]


class EffectPage(TypedDict):
    effects: list[EffectSummary]
    next_cursor: str | None
