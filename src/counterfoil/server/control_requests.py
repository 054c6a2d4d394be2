"""Query parameters of workflows, approvals and policies, and the check of the length of idempotency keys."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeVar

from aiohttp import web
from pydantic import BaseModel, BeforeValidator, Field, model_validator

from counterfoil.domain.errors import BadRequest, InvalidInput
from counterfoil.domain.gate.requests import MOST_KEY_CHARACTERS
from counterfoil.domain.states import ApprovalStatus
from counterfoil.server.requests import (
    Cursor,
    LenientQuery,
    Limit,
    Offset,
    Query,
    label_text,
    parse_body,
    read_body,
    require_json,
    validate,
)

Model = TypeVar("Model", bound=BaseModel)


class WorkflowFilters(LenientQuery):
    status: Annotated[
        Literal["in_progress", "completed", "failed", "aborted"] | None, Field(description="only entries in this state")
    ] = None
    source: Annotated[str | None, Field(max_length=255, description="only workflows of this source")] = None
    trace_id: Annotated[str | None, Field(max_length=255, description="only workflows of this trace")] = None
    label: Annotated[
        tuple[str, str] | None,
        BeforeValidator(label_text),
        Field(description="only workflows with this label, as key:value", json_schema_extra={"type": "string"}),
    ] = None
    cursor: Cursor
    limit: Limit = 20
    offset: Offset = 0

    @model_validator(mode="after")
    def _begins_at_one_place(self) -> Self:
        if self.cursor is not None and self.offset:
            raise ValueError("offset: not together with cursor, which says where the page begins")
        return self


class GateQuery(LenientQuery):
    include_prior_output: Annotated[
        str | None, Field(max_length=16, description="`true`: the answer includes the output of an earlier attempt")
    ] = None


class ApprovalFilters(Query):
    status: Annotated[ApprovalStatus | None, Field(description="only entries in this state")] = None
    flow_id: Annotated[str | None, Field(max_length=200, description="only approvals of this flow or workflow")] = None
    cursor: Cursor
    limit: Limit = 100


class PendingPaging(LenientQuery):
    limit: Limit = 20
    offset: Offset = 0


class ControlPaging(Query):
    cursor: Cursor
    limit: Limit = 100


async def read_keyed(request: web.Request, model: type[Model], *, optional: bool = False) -> Model:
    """A body that may carry an ``idempotency_key``. One that is too long is 400 ``BAD_REQUEST``, not 422."""
    body = await read_body(request, request.client_max_size)
    if not body and optional:
        return model()
    require_json(request)
    value = parse_body(body, InvalidInput)
    key = value.get("idempotency_key") if isinstance(value, dict) else None
    if isinstance(key, str) and len(key) > MOST_KEY_CHARACTERS:
        raise BadRequest(
            f"idempotency_key has more than {MOST_KEY_CHARACTERS} characters",
            errors=[{"place": "idempotency_key", "message": f"must have {MOST_KEY_CHARACTERS} characters at most"}],
        )
    return validate(model, value, InvalidInput)
