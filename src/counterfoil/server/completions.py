"""Completions between the webhook's route and the fast path: what both take and answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from aiohttp import web

from counterfoil.domain.callbacks.inbox import IGNORED, CallbackKind
from counterfoil.domain.errors import CounterfoilError, InvalidResult
from counterfoil.domain.hooks.delivering import Delivered
from counterfoil.domain.work.decisions import Verdict
from counterfoil.domain.work.results import StepResult
from counterfoil.engine import Engine
from counterfoil.engine.callbacks.recorder import Arrival, CallbackRecorder
from counterfoil.engine.work.complete import Completion, HeartbeatAnswer
from counterfoil.server.problems import status_of
from counterfoil.server.requests import parse_body, validate

Resolve = Callable[[Completion | CounterfoilError], None]
Headers = Callable[[], Mapping[str, str]]


class CompletionIntake(Protocol):
    """Takes completions from the fast path, in two steps: the receipt is known before the body has arrived."""

    @property
    def max_body_bytes(self) -> int: ...

    def work_id_of(self, flow_id: bytes, step_id: bytes, token: bytes) -> str | None:
        """The work item of a valid receipt; None: the request must take the ordinary path.

        A valid receipt has ids of plain characters: the fast path does not check them.
        """
        ...

    def take(self, work_id: str, headers: Headers, body: bytes, resolve: Resolve) -> bool:
        """Submit a completion if nothing can refuse it before the commit; ``resolve`` is called after the commit.

        False: nothing was submitted, the request must take the ordinary path. ``headers`` is called if they are needed.
        """
        ...

    @property
    def notes_accepted(self) -> bool:
        """Whether ``note`` is to be called for accepted completions, too."""
        ...

    def note(
        self, answer: Completion | CounterfoilError, work_id: str, headers: Headers, body: bytes, source: str | None
    ) -> None:
        """A completion that was taken was answered like this."""
        ...


BODILESS = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.RESET_CONTENT})
"""Statuses whose answers have no body, by HTTP."""


def has_body(status: int) -> bool:
    return status not in BODILESS


def result_of(body: bytes) -> StepResult | InvalidResult:
    """The report in a body, or why it is none: a step with ``accept`` may read it all the same."""
    try:
        return validate(StepResult, parse_body(body, InvalidResult), InvalidResult)
    except InvalidResult as error:
        return error


@dataclass(slots=True)
class ReceivedCallback:
    """A request as far as it was read: what the inbox is told of it, wherever it ends."""

    request: web.Request
    work_id: str | None = None
    flow_id: str | None = None
    step_id: str | None = None
    body: bytes | None = None

    def arrival(self) -> Arrival:
        request = self.request
        return Arrival(
            work_id=self.work_id,
            flow_id=self.flow_id,
            step_id=self.step_id,
            body=self.body,
            announced=request.content_length,
            source=request.remote,
            headers=request.headers,
        )


class CallbackNotes:
    """Tells the inbox of callbacks and how each was answered; of accepted ones only if it keeps their bodies."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def notes_accepted(self) -> bool:
        return self._recorder.keeps_accepted

    @property
    def _recorder(self) -> CallbackRecorder:
        return self._engine.callbacks.recorder

    def refused(self, kind: CallbackKind, error: CounterfoilError, arrival: Arrival) -> None:
        self._recorder.note(kind, error.code, status_of(type(error)), arrival)

    def completed(self, answer: Completion | CounterfoilError, arrival: Arrival) -> None:
        if isinstance(answer, CounterfoilError):
            self.refused(CallbackKind.COMPLETION, answer, arrival)
        elif answer.verdict is not Verdict.ACCEPTED:
            self._recorder.note(CallbackKind.COMPLETION, answer.verdict.value, answer.http_status, arrival)
        elif self.notes_accepted:
            verdict = answer.verdict.value
            self._recorder.note(CallbackKind.COMPLETION, verdict, answer.http_status, arrival, answer.recorded_at)

    def delivered(self, answer: Delivered, arrival: Arrival) -> None:
        """A payload was delivered to a hook, is a duplicate, or was ignored."""
        if answer.ignored or answer.duplicate:
            verdict = Verdict.IGNORED if answer.ignored else Verdict.DUPLICATE
            self._recorder.note(CallbackKind.HOOK, verdict.value, answer.http_status, arrival)
        elif self.notes_accepted:
            verdict = Verdict.ACCEPTED
            self._recorder.note(CallbackKind.HOOK, verdict.value, answer.http_status, arrival, answer.received_at)

    def beaten(self, answer: HeartbeatAnswer, arrival: Arrival) -> None:
        """A heartbeat for work that was cancelled is answered and changes nothing."""
        if answer.cancel_requested:
            self._recorder.note(CallbackKind.HEARTBEAT, IGNORED, 200, arrival)
        elif self.notes_accepted and answer.journaled_at is not None:
            self._recorder.note(CallbackKind.HEARTBEAT, Verdict.ACCEPTED.value, 200, arrival, answer.journaled_at)


def completion_text(completion: Completion, flow_id: str, step_id: str) -> str:
    """The body of the 200, in ASCII. Only a challenge needs escaping: ids and words are of patterns without quotes."""
    recorded_at = completion.recorded_text
    if completion.challenge is not None:
        recorded_at += f',"challenge":{json.dumps(completion.challenge)}'
    return (
        f'{{"verdict":"{completion.verdict._value_}","status":"{completion.status._value_}","flow_id":"{flow_id}",'
        f'"step_id":"{step_id}","recorded_at":{recorded_at}}}'
    )
