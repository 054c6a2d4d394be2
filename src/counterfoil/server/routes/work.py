"""``/api/v1/work``: work items over all flows, for those who look after them."""

from __future__ import annotations

import re

from aiohttp import web

from counterfoil.domain.errors import InvalidInput, UnknownWork
from counterfoil.server.answers import WorkDetail, WorkPage, json_response
from counterfoil.server.requests import WorkFilters, read_query
from counterfoil.server.routes import Answer, EngineFacade, Route

_WORK_ID = re.compile(r"[A-Za-z0-9._~:-]{1,200}")


def work_routes(engine: EngineFacade) -> list[Route]:
    async def list_work(request: web.Request) -> web.Response:
        wanted = read_query(request, WorkFilters)
        page = await engine.queries.work_items(
            status=wanted.status,
            step_id=wanted.step,
            overdue=wanted.overdue,
            cursor=wanted.cursor,
            limit=wanted.limit,
        )
        return json_response(page)

    async def get_work(request: web.Request) -> web.Response:
        work_id = request.match_info["work_id"]
        if not _WORK_ID.fullmatch(work_id):
            raise UnknownWork
        return json_response(await engine.queries.work_item(work_id))

    return [
        Route(
            method="GET",
            path="/api/v1/work",
            handler=list_work,
            tag="work",
            summary="List work items",
            query=WorkFilters,
            answers={200: Answer(description="one page", model=WorkPage)},
            errors=(InvalidInput,),
        ),
        Route(
            method="GET",
            path="/api/v1/work/{work_id}",
            handler=get_work,
            tag="work",
            summary="Show a work item with its attempts",
            answers={200: Answer(description="the work item", model=WorkDetail)},
            errors=(UnknownWork,),
        ),
    ]
