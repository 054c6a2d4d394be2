"""Hooks: what a payload is answered with, and what a hook waits for. Never a payload, and never a made token."""

from __future__ import annotations

from typing import Annotated, NotRequired

from typing_extensions import TypedDict

from counterfoil.wire.schema import Time, described, keyword


class PayloadTaken(TypedDict):
    """A payload is recorded, now or before, or it is ignored as the step has it."""

    flow_id: str
    step_id: str
    delivered: bool
    duplicate: Annotated[bool, described("this delivery id was recorded before, and nothing has changed")]
    buffered: NotRequired[
        Annotated[bool, described("the hook step has not started yet; absent: the hook has the payload")]
    ]
    ignored: NotRequired[Annotated[bool, described("`accept.map.ignore` of the step holds: nothing is recorded")]]
    challenge: NotRequired[
        Annotated[str, described("what a vendor wants back that verifies the URL: see `accept.signature.challenge`")]
    ]


class HookDocument(TypedDict):
    """A hook and how far it is."""

    flow_id: str
    step_id: str
    status: Annotated[
        str,
        keyword(enum=["waiting", "expected"]),
        described("expected: its step has not started, and payloads are buffered"),
    ]
    received: int
    collect: int
    deadline_at: Time | None


class ListedHook(HookDocument):
    work_id: str
    item: Annotated[int, described("the index of the item, in a step that fans out")]
    token: Annotated[str | None, described("null: the engine made the token, which it shows nowhere")]
    registered_at: Time


class HooksPage(TypedDict):
    hooks: list[ListedHook]
    next_cursor: str | None


class HookOfWork(TypedDict):
    """What the hook of a work item waits for."""

    status: Annotated[
        str,
        keyword(enum=["queued", "waiting", "ended"]),
        described("queued: another hook owns the token"),
    ]
    token: Annotated[str | None, described("null: the engine made the token, which it shows nowhere")]
    received: int
    collect: int
