"""``/webhook``: where workers report. The receipt is the credential, so no API key is needed.

This is the hot path: a handler does no more than read, validate, submit and answer.
"""

from __future__ import annotations

from aiohttp import web
from pydantic import ValidationError

from counterfoil.domain.errors import (
    AlreadyFailed,
    AlreadySucceeded,
    BadRequest,
    ConflictingResult,
    CounterfoilError,
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
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.server.answers import json_answer, json_response
from counterfoil.server.completions import Headers, Resolve, Take, completion_text
from counterfoil.server.requests import parse_body, read_body, require_json, validate
from counterfoil.server.routes import EngineFacade, HeaderParameter, Route, SuccessAnswer
from counterfoil.wire.work import HeartbeatTaken, ReceiptState, ReportTaken

RECEIPT_HEADER = "Counterfoil-Receipt"

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
_EXAMPLE = {"success": True, "outputs": {"text": "hello"}}


async def _read_report(request: web.Request) -> bytes:
    """The body of a report. One that cannot be decoded is an invalid result: a 400 would make the worker give up."""
    try:
        return await read_body(request, request.client_max_size)
    except BadRequest as error:
        raise UndecodableResult(errors=[{"place": "body", "message": error.message}]) from None


def express_completions(engine: EngineFacade, limit: int) -> Take:
    """Takes completions on the fast path if nothing can refuse them before the commit."""
    receipts = engine.context.receipts
    read = StepResult.__pydantic_validator__.validate_json  # what ``model_validate_json`` calls

    def take(flow_id: bytes, step_id: bytes, token: bytes, headers: Headers, body: bytes, resolve: Resolve) -> bool:
        work_id = receipts.work_id_of_bytes(flow_id, step_id, token)
        if work_id is None or len(body) > limit or not engine.accepting or not is_ordinary(body):
            return False
        try:
            result = read(body)
        except ValidationError:
            return False
        return engine.reports.take_completion(
            work_id, result, lambda now: engine.reports.verify(headers(), body, now), resolve
        )

    return take


def webhook_routes(engine: EngineFacade) -> list[Route]:
    async def complete(request: web.Request, flow_id: str, step_id: str, token: str) -> web.Response:
        try:
            work_id = engine.reports.work_of(flow_id, step_id, token)
            require_json(request)
            body = await _read_report(request)
            result = validate(StepResult, parse_body(body, InvalidResult), InvalidResult)
        except CounterfoilError as error:
            engine.metrics.completed(error.code)
            raise
        completion = await engine.reports.complete(
            work_id, result, lambda now: engine.reports.verify(request.headers, body, now)
        )
        return json_answer(completion_text(completion, flow_id, step_id).encode())

    async def complete_work(request: web.Request) -> web.Response:
        match = request.match_info
        return await complete(request, match["flow_id"], match["step_id"], match["receipt_token"])

    async def complete_work_by_header(request: web.Request) -> web.Response:
        match = request.match_info
        token = request.headers.get(RECEIPT_HEADER, "")
        return await complete(request, match["flow_id"], match["step_id"], token)

    async def beat_work(request: web.Request) -> web.Response:
        match = request.match_info
        work_id = engine.reports.work_of(match["flow_id"], match["step_id"], match["receipt_token"])
        body = b""
        if request.body_exists:
            body = await _read_report(request)
            if body:
                require_json(request)
        heartbeat = validate(Heartbeat, parse_body(body, InvalidResult), InvalidResult) if body else Heartbeat()
        answer = await engine.reports.heartbeat(
            work_id, heartbeat, lambda now: engine.reports.verify(request.headers, body, now)
        )
        return json_response(
            {"deadline_at": optional_rfc3339(answer.deadline_at), "cancel_requested": answer.cancel_requested}
        )

    async def get_receipt(request: web.Request) -> web.Response:
        match = request.match_info
        work_id = engine.reports.work_of(match["flow_id"], match["step_id"], match["receipt_token"])
        return json_response(await engine.queries.receipt(work_id))

    path = "/webhook/{flow_id}/{step_id}/{receipt_token}"
    accepted = {
        200: SuccessAnswer(description="recorded, or a repeat without effect: see `verdict`", model=ReportTaken)
    }
    return [
        Route(
            method="POST",
            path=path,
            handler=complete_work,
            tag="webhook",
            summary="Report the result of a work item",
            description="The first outcome wins and is final. The code of a 400 says why a report was refused.",
            request=StepResult,
            example=_EXAMPLE,
            answers=accepted,
            errors=(*_REFUSALS, InvalidSignature),
            roles=None,
            bare=True,
        ),
        Route(
            method="GET",
            path=path,
            handler=get_receipt,
            tag="webhook",
            summary="Show the state of a work item",
            answers={200: SuccessAnswer(description="its state", model=ReceiptState)},
            errors=(UnknownReceipt,),
            roles=None,
            bare=True,
        ),
        Route(
            method="POST",
            path="/webhook/{flow_id}/{step_id}",
            handler=complete_work_by_header,
            tag="webhook",
            summary="Report a result with the receipt in a header",
            request=StepResult,
            example=_EXAMPLE,
            answers=accepted,
            errors=(*_REFUSALS, InvalidSignature),
            headers=(HeaderParameter(name=RECEIPT_HEADER, description="the receipt token"),),
            roles=None,
            bare=True,
        ),
        Route(
            method="POST",
            path=f"{path}/heartbeat",
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
