"""``/api/v1/steps``: the registered steps."""

from __future__ import annotations

import asyncio
import re

from aiohttp import web

from counterfoil.domain.errors import (
    InvalidStep,
    PayloadTooLarge,
    UnknownStep,
    UnsafeOnceRequiresControl,
    UnsupportedMediaType,
)
from counterfoil.domain.steps.definitions import STEP_ID_PATTERN, StepDefinition
from counterfoil.domain.urls import MASKED_FAULT
from counterfoil.server.answers import empty_response, json_response
from counterfoil.server.auth import ADMINS
from counterfoil.server.requests import read_json, validate
from counterfoil.server.routes import EngineFacade, Route, SuccessAnswer
from counterfoil.wire.steps import StepDocument, StepPut, StepsPage

_STEP_ID = re.compile(STEP_ID_PATTERN)

EXAMPLE = {
    "kind": "async",
    "endpoint": "http://127.0.0.1:9000/transcribe",
    "attributes": {
        "audio_url": {"role": "required", "type": "string"},
        "language": {"role": "optional", "type": "string", "default": "en"},
        "text": {"role": "output", "type": "string"},
    },
    "work": {"max_retries": 5, "ack_timeout_ms": 30000, "deadline_ms": 3600000},
}


def step_routes(engine: EngineFacade) -> list[Route]:
    async def put_step(request: web.Request) -> web.Response:
        step_id = request.match_info["step_id"]
        if not _STEP_ID.fullmatch(step_id):
            fault = "must be 1 to 128 letters, digits, or . _ ~ : - and begin with a letter or digit"
            raise InvalidStep("the step id is not valid", errors=[{"place": "step_id", "message": fault}])
        body = await read_json(request, request.client_max_size, InvalidStep)
        # Schemas are compiled: a moment for one, and a request may bring many.
        definition = await asyncio.to_thread(validate, StepDefinition, body, InvalidStep)
        if masked := definition.masked_urls():
            raise InvalidStep(errors=[{"place": place, "message": MASKED_FAULT} for place in masked])
        document, created = await engine.steps.put(step_id, definition)
        return json_response(document, 201 if created else 200)

    async def get_step(request: web.Request) -> web.Response:
        return json_response(await engine.queries.step(_known(request)))

    async def delete_step(request: web.Request) -> web.Response:
        await engine.steps.delete(_known(request))
        return empty_response()

    async def list_steps(request: web.Request) -> web.Response:  # noqa: ARG001
        return json_response({"steps": await engine.queries.steps()})

    return [
        Route(
            method="GET",
            path="/api/v1/steps",
            handler=list_steps,
            tag="steps",
            summary="List the registered steps",
            description="All steps, ordered by id, each with the engine's defaults filled in. The list has no pages.",
            answers={200: SuccessAnswer(description="all steps", model=StepsPage)},
        ),
        Route(
            method="PUT",
            path="/api/v1/steps/{step_id}",
            handler=put_step,
            tag="steps",
            summary="Register or change a step",
            description="Fields of `work` that are left out are inherited from the engine's defaults. Running "
            "flows keep the definition that they were started with. Passwords in URLs are used and never shown: an "
            "answer has `http://user:***@host/`, which is refused when it is put back.",
            request=StepDefinition,
            example=EXAMPLE,
            answers={
                200: SuccessAnswer(description="changed, or the same as before", model=StepPut),
                201: SuccessAnswer(description="new", model=StepPut),
            },
            errors=(InvalidStep, UnsafeOnceRequiresControl, UnsupportedMediaType, PayloadTooLarge),
            roles=ADMINS,
        ),
        Route(
            method="GET",
            path="/api/v1/steps/{step_id}",
            handler=get_step,
            tag="steps",
            summary="Show a step",
            description="The current definition, with the engine's defaults filled in. Passwords in its URLs are "
            "masked. Running flows may use an older definition; `version` of a step in a flow says which.",
            answers={200: SuccessAnswer(description="the step", model=StepDocument)},
            errors=(UnknownStep,),
        ),
        Route(
            method="DELETE",
            path="/api/v1/steps/{step_id}",
            handler=delete_step,
            tag="steps",
            summary="Remove a step",
            description="Running flows are not affected; no new flow can use the step.",
            answers={204: SuccessAnswer(description="removed")},
            errors=(UnknownStep,),
            roles=ADMINS,
        ),
    ]


def _known(request: web.Request) -> str:
    """The step id of the path; one that no step can have is not worth a query."""
    step_id = request.match_info["step_id"]
    if not _STEP_ID.fullmatch(step_id):
        raise UnknownStep
    return step_id
