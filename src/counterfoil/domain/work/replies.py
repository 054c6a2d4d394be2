"""Classifies the response of an endpoint: the table of the HTTP contract, as one pure function.

The transport tells what happened on the network (a ``Reply``), this module what it means for the work item.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pydantic import ValidationError

from counterfoil.domain.effects.policies import Cause
from counterfoil.domain.jsontext import JsonError, accept_json
from counterfoil.domain.work.results import StepResult

RETRIED_STATUSES = frozenset({408, 425, 429})
"""The 4xx statuses after which the attempt is retried."""
NOT_TAKEN_STATUSES = frozenset({425, 429, 503})
"""Statuses by which an endpoint says that it did not take the work. 408 and other 5xx may hide an effect."""


class SendOutcome(StrEnum):
    """What is known about a request: it was answered, was provably not delivered, or may have been delivered."""

    ANSWERED = "answered"
    NOT_DELIVERED = "not_delivered"
    UNKNOWN = "unknown"


class ReplyCode(StrEnum):
    """Why a dispatch ended without an acknowledgement or a result."""

    ENDPOINT_UNAVAILABLE = "ENDPOINT_UNAVAILABLE"
    ENDPOINT_REJECTED = "ENDPOINT_REJECTED"
    ENDPOINT_REDIRECT = "ENDPOINT_REDIRECT"
    INVALID_RESPONSE = "INVALID_RESPONSE"
    INVALID_ENDPOINT = "INVALID_ENDPOINT"
    EGRESS_DENIED = "EGRESS_DENIED"
    NOT_DELIVERED = "NOT_DELIVERED"
    NOT_SENT = "NOT_SENT"
    UNKNOWN_OUTCOME = "UNKNOWN_OUTCOME"


@dataclass(frozen=True, slots=True)
class Reply:
    """One exchange as the transport saw it. ``status`` is set exactly when ``delivery`` is answered.

    ``permanent``: it was not sent, and trying again cannot help (``denied``: because the egress rules forbid it).
    ``lack``: the resource that this machine lacked, so that it was not sent; that does not count as an attempt.
    ``error`` is for people; it repeats neither the URL nor anything that was sent or received.
    """

    delivery: SendOutcome
    status: int | None = None
    retry_after_ms: int | None = None
    body: bytes = b""
    truncated: bool = False
    error: str = ""
    denied: bool = False
    permanent: bool = False
    lack: str | None = None
    timed_out: bool = False
    """No complete answer arrived in time, as opposed to a connection that broke."""
    cause: Cause | None = None
    """Why the outcome is unknown, where that is not the network's doing."""


NOT_ALLOWED = "not sent: the attempt's deadline passed or this node's lease expired"
"""The error of a request that ``may_send`` forbids."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The endpoint accepted the work: its result comes by webhook. ``note``: what was unexpected in the response."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class Reported:
    """The response is a result: success, failure, or not completed."""

    result: StepResult


@dataclass(frozen=True, slots=True)
class AttemptNotCompleted:
    """The attempt is over without an outcome. Whether it may be made again is for the effect policy to say.

    ``cause``: why it may have had an effect all the same; None: it surely had none.
    """

    code: ReplyCode
    message: str
    delivery: SendOutcome
    retry_after_ms: int | None = None
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class NotSent:
    """The engine itself could not send the attempt: it was not made, and does not count."""

    code: ReplyCode
    message: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The response rules out that the work was or will be done."""

    code: ReplyCode
    message: str


Outcome = Acknowledged | Reported | AttemptNotCompleted | NotSent | Failed

_ACKNOWLEDGED = Acknowledged()
_SUCCEEDED = Reported(StepResult(success=True))


def classify(reply: Reply, kind: Literal["async", "sync"]) -> Outcome:
    """What the reply means for a work item of a step of this kind."""
    status = reply.status
    if reply.delivery is not SendOutcome.ANSWERED or status is None:
        return _unanswered(reply)
    if 200 <= status < 300:
        return _async_answer(reply) if kind == "async" else _sync_answer(reply)
    message = f"the endpoint answered {status}"
    if 500 <= status < 600 or status in RETRIED_STATUSES:
        cause = None if status in NOT_TAKEN_STATUSES else Cause.SERVER_ERROR
        code, answered = ReplyCode.ENDPOINT_UNAVAILABLE, SendOutcome.ANSWERED
        return AttemptNotCompleted(code, message, answered, reply.retry_after_ms, cause)
    if 300 <= status < 400:
        return Failed(ReplyCode.ENDPOINT_REDIRECT, f"{message}, and redirects are not followed")
    if 400 <= status < 500:
        return Failed(ReplyCode.ENDPOINT_REJECTED, message)
    return Failed(ReplyCode.INVALID_RESPONSE, f"{message}, which is not a final HTTP status")


def _unanswered(reply: Reply) -> Outcome:
    if reply.denied:
        return Failed(ReplyCode.EGRESS_DENIED, reply.error)
    if reply.permanent:
        return Failed(ReplyCode.INVALID_ENDPOINT, reply.error)
    if reply.lack is not None:
        return NotSent(ReplyCode.NOT_SENT, reply.error)
    if reply.delivery is SendOutcome.NOT_DELIVERED:
        return AttemptNotCompleted(ReplyCode.NOT_DELIVERED, reply.error, SendOutcome.NOT_DELIVERED)
    cause = reply.cause or (Cause.ACK_TIMEOUT if reply.timed_out else Cause.CONNECTION_LOST)
    return AttemptNotCompleted(ReplyCode.UNKNOWN_OUTCOME, reply.error, SendOutcome.UNKNOWN, cause=cause)


def _async_answer(reply: Reply) -> Outcome:
    """A success in the response is only an acknowledgement: the outcome of an async step comes by webhook."""
    if not reply.body or reply.body.isspace():
        return _ACKNOWLEDGED
    result = _step_result(reply)
    if isinstance(result, str):
        return Acknowledged(note=result)
    return _ACKNOWLEDGED if result.success else Reported(result)


def _sync_answer(reply: Reply) -> Outcome:
    if not reply.body or reply.body.isspace():
        return _SUCCEEDED
    result = _step_result(reply)
    if isinstance(result, str):
        return Failed(ReplyCode.INVALID_RESPONSE, result)
    return Reported(result)


def _step_result(reply: Reply) -> StepResult | str:
    """The result in the body, or what is wrong with it: the place and the rule, never the text itself."""
    if reply.truncated:
        return f"the response body is longer than {len(reply.body)} bytes"
    try:
        return StepResult.model_validate(accept_json(reply.body))
    except JsonError as error:
        return f"the response body is not JSON: {error}"
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return f"the response body is not a StepResult: {place}{': ' if place else ''}{first['msg']}"
