"""``/api/v1/schedules``: flows that start by the calendar, or at an interval."""

from __future__ import annotations

import re

from aiohttp import web

from counterfoil.domain.errors import (
    InvalidInput,
    InvalidSchedule,
    PayloadTooLarge,
    PlanCycle,
    UnknownSchedule,
    UnknownStep,
    UnreachableGoal,
    UnsupportedMediaType,
)
from counterfoil.domain.schedules import SCHEDULE_ID_PATTERN, ScheduleDefinition
from counterfoil.server.answers import empty_response, json_response
from counterfoil.server.auth import ADMINS
from counterfoil.server.requests import SchedulesPaging, read_model, read_query
from counterfoil.server.routes import EngineFacade, Route, SuccessAnswer
from counterfoil.wire.schedules import ScheduleDocument, SchedulesPage

_SCHEDULE_ID = re.compile(SCHEDULE_ID_PATTERN)

EXAMPLE = {
    "cron": "0 6 * * MON-FRI",
    "timezone": "Europe/Vienna",
    "flow": {"goals": ["transcribe"], "init": {"audio_url": "https://example.com/news.mp3"}},
    "catch_up": "one",
    "enabled": True,
}


def schedule_routes(engine: EngineFacade) -> list[Route]:
    async def put_schedule(request: web.Request) -> web.Response:
        schedule_id = request.match_info["schedule_id"]
        if not _SCHEDULE_ID.fullmatch(schedule_id):
            fault = "must be 1 to 128 letters, digits, or . _ ~ : - and begin with a letter or digit"
            raise InvalidSchedule("the schedule id is not valid", errors=[{"place": "schedule_id", "message": fault}])
        definition = await read_model(request, ScheduleDefinition, InvalidSchedule)
        document, created = await engine.schedules.put(schedule_id, definition)
        return json_response(document, 201 if created else 200)

    async def get_schedule(request: web.Request) -> web.Response:
        return json_response(await engine.queries.schedule(_known(request)))

    async def delete_schedule(request: web.Request) -> web.Response:
        await engine.schedules.delete(_known(request))
        return empty_response()

    async def list_schedules(request: web.Request) -> web.Response:
        wanted = read_query(request, SchedulesPaging)
        return json_response(await engine.queries.schedules(cursor=wanted.cursor, limit=wanted.limit))

    return [
        Route(
            method="GET",
            path="/api/v1/schedules",
            handler=list_schedules,
            tag="schedules",
            summary="List the schedules, by id",
            description="One page, with the next ticks and the last tick of each schedule; `next_cursor` leads to the "
            "next page.",
            query=SchedulesPaging,
            answers={200: SuccessAnswer(description="a page of schedules", model=SchedulesPage)},
            errors=(InvalidInput,),
        ),
        Route(
            method="PUT",
            path="/api/v1/schedules/{schedule_id}",
            handler=put_schedule,
            tag="schedules",
            summary="Create, change, pause or resume a schedule",
            description="Each tick starts a flow of its own, whose metadata has `schedule_id` and `scheduled_at`. "
            "Ticks during a pause, or before a change of the times, are not caught up. "
            "A flow that could not be started now is refused as `POST /api/v1/flows` would refuse it, except where an "
            "existing schedule is only paused.",
            request=ScheduleDefinition,
            example=EXAMPLE,
            answers={
                200: SuccessAnswer(description="changed, or the same as before", model=ScheduleDocument),
                201: SuccessAnswer(description="new", model=ScheduleDocument),
            },
            errors=(
                InvalidSchedule,
                InvalidInput,
                UnreachableGoal,
                PlanCycle,
                UnknownStep,
                UnsupportedMediaType,
                PayloadTooLarge,
            ),
            roles=ADMINS,
        ),
        Route(
            method="GET",
            path="/api/v1/schedules/{schedule_id}",
            handler=get_schedule,
            tag="schedules",
            summary="Show a schedule",
            description="The definition, the next ticks, and the result of the last tick.",
            answers={200: SuccessAnswer(description="the schedule", model=ScheduleDocument)},
            errors=(UnknownSchedule,),
        ),
        Route(
            method="DELETE",
            path="/api/v1/schedules/{schedule_id}",
            handler=delete_schedule,
            tag="schedules",
            summary="Remove a schedule",
            description="Flows that it has started are not affected.",
            answers={204: SuccessAnswer(description="removed")},
            errors=(UnknownSchedule,),
            roles=ADMINS,
        ),
    ]


def _known(request: web.Request) -> str:
    """The schedule id of the path; an id that no schedule can have raises UnknownSchedule without a query."""
    schedule_id = request.match_info["schedule_id"]
    if not _SCHEDULE_ID.fullmatch(schedule_id):
        raise UnknownSchedule
    return schedule_id
