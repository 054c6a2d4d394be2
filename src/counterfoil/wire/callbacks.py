"""The callback inbox: requests to webhook, heartbeat and hook URLs, and how each was answered."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from counterfoil.wire.schema import OneOf, Time, described
from counterfoil.wire.work import WorkState


class CallbackDocument(TypedDict):
    """One request to a webhook, heartbeat or hook URL, and what it was answered. The token is never shown."""

    callback_id: str
    at: Time
    kind: Annotated[str, OneOf(Literal["completion", "heartbeat", "hook"])]
    verdict: Annotated[
        str, described("`accepted`, `duplicate`, `stale`, `ignored`, or the code of the error that refused it")
    ]
    status: Annotated[int, described("the HTTP status of the answer")]
    flow_id: Annotated[str | None, described("null: the receipt is unknown, or its flow is no longer kept")]
    step_id: str | None
    work_id: str | None
    attempt: Annotated[int | None, described("the attempt that the work item was in")]
    size: Annotated[int | None, described("bytes of the body; null: not known")]
    digest: Annotated[str | None, described("`sha256:` and the digest of the body in hex; null: not known")]
    source: Annotated[str | None, described("the address that the request came from; null: not known")]
    trace_id: Annotated[str | None, described("of its `traceparent` header")]
    body_kept: bool


class CallbackPage(TypedDict):
    callbacks: list[CallbackDocument]
    next_cursor: Annotated[
        str | None,
        described("null: this is the last page. A page with a cursor may be shorter than its limit, or empty"),
    ]


class CallbackDetail(CallbackDocument):
    """A callback with its body."""

    body: Annotated[str | None, described("the body, receipts redacted; null: it is not kept")]


class CallbackReplayed(TypedDict):
    """The answer to a replayed completion as the webhook gives it, or to a replayed payload as the hook gives it."""

    flow_id: str
    step_id: str
    verdict: NotRequired[Annotated[str, OneOf(Literal["accepted", "duplicate", "stale", "ignored"])]]
    status: NotRequired[WorkState]
    recorded_at: NotRequired[Time | None]
    delivered: NotRequired[bool]
    duplicate: NotRequired[bool]
    buffered: NotRequired[bool]
    ignored: NotRequired[bool]
