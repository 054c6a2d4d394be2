"""``/api/v1/approvals``: steps that wait for a human decision, of workflows and of flows that the engine drives."""

from __future__ import annotations

import re

from aiohttp import web

from counterfoil.domain.errors import (
    ApprovalExpired,
    InvalidInput,
    NotPending,
    PayloadTooLarge,
    SameReviewer,
    SelfApproval,
    UnknownApproval,
    UnsupportedMediaType,
)
from counterfoil.domain.gate.requests import Approve, Reject
from counterfoil.server.answers import json_response
from counterfoil.server.auth import REVIEWERS, caller
from counterfoil.server.control_requests import ApprovalFilters
from counterfoil.server.requests import read_optional_model, read_query
from counterfoil.server.routes import EngineFacade, Route, SuccessAnswer
from counterfoil.wire.approvals import ApprovalDocument, ApprovalsPage

_APPROVAL_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
REVIEW_ERRORS = (
    InvalidInput,
    NotPending,
    ApprovalExpired,
    SameReviewer,
    SelfApproval,
    UnsupportedMediaType,
    PayloadTooLarge,
)


def approval_routes(engine: EngineFacade) -> list[Route]:
    async def list_approvals(request: web.Request) -> web.Response:
        wanted = read_query(request, ApprovalFilters)
        page = await engine.control_queries.approvals(
            status=wanted.status, flow_id=wanted.flow_id, cursor=wanted.cursor, limit=wanted.limit
        )
        return json_response(page)

    async def get_approval(request: web.Request) -> web.Response:
        return json_response(await engine.control_queries.approval(_approval_id(request)))

    async def approve(request: web.Request) -> web.Response:
        said = await read_optional_model(request, Approve, InvalidInput)
        return json_response(
            await engine.approvals.review(_approval_id(request), caller(request), "approve", said.comment)
        )

    async def reject(request: web.Request) -> web.Response:
        said = await read_optional_model(request, Reject, InvalidInput)
        return json_response(
            await engine.approvals.review(_approval_id(request), caller(request), "reject", said.reason)
        )

    return [
        Route(
            method="GET",
            path="/api/v1/approvals",
            handler=list_approvals,
            tag="approvals",
            summary="List approvals, oldest first",
            description="One page of the approvals in all states, of workflows and of flows that the engine drives, "
            "each with the history of its work item. `status=pending` finds what waits for a decision.",
            query=ApprovalFilters,
            answers={200: SuccessAnswer(description="a page of approvals", model=ApprovalsPage)},
            errors=(InvalidInput,),
        ),
        Route(
            method="GET",
            path="/api/v1/approvals/{approval_id}",
            handler=get_approval,
            tag="approvals",
            summary="Show an approval with the history of its work item",
            description="What would be done, with which arguments, why an approval is required and when it expires; "
            "and every event of the work item so far.",
            answers={200: SuccessAnswer(description="the approval", model=ApprovalDocument)},
            errors=(UnknownApproval,),
        ),
        Route(
            method="POST",
            path="/api/v1/approvals/{approval_id}/approve",
            handler=approve,
            tag="approvals",
            summary="Approve",
            description="The API key identifies the reviewer. With the last approval that is needed the work item "
            "is dispatched, once.",
            request=Approve,
            request_optional=True,
            example={"comment": "checked with the customer"},
            answers={200: SuccessAnswer(description="the approval after the review", model=ApprovalDocument)},
            errors=(UnknownApproval, *REVIEW_ERRORS),
            roles=REVIEWERS,
        ),
        Route(
            method="POST",
            path="/api/v1/approvals/{approval_id}/reject",
            handler=reject,
            tag="approvals",
            summary="Reject",
            description="One rejection is enough. The step is blocked, other branches continue.",
            request=Reject,
            request_optional=True,
            example={"reason": "wrong account"},
            answers={200: SuccessAnswer(description="the approval after the review", model=ApprovalDocument)},
            errors=(UnknownApproval, *REVIEW_ERRORS),
            roles=REVIEWERS,
        ),
    ]


def _approval_id(request: web.Request) -> str:
    approval_id = request.match_info["approval_id"]
    if not _APPROVAL_ID.fullmatch(approval_id):
        raise UnknownApproval
    return approval_id
