"""What the routes of workflows share: their paths, and the ids in them."""

from __future__ import annotations

import re

from aiohttp import web

from counterfoil.domain import errors
from counterfoil.domain.flows.requests import FLOW_ID_PATTERN
from counterfoil.domain.steps.definitions import STEP_ID_PATTERN

_WORKFLOW_ID = re.compile(FLOW_ID_PATTERN)
_STEP_ID = re.compile(STEP_ID_PATTERN)
PATH = "/api/v1/workflows/{workflow_id}"
STEP_PATH = f"{PATH}/steps/{{step_id}}"
BODY_ERRORS = (errors.InvalidInput, errors.BadRequest, errors.UnsupportedMediaType, errors.PayloadTooLarge)


def workflow_id_of(request: web.Request) -> str:
    """The workflow id of the path; an id that no workflow can have raises UnknownWorkflow without a query."""
    workflow_id = request.match_info["workflow_id"]
    if not _WORKFLOW_ID.fullmatch(workflow_id):
        raise errors.UnknownWorkflow
    return workflow_id


def step_id_of(request: web.Request, *, known: bool = False) -> str:
    """The step id of the path. ``known``: an id that no step can have raises UnknownStep, not InvalidInput."""
    step_id = request.match_info["step_id"]
    if not _STEP_ID.fullmatch(step_id):
        if known:
            raise errors.UnknownStep
        fault = "must be 1 to 128 letters, digits, or . _ ~ : - and begin with a letter or digit"
        raise errors.InvalidInput("the step id is not valid", errors=[{"place": "step_id", "message": fault}])
    return step_id
