"""``.../checkpoints``: from which completed step the run of a workflow can continue."""

from __future__ import annotations

from aiohttp import web

from counterfoil.domain import errors
from counterfoil.domain.gate.requests import ResumeRun
from counterfoil.server.answers import json_response
from counterfoil.server.auth import OPERATORS, caller
from counterfoil.server.requests import MAX_SEQUENCE, read_optional_model
from counterfoil.server.routes import EngineFacade, Handler, Route, SuccessAnswer
from counterfoil.server.routes.gate.paths import BODY_ERRORS, PATH, workflow_id_of
from counterfoil.wire.gate.workflows import CheckpointResumed, CheckpointsPage

_RESUMED = (
    "The run continues with the step that follows the completed one, which is not run again. An aborted workflow is in "
    "progress again; steps that the abort cancelled are evaluated anew. Completed and failed workflows are final."
)


def checkpoint_routes(engine: EngineFacade) -> list[Route]:
    async def list_checkpoints(request: web.Request) -> web.Response:
        return json_response(await engine.control_queries.checkpoints(workflow_id_of(request)))

    async def resume_from_last_checkpoint(request: web.Request) -> web.Response:
        return await resume(request, None)

    async def resume_from_checkpoint(request: web.Request) -> web.Response:
        return await resume(request, _checkpoint_id(request))

    async def resume(request: web.Request, checkpoint_id: int | None) -> web.Response:
        await read_optional_model(request, ResumeRun, errors.InvalidInput)
        workflow_id = workflow_id_of(request)
        return json_response(await engine.workflows.resume_from(workflow_id, checkpoint_id, caller(request)))

    def route(path: str, handler: Handler, summary: str) -> Route:
        return Route(
            method="POST",
            path=f"{PATH}/checkpoints/{path}",
            handler=handler,
            tag="workflows",
            summary=summary,
            description=_RESUMED,
            request=ResumeRun,
            request_optional=True,
            answers={200: SuccessAnswer(description="where the run continues", model=CheckpointResumed)},
            errors=(
                errors.UnknownWorkflow,
                errors.UnknownCheckpoint,
                errors.NotResumable,
                errors.ApprovalPending,
                errors.StepRejected,
                *BODY_ERRORS,
            ),
            roles=OPERATORS,
        )

    return [
        Route(
            method="GET",
            path=f"{PATH}/checkpoints",
            handler=list_checkpoints,
            tag="workflows",
            summary="List the steps that a run can be resumed from",
            description="One entry for each gated step. `is_resumable`: the step is completed, its output is still "
            "recorded, and the workflow can continue.",
            answers={200: SuccessAnswer(description="in the order of the steps", model=CheckpointsPage)},
            errors=(errors.UnknownWorkflow,),
        ),
        route("resume", resume_from_last_checkpoint, "Resume a run from its last completed step"),
        route("{checkpoint_id}/resume", resume_from_checkpoint, "Resume a run from a completed step"),
    ]


def _checkpoint_id(request: web.Request) -> int:
    """The checkpoint id of the path; a text that is no id raises UnknownCheckpoint without a query."""
    text = request.match_info["checkpoint_id"]
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_SEQUENCE))):
        raise errors.UnknownCheckpoint
    return int(text)
