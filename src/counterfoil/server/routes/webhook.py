"""``/webhook``: where workers report. The receipt is the credential, so no API key is needed.

This is the hot path: a handler does no more than read, validate, submit and answer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import wraps

from aiohttp import web
from pydantic import ValidationError

from counterfoil.domain.callbacks.inbox import CallbackKind
from counterfoil.domain.errors import (
    AlreadyFailed,
    AlreadySucceeded,
    BadRequest,
    ConflictingResult,
    CounterfoilError,
    InvalidPayload,
    InvalidResult,
    InvalidSignature,
    PayloadTooLarge,
    UndecodableResult,
    UnknownReceipt,
    UnsupportedMediaType,
    WorkCancelled,
    WorkNotActive,
)
from counterfoil.domain.jsontext import is_ordinary
from counterfoil.domain.time import optional_rfc3339
from counterfoil.domain.work.decisions import Verdict
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.engine.callbacks.recorder import Arrival
from counterfoil.engine.work.complete import Completion, HeartbeatAnswer
from counterfoil.server.answers import empty_response, json_answer, json_response
from counterfoil.server.completions import (
    CallbackNotes,
    Headers,
    ReceivedCallback,
    Resolve,
    completion_text,
    has_body,
    result_of,
)
from counterfoil.server.requests import parse_body, read_body, require_json, validate
from counterfoil.server.routes import EngineFacade, Handler, HeaderParameter, Route, SuccessAnswer
from counterfoil.server.throttle import ReceiptPace
from counterfoil.wire.work import HeartbeatTaken, ReceiptState, ReportTaken

RECEIPT_HEADER = "Counterfoil-Receipt"
RECEIPT_PATH = "/webhook/{flow_id}/{step_id}/{receipt_token}"

_REFUSALS = (
    AlreadySucceeded,
    AlreadyFailed,
    ConflictingResult,
    WorkCancelled,
    WorkNotActive,
    UnknownReceipt,
    InvalidResult,
    UnsupportedMediaType,
    PayloadTooLarge,
)
_ACCEPTED = Verdict.ACCEPTED
_EXAMPLE = {"success": True, "outputs": {"text": "hello"}}


async def _read_report(request: web.Request) -> bytes:
    """The body of a report. One that cannot be decoded is an invalid result: a 400 would make the worker give up."""
    try:
        return await read_body(request, request.client_max_size)
    except BadRequest as error:
        raise UndecodableResult(errors=[{"place": "body", "message": error.message}]) from None


class WebhookIntake:
    """Takes completions from the fast path if nothing can refuse them before the commit."""

    def __init__(self, engine: EngineFacade, max_body_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self._context = engine.context
        self._reports = engine.reports
        self._requests = engine.metrics.completion_requests
        self._notes = CallbackNotes(engine)
        self.notes_accepted = self._notes.notes_accepted
        self._work_id_of = engine.context.receipts.work_id_of_bytes
        self._read = StepResult.__pydantic_validator__.validate_json  # what ``model_validate_json`` calls

    def work_id_of(self, flow_id: bytes, step_id: bytes, token: bytes) -> str | None:
        """The work item of a valid receipt; None also while the engine stops."""
        return self._work_id_of(flow_id, step_id, token) if self._context.accepting else None

    def take(self, work_id: str, headers: Headers, body: bytes, resolve: Resolve) -> bool:
        """Validate and submit a completion; False: the ordinary route finds out what is wrong with it."""
        if len(body) > self.max_body_bytes or not self._context.accepting or not is_ordinary(body):
            return False
        try:
            result = self._read(body)
        except ValidationError:
            return False
        reports = self._reports
        taken = reports.take_completion(
            work_id,
            result,
            lambda now: reports.verify(headers(), body, now),
            resolve,
            lambda accept, now: reports.read(accept, headers(), body, now),
        )
        if taken:
            self._requests["fast"] += 1
        return taken

    def note(
        self, answer: Completion | CounterfoilError, work_id: str, headers: Headers, body: bytes, source: str | None
    ) -> None:
        """Tell the inbox of a completion that was taken."""
        self._notes.completed(answer, Arrival(work_id=work_id, body=body, source=source, headers=headers()))


def webhook_routes(engine: EngineFacade) -> list[Route]:
    pace = ReceiptPace()
    return [
        replace(route, handler=_paced(route.handler, pace))
        for route in (*_completion_routes(engine), *_receipt_routes(engine))
    ]


def _paced(handler: Handler, pace: ReceiptPace) -> Handler:
    """The same handler; in a flood of unknown receipts, each of them is answered late."""

    @wraps(handler)
    async def paced_handler(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except UnknownReceipt:
            await pace.turn()
            raise

    return paced_handler


def _completion_routes(engine: EngineFacade) -> list[Route]:
    notes = CallbackNotes(engine)

    async def complete(request: web.Request, flow_id: str, step_id: str, token: str) -> web.Response:
        engine.metrics.completion_requests["ordinary"] += 1
        received = ReceivedCallback(request)
        try:
            completion = await decide(received, flow_id, step_id, token)
        except CounterfoilError as error:
            notes.completed(error, received.arrival())
            raise
        if notes.notes_accepted or completion.verdict is not _ACCEPTED:
            notes.completed(completion, received.arrival())
        if not has_body(completion.http_status):
            return empty_response(completion.http_status)
        return json_answer(completion_text(completion, flow_id, step_id).encode(), completion.http_status)

    async def decide(received: ReceivedCallback, flow_id: str, step_id: str, token: str) -> Completion:
        request = received.request
        try:
            received.work_id = work_id = engine.reports.work_of(flow_id, step_id, token)
            require_json(request)
            received.body = body = await _read_report(request)
        except CounterfoilError as error:
            engine.metrics.completed(error.code)
            raise
        return await engine.reports.complete(
            work_id,
            result_of(body),
            lambda now: engine.reports.verify(request.headers, body, now),
            lambda accept, now: engine.reports.read(accept, request.headers, body, now),
        )

    async def complete_work(request: web.Request) -> web.Response:
        match = request.match_info
        return await complete(request, match["flow_id"], match["step_id"], match["receipt_token"])

    async def complete_work_by_header(request: web.Request) -> web.Response:
        match = request.match_info
        token = request.headers.get(RECEIPT_HEADER, "")
        return await complete(request, match["flow_id"], match["step_id"], token)

    accepted = {200: SuccessAnswer(description="recorded, or without effect: see `verdict`", model=ReportTaken)}
    for_vendors = SuccessAnswer(description="the same, with the status that `accept.answer` sets", model=ReportTaken)
    return [
        Route(
            method="POST",
            path=RECEIPT_PATH,
            handler=complete_work,
            tag="webhook",
            summary="Report the result of a work item",
            description="The first outcome wins and is final. The code of a 400 says why a report was refused.",
            request=StepResult,
            example=_EXAMPLE,
            answers=accepted,
            other_success=for_vendors,
            errors=(*_REFUSALS, InvalidPayload, InvalidSignature),
            roles=None,
            bare=True,
        ),
        Route(
            method="POST",
            path="/webhook/{flow_id}/{step_id}",
            handler=complete_work_by_header,
            tag="webhook",
            summary="Report a result with the receipt in a header",
            description="The same as the report with the receipt in the path, for networks whose proxies log URLs. "
            "The header `Counterfoil-Receipt` carries the receipt token.",
            request=StepResult,
            example=_EXAMPLE,
            answers=accepted,
            other_success=for_vendors,
            errors=(*_REFUSALS, InvalidPayload, InvalidSignature),
            headers=(HeaderParameter(name=RECEIPT_HEADER, description="the receipt token"),),
            roles=None,
            bare=True,
        ),
    ]


def _receipt_routes(engine: EngineFacade) -> list[Route]:
    notes = CallbackNotes(engine)

    async def beat(received: ReceivedCallback) -> HeartbeatAnswer:
        request, body = received.request, b""
        match = request.match_info
        received.work_id = work_id = engine.reports.work_of(match["flow_id"], match["step_id"], match["receipt_token"])
        if request.body_exists:
            received.body = body = await _read_report(request)
            if body:
                require_json(request)
        heartbeat = validate(Heartbeat, parse_body(body, InvalidResult), InvalidResult) if body else Heartbeat()
        return await engine.reports.heartbeat(
            work_id, heartbeat, lambda now: engine.reports.verify(request.headers, body, now)
        )

    async def beat_work(request: web.Request) -> web.Response:
        received = ReceivedCallback(request)
        try:
            answer = await beat(received)
        except CounterfoilError as error:
            notes.refused(CallbackKind.HEARTBEAT, error, received.arrival())
            raise
        notes.beaten(answer, received.arrival())
        return json_response(
            {"deadline_at": optional_rfc3339(answer.deadline_at), "cancel_requested": answer.cancel_requested}
        )

    async def get_receipt(request: web.Request) -> web.Response:
        match = request.match_info
        work_id = engine.reports.work_of(match["flow_id"], match["step_id"], match["receipt_token"])
        return json_response(await engine.queries.receipt(work_id))

    return [
        Route(
            method="GET",
            path=RECEIPT_PATH,
            handler=get_receipt,
            tag="webhook",
            summary="Show the state of a work item",
            description="The holder of a receipt can see whether its report was recorded and whether the work was "
            "cancelled. The request changes nothing; it does not extend the deadline.",
            answers={200: SuccessAnswer(description="its state", model=ReceiptState)},
            errors=(UnknownReceipt,),
            roles=None,
            bare=True,
        ),
        Route(
            method="POST",
            path=f"{RECEIPT_PATH}/heartbeat",
            handler=beat_work,
            tag="webhook",
            summary="Send a heartbeat",
            description="Extends the callback deadline; the answer says whether the work was cancelled.",
            request=Heartbeat,
            request_optional=True,
            example={"progress": 0.4, "message": "rendering"},
            answers={
                200: SuccessAnswer(
                    description="the deadline for the next heartbeat or the result", model=HeartbeatTaken
                )
            },
            errors=(*_REFUSALS, InvalidSignature),
            roles=None,
            bare=True,
        ),
    ]
