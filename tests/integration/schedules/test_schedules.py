"""Schedules over HTTP: making, changing, pausing and deleting them, and the flows that they start."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.testing import MovableClock, StepEndpoint
from tests.eventually import eventually
from tests.integration.planned import Workshop, takes
from tests.integration.scenario import PATH, STEP
from tests.integration.several_nodes import metric
from tests.running import Connect, StartNode
from tests.wire import JSON, Api, Reply, moment

FLOW = {"goals": [STEP]}
HOURLY = {"every_ms": 3_600_000, "flow": FLOW}


async def put(api: Api, schedule_id: str = "news", **fields: Any) -> Reply:
    rhythm = {} if fields.keys() & {"cron", "every_ms"} else {"every_ms": 3_600_000}
    return await api.request("PUT", f"/api/v1/schedules/{schedule_id}", json={**rhythm, "flow": FLOW, **fields})


async def shown(api: Api, schedule_id: str = "news") -> dict[str, Any]:
    document: dict[str, Any] = (await api.get(f"/api/v1/schedules/{schedule_id}")).ok()
    return document


async def ticks(api: Api, schedule_id: str = "news") -> list[str]:
    """The ticks of the flows that a schedule has started, the oldest first."""
    metadata: list[dict[str, str]] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await api.get("/api/v1/flows", limit="1000", **cursor)).ok()
        metadata += [flow["metadata"] for flow in page["flows"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    return sorted(each["scheduled_at"] for each in metadata if each["schedule_id"] == schedule_id)


async def until_ticks(api: Api, count: int, schedule_id: str = "news") -> list[str]:
    async def look() -> list[str] | None:
        found = await ticks(api, schedule_id)
        return found if len(found) >= count else None

    return await eventually(look, what=f"{count} flows of {schedule_id}")


# ------------------------------------------------------------------------------------------------ documents


async def test_new_same_and_changed(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    cron = {"cron": "*/5 * * * *", "timezone": "Europe/Vienna"}
    flow = {"goals": [STEP], "init": {"a": 1}, "labels": {"by": "clock"}}
    body = (await put(api, **cron, flow=flow)).ok(201)
    assert body.items() >= {"schedule_id": "news", **cron, "every_ms": None, "flow": flow}.items()
    assert (body["catch_up"], body["enabled"]) == ("one", True)
    assert (body["last_at"], body["last_flow_id"], body["last_error"]) == (None, None, None)
    assert (await put(api, **cron, flow=flow)).ok(200) == body
    assert await shown(api) == body
    assert len(body["upcoming"]) == 5
    assert body["upcoming"][0] == body["next_at"]
    assert all(moment(tick).minute % 5 == 0 for tick in body["upcoming"])
    changed = (await put(api, **cron, flow=flow, catch_up="all")).ok(200)
    assert (changed["catch_up"], changed["next_at"]) == ("all", body["next_at"])
    assert changed["updated_at"] > body["updated_at"] == changed["created_at"]


async def test_what_is_shown_can_be_put_again(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    (await put(api)).ok(201)
    document = await shown(api)
    definition = {name: document[name] for name in ("cron", "timezone", "every_ms", "flow", "catch_up", "enabled")}
    assert (await api.request("PUT", "/api/v1/schedules/news", json=definition)).ok() == document


async def test_list_and_delete(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    assert (await api.get("/api/v1/schedules")).ok() == {"schedules": [], "next_cursor": None}
    for schedule_id in ("b", "a", "c"):
        (await put(api, schedule_id)).ok(201)
    page = (await api.get("/api/v1/schedules")).ok()
    assert [item["schedule_id"] for item in page["schedules"]] == ["a", "b", "c"]
    assert page["schedules"][0] == await shown(api, "a")
    first = (await api.get("/api/v1/schedules", limit="2")).ok()
    assert first == {"schedules": page["schedules"][:2], "next_cursor": "b"}
    second = (await api.get("/api/v1/schedules", limit="2", cursor="b")).ok()
    assert second == {"schedules": page["schedules"][2:], "next_cursor": None}
    assert (await api.request("DELETE", "/api/v1/schedules/b")).status == 204
    (await api.request("DELETE", "/api/v1/schedules/b")).refused(404, "UNKNOWN_SCHEDULE")
    (await api.get("/api/v1/schedules/b")).refused(404, "UNKNOWN_SCHEDULE")
    assert len((await api.get("/api/v1/schedules")).ok()["schedules"]) == 2


async def test_ids_that_no_schedule_has(api: Api) -> None:
    (await api.get("/api/v1/schedules/%00")).refused(404, "UNKNOWN_SCHEDULE")
    (await api.request("DELETE", "/api/v1/schedules/-x")).refused(404, "UNKNOWN_SCHEDULE")
    details = (await put(api, "a%20b")).refused(422, "INVALID_SCHEDULE")
    assert details["errors"][0]["place"] == "schedule_id"
    (await api.get("/api/v1/schedules", cursor="a b")).refused(422, "INVALID_INPUT")


@pytest.mark.either_store
@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"flow": FLOW}, "cron"),
        ({"cron": "* * * * *", **HOURLY}, "every_ms"),
        ({"cron": "* * * *", "flow": FLOW}, "cron"),
        ({"cron": "0 0 30 2 *", "flow": FLOW}, "cron"),
        ({"cron": 5, "flow": FLOW}, "cron"),
        ({"cron": "* * * * *", "timezone": "Europe/Nowhere", "flow": FLOW}, "timezone"),
        ({"timezone": "UTC", **HOURLY}, "timezone"),
        ({"every_ms": 99, "flow": FLOW}, "every_ms"),
        ({"every_ms": 1.5, "flow": FLOW}, "every_ms"),
        ({"every_ms": 1000}, "flow"),
        ({**HOURLY, "flow": {"goals": []}}, "flow.goals"),
        ({**HOURLY, "flow": {**FLOW, "flow_id": "mine"}}, "flow.flow_id"),
        ({**HOURLY, "catch_up": "none"}, "catch_up"),
        ({**HOURLY, "enabled": "yes"}, "enabled"),
        ({**HOURLY, "next_at": "now"}, "next_at"),
        ([], "body"),
    ],
)
async def test_what_is_wrong_is_told_with_its_place(api: Api, body: Any, place: str) -> None:
    reply = await api.request("PUT", "/api/v1/schedules/news", json=body)
    details = reply.refused(422, "INVALID_SCHEDULE")
    assert [error["place"] for error in details["errors"]] == [place]
    (await api.get("/api/v1/schedules/news")).refused(404, "UNKNOWN_SCHEDULE")


async def test_two_faults_are_told_together(api: Api) -> None:
    details = (await put(api, cron="x", timezone="y")).refused(422, "INVALID_SCHEDULE")
    assert [error["place"] for error in details["errors"]] == ["cron", "timezone"]


async def test_a_body_that_is_no_json(api: Api) -> None:
    path = "/api/v1/schedules/news"
    (await api.request("PUT", path, data=b"{", headers=JSON)).refused(422, "INVALID_SCHEDULE")
    (await api.request("PUT", path, data=b"{}", headers={"Content-Type": "text/plain"})).refused(
        415, "UNSUPPORTED_MEDIA_TYPE"
    )


# ------------------------------------------------------------------------------------------------ flows that cannot be


async def refused_alike(api: Api, flow: dict[str, Any], status: int, code: str) -> dict[str, Any]:
    """The details, when the schedule is refused as the start of its flow is, word for word."""
    reply = await put(api, flow=flow)
    details = reply.refused(status, code)
    assert (await api.post("/api/v1/flows", flow)).body == reply.body
    (await api.get("/api/v1/schedules/news")).refused(404, "UNKNOWN_SCHEDULE")
    return details


async def test_a_flow_that_could_not_be_started_is_refused_as_its_start(shop: Workshop) -> None:
    await shop.waits("goal", {"x": takes(), "n": takes("number")})
    await refused_alike(shop.api, {"goals": ["goal", "nowhere"]}, 404, "UNKNOWN_STEP")
    await refused_alike(shop.api, {"goals": ["goal"], "init": {"n": 1}}, 422, "UNREACHABLE_GOAL")
    details = await refused_alike(shop.api, {"goals": ["goal"], "init": {"x": 1, "n": "one"}}, 422, "INVALID_INPUT")
    assert [error["place"] for error in details["errors"]] == ["init.n"]
    assert (await put(shop.api, flow={"goals": ["goal"], "init": {"x": 1, "n": 1}})).status == 201


async def test_a_value_that_is_long_to_check_is_checked_when_it_is_put(shop: Workshop) -> None:
    await shop.waits("goal", {"x": takes(schema={"type": "array", "items": {"type": "integer"}})})
    long = [1] * 5_000
    await refused_alike(shop.api, {"goals": ["goal"], "init": {"x": [*long, "text"]}}, 422, "INVALID_INPUT")
    (await put(shop.api, flow={"goals": ["goal"], "init": {"x": long}})).ok(201)


async def test_a_schedule_whose_step_is_gone_can_be_paused_but_not_resumed_or_changed(
    api: Api, endpoint: StepEndpoint
) -> None:
    """As one from before schedules were checked: it stays, and only what would go on with it is refused."""
    await api.put_step(STEP, endpoint.url(PATH))
    body = (await put(api)).ok(201)
    assert (await api.request("DELETE", f"/api/v1/steps/{STEP}")).status == 204
    assert (await put(api)).ok() == body, "the same definition again changes nothing"
    (await put(api, catch_up="all")).refused(404, "UNKNOWN_STEP")
    assert await shown(api) == body
    assert (await put(api, enabled=False)).ok()["next_at"] is None
    (await put(api, enabled=False, flow={**FLOW, "init": {"a": 1}})).refused(404, "UNKNOWN_STEP")
    (await put(api)).refused(404, "UNKNOWN_STEP")
    await api.put_step(STEP, endpoint.url(PATH))
    assert (await put(api)).ok()["enabled"] is True


# ------------------------------------------------------------------------------------------------ flows


async def test_flows_start_by_themselves(api: Api, endpoint: StepEndpoint) -> None:
    """In the rhythm that was asked for, without drift, each of its own, and sent at once."""
    await api.put_step(STEP, endpoint.url(PATH), kind="sync")
    body = (await put(api, every_ms=100, flow={**FLOW, "init": {"a": 1}, "metadata": {"run": 7}})).ok(201)
    received = [await endpoint.received(PATH, count) for count in (1, 2, 3)]
    first = moment(body["next_at"])
    for call in received:
        assert call.body["arguments"] == {"a": 1}
        assert (call.metadata["schedule_id"], call.metadata["run"]) == ("news", 7)
        since = moment(call.metadata["scheduled_at"]) - first
        assert since.total_seconds() * 1000 % 100 == 0
    assert len({call.metadata["flow_id"] for call in received}) == 3
    flow_id = received[0].metadata["flow_id"]
    assert (await api.final(flow_id))["status"] == "completed"
    flow = await api.flow(flow_id)
    assert flow["metadata"]["scheduled_at"] == received[0].metadata["scheduled_at"] == body["next_at"]
    assert (await api.request("DELETE", "/api/v1/schedules/news")).status == 204


async def test_the_last_flow_is_told(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock=clock))
    await api.put_step(STEP, endpoint.url(PATH))
    body = (await put(api)).ok(201)
    clock.advance(hours=1)
    call = await endpoint.received(PATH)
    document = await shown(api)
    assert (document["last_at"], document["last_flow_id"]) == (body["next_at"], call.metadata["flow_id"])
    assert document["next_at"] == body["upcoming"][1]
    assert await metric(api, 'counterfoil_schedule_firings_total{outcome="started"}') == 1


async def has_moved_on(api: Api, clock: MovableClock) -> bool:
    """Whether nothing is due any more."""
    return moment((await shown(api))["next_at"]).timestamp() * 1000 > clock()


@pytest.mark.parametrize(("catch_up", "caught_up"), [("skip", 0), ("one", 1), ("all", 150)])
async def test_catching_up_after_a_time_away(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, catch_up: str, caught_up: int
) -> None:
    clock = MovableClock()
    first = await start_node(clock=clock)
    api = connect(first)
    await api.put_step(STEP, endpoint.url(PATH))
    body = (await put(api, catch_up=catch_up)).ok(201)
    await first.stop()
    clock.advance(hours=150, minutes=30)
    api = connect(await start_node(clock=clock))
    await eventually(lambda: has_moved_on(api, clock), what="everything that was missed")
    clock.advance(minutes=30)
    found = await until_ticks(api, caught_up + 1)
    hours = [(moment(tick) - moment(body["next_at"])).total_seconds() / 3600 for tick in found]
    assert hours == [*range(150 - caught_up, 150), 150]


async def test_pausing_and_resuming(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock=clock))
    await api.put_step(STEP, endpoint.url(PATH))
    began = moment((await put(api, catch_up="all")).ok(201)["next_at"])
    paused = (await put(api, catch_up="all", enabled=False)).ok()
    assert (paused["enabled"], paused["next_at"], paused["upcoming"]) == (False, None, [])
    clock.advance(hours=5)
    resumed = (await put(api, catch_up="all")).ok()
    assert (moment(resumed["next_at"]) - began).total_seconds() == 5 * 3600
    clock.advance(hours=1)
    assert await until_ticks(api, 1) == [resumed["next_at"]]


async def test_a_refused_start_is_told_and_the_schedule_goes_on(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock=clock))
    await api.put_step(STEP, endpoint.url(PATH))
    body = (await put(api)).ok(201)
    assert (await api.request("DELETE", f"/api/v1/steps/{STEP}")).status == 204
    clock.advance(hours=1)

    async def refused() -> dict[str, Any] | None:
        document = await shown(api)
        return document if document["last_error"] else None

    document = await eventually(refused, what="the refusal")
    assert document["last_error"].keys() == {"code", "message", "at"}
    assert document["last_error"]["code"] == "UNKNOWN_STEP"
    assert moment(document["last_error"]["at"]) >= moment(body["next_at"])
    assert (document["last_at"], document["next_at"]) == (None, body["upcoming"][1])
    assert await metric(api, 'counterfoil_schedule_firings_total{outcome="refused"}') == 1
    await api.put_step(STEP, endpoint.url(PATH))
    clock.advance(hours=1)
    await endpoint.received(PATH)
    assert (await shown(api))["last_error"] is None


async def test_other_flows_are_not_disturbed(api: Api, endpoint: StepEndpoint) -> None:
    """A flow that a client starts has nothing of a schedule."""
    await api.put_step(STEP, endpoint.url(PATH))
    await put(api)
    flow = await api.flow(await api.start(STEP))
    assert flow["metadata"] == {}


# ------------------------------------------------------------------------------------------------ run keys


async def fired(api: Api, clock: MovableClock, outcome: str, count: int) -> dict[str, Any]:
    """Move the clock to the next tick, and wait until so many ticks ended like this."""
    clock.advance(hours=1)
    line = f'counterfoil_schedule_firings_total{{outcome="{outcome}"}}'

    async def counted() -> bool:
        return await metric(api, line) >= count

    await eventually(counted, what=f"{count} ticks {outcome}")
    return await shown(api)


async def test_a_tick_whose_run_key_is_taken_is_refused_and_noted(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    await api.put_step(STEP, endpoint.url(PATH))
    (await put(api, flow={**FLOW, "idempotency_key": "nightly"})).ok(201)
    first = await fired(api, clock, "started", 1)
    owner = first["last_flow_id"]
    refused = await fired(api, clock, "refused", 1)
    assert refused["last_error"]["code"] == "RUN_KEY_CONFLICT"
    assert (refused["last_at"], refused["last_flow_id"]) == (first["last_at"], owner)
    await api.succeed(await endpoint.received(PATH))
    again = await fired(api, clock, "started", 2)
    assert again["last_error"] is None
    assert again["last_flow_id"] != owner
    listed = (await api.get("/api/v1/flows", key="nightly")).ok()["flows"]
    assert [flow["flow_id"] for flow in listed] == [again["last_flow_id"], owner]


async def test_a_tick_may_adopt_or_supersede(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    await api.put_step(STEP, endpoint.url(PATH))
    (await put(api, flow={**FLOW, "idempotency_key": "nightly", "on_conflict": "adopt"})).ok(201)
    first = await fired(api, clock, "started", 1)
    adopted = await fired(api, clock, "reused", 1)
    assert (adopted["last_flow_id"], adopted["last_error"]) == (first["last_flow_id"], None)
    assert adopted["last_at"] > first["last_at"]
    (await put(api, flow={**FLOW, "idempotency_key": "nightly", "on_conflict": "supersede"})).ok(200)
    newer = await fired(api, clock, "started", 2)
    assert newer["last_flow_id"] != first["last_flow_id"]
    assert (await api.flow(first["last_flow_id"]))["status"] == "cancelled"


async def test_of_missed_ticks_with_one_run_key_the_first_is_started(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """One firing: the ticks behind the first one are refused, and do not take its flow back."""
    clock = MovableClock()
    api = connect(await start_node(clock))
    await api.put_step(STEP, endpoint.url(PATH))
    (await put(api, catch_up="all", flow={**FLOW, "idempotency_key": "nightly"})).ok(201)
    clock.advance(hours=2)
    document = await fired(api, clock, "refused", 2)
    assert document["last_error"]["code"] == "RUN_KEY_CONFLICT"
    (flow,) = (await api.get("/api/v1/flows", key="nightly")).ok()["flows"]
    assert (flow["flow_id"], flow["status"]) == (document["last_flow_id"], "active")


async def test_the_fields_of_a_run_key_are_shown_as_they_were_given(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    flow = {**FLOW, "idempotency_key": "k", "on_conflict": "adopt", "retain_key_for": "24h", "retain_failed": True}
    assert (await put(api, flow=flow)).ok(201)["flow"] == flow
