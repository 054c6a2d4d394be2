from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from counterfoil.client import ApiError, Client, ClientError, ConnectionFailed
from counterfoil.client.errors import (
    FlowExists,
    FlowNotFailed,
    InvalidStep,
    NotPendingError,
    NotWaitingForReconciliation,
    PlanCycle,
    Unauthenticated,
    Unavailable,
    UnknownFlow,
    WorkNotFailed,
)
from counterfoil.client.refusals import api_error
from counterfoil.client.sse import SseLines
from counterfoil.domain.errors import error_types
from tests.unit.canned_engine import CannedEngine, Reply, error


@pytest.fixture
async def engine() -> AsyncIterator[CannedEngine]:
    async with CannedEngine() as running:
        yield running


@pytest.fixture
async def client(engine: CannedEngine) -> AsyncIterator[Client]:
    async with Client(engine.url, "s3cret", timeout=5, patience=5) as opened:
        yield opened


def event(seq: int, kind: str = "work_dispatched") -> dict[str, Any]:
    return {"seq": seq, "type": kind, "at": "2026-11-16T14:26:10.123Z", "flow_id": "f", "step_id": None, "data": {}}


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(
        f"id: {item['seq']}\nevent: {item['type']}\ndata: {json.dumps(item)}\n\n".encode() for item in events
    )


async def test_a_step_is_put_with_its_definition_and_the_key(engine: CannedEngine, client: Client) -> None:
    engine.reply("PUT /api/v1/steps/resize", Reply(201, {"step_id": "resize"}))
    assert (await client.put_step("resize", {"endpoint": "http://w/r"}))["step_id"] == "resize"
    asked = engine.asked[0]
    assert asked.body == {"endpoint": "http://w/r"}
    assert asked.headers["Authorization"] == "Bearer s3cret"
    assert asked.headers["Content-Type"] == "application/json"


async def test_steps_are_listed_shown_and_deleted(engine: CannedEngine, client: Client) -> None:
    engine.reply("GET /api/v1/steps", Reply(200, {"steps": [{"step_id": "a"}]}))
    engine.reply("GET /api/v1/steps/a", Reply(200, {"step_id": "a"}))
    engine.reply("DELETE /api/v1/steps/a", Reply(204))
    assert [step["step_id"] for step in await client.list_steps()] == ["a"]
    assert (await client.get_step("a"))["step_id"] == "a"
    await client.delete_step("a")


async def test_schedules_are_put_listed_shown_and_deleted(engine: CannedEngine, client: Client) -> None:
    engine.reply("PUT /api/v1/schedules/news", Reply(201, {"schedule_id": "news"}))
    engine.reply("GET /api/v1/schedules", Reply(200, {"schedules": [{"schedule_id": "news"}], "next_cursor": None}))
    engine.reply("GET /api/v1/schedules/news", Reply(200, {"schedule_id": "news"}))
    engine.reply("DELETE /api/v1/schedules/news", Reply(204))
    definition = {"every_ms": 1000, "flow": {"goals": ["resize"]}}
    assert (await client.put_schedule("news", definition))["schedule_id"] == "news"
    assert engine.asked[0].body == definition
    assert [item["schedule_id"] for item in (await client.schedules(cursor="a", limit=5))["schedules"]] == ["news"]
    assert (await client.get_schedule("news"))["schedule_id"] == "news"
    await client.delete_schedule("news")


async def test_a_flow_starts_with_only_what_was_given(engine: CannedEngine, client: Client) -> None:
    engine.reply("POST /api/v1/flows", Reply(201, {"flow_id": "f-1"}))
    started = await client.start_flow(["resize"], {"width": 640})
    await client.start_flow(["resize"], flow_id="f-2", labels={"team": "a"}, metadata={"run": 1})
    assert started["flow_id"] == "f-1"
    assert engine.asked[0].body == {"goals": ["resize"], "init": {"width": 640}}
    assert engine.asked[1].body == {
        "goals": ["resize"],
        "init": {},
        "flow_id": "f-2",
        "labels": {"team": "a"},
        "metadata": {"run": 1},
    }


async def test_a_flow_starts_with_how_it_is_to_end(engine: CannedEngine, client: Client) -> None:
    engine.reply("POST /api/v1/flows", Reply(201, {"flow_id": "f-1"}))
    await client.start_flow(["ship"], deadline_ms=5_000, on_deadline="cancel", compensate=False)
    assert engine.asked[0].body == {
        "goals": ["ship"],
        "init": {},
        "deadline_ms": 5_000,
        "on_deadline": "cancel",
        "compensate": False,
    }


async def test_a_flow_starts_with_given_keys(engine: CannedEngine, client: Client) -> None:
    engine.reply("POST /api/v1/flows", Reply(201, {"flow_id": "f-1"}))
    await client.start_flow(["ship"], init_keys={"charge": "order-7"})
    assert engine.asked[0].body == {"goals": ["ship"], "init": {}, "init_keys": {"charge": "order-7"}}


async def test_the_reconciliation_queue_is_read_and_settled(engine: CannedEngine, client: Client) -> None:
    path = "/api/v1/reconciliations"
    engine.reply(f"GET {path}", Reply(200, {"reconciliations": [{"work_id": "w"}], "next_cursor": None}))
    engine.reply(f"GET {path}/w", Reply(200, {"work_id": "w", "hold": "reconcile"}))
    engine.reply(
        f"POST {path}/w",
        Reply(200, {"work_id": "w", "status": "held", "approval_id": "apr_1"}),
        error(409, "NOT_WAITING_FOR_RECONCILIATION", status="held"),
    )
    page = await client.reconciliations(step="charge", hold="reconcile", since="2026-11-16T12:00:00Z", limit=5)
    assert [item["work_id"] for item in page["reconciliations"]] == ["w"]
    query = {"step": "charge", "hold": "reconcile", "since": "2026-11-16T12:00:00Z", "limit": "5"}
    assert engine.asked[0].query == query
    assert (await client.reconciliation("w"))["hold"] == "reconcile"
    settled = await client.settle("w", "applied", outputs={"id": 1}, note="ledger")
    assert (settled["status"], settled["approval_id"]) == ("held", "apr_1")
    assert engine.asked[-1].body == {"outcome": "applied", "outputs": {"id": 1}, "note": "ledger"}
    with pytest.raises(NotWaitingForReconciliation) as refused:
        await client.settle("w", "failed", error="no")
    assert refused.value.details["status"] == "held"
    assert engine.asked[-1].body == {"outcome": "failed", "error": "no"}


async def test_a_plan_is_asked_for_as_a_flow_is_started(engine: CannedEngine, client: Client) -> None:
    engine.reply("POST /api/v1/plan", Reply(200, {"goals": ["ship"], "steps": ["pack", "ship"]}))
    assert (await client.plan(["ship"], {"order": 7}))["steps"] == ["pack", "ship"]
    assert engine.asked[0].body == {"goals": ["ship"], "init": {"order": 7}}


async def test_a_cancel_undoes_only_on_demand(engine: CannedEngine, client: Client) -> None:
    engine.reply("POST /api/v1/flows/f/cancel", Reply(200, {"flow_id": "f", "status": "compensating"}))
    await client.cancel("f")
    await client.cancel("f", compensate=True)
    assert [asked.body for asked in engine.asked] == [None, {"compensate": True}]


async def test_flows_and_work_are_redriven(engine: CannedEngine, client: Client) -> None:
    engine.reply("POST /api/v1/flows/f/redrive", Reply(200, {"flow_id": "f", "status": "active", "work": ["w-2"]}))
    engine.reply("POST /api/v1/work/w-1/redrive", Reply(200, {"work_id": "w-2", "redrive_of": "w-1"}))
    engine.reply("POST /api/v1/work/redrive", Reply(200, {"matched": 3, "redriven": 0, "flows": ["f"]}))
    assert (await client.redrive("f"))["work"] == ["w-2"]
    assert (await client.redrive_work("w-1"))["redrive_of"] == "w-1"
    assert (await client.redrive_matching({"step_id": "ship"}, limit=5, dry_run=True))["matched"] == 3
    await client.redrive_matching()
    assert [asked.body for asked in engine.asked] == [
        None,
        None,
        {"filter": {"step_id": "ship"}, "dry_run": True, "limit": 5},
        {"filter": {}, "dry_run": False},
    ]


async def test_ids_are_quoted_into_the_path(engine: CannedEngine, client: Client) -> None:
    with pytest.raises(ApiError):
        await client.flow("a/b?c")
    assert engine.asked[0].path == "/api/v1/flows/a%2Fb%3Fc"


async def test_filters_go_into_the_query(engine: CannedEngine, client: Client) -> None:
    engine.reply("GET /api/v1/flows", Reply(200, {"flows": [], "next_cursor": None}))
    engine.reply("GET /api/v1/work", Reply(200, {"work": [], "next_cursor": None}))
    await client.flows(status="failed", label=("team", "a&b"), limit=5)
    await client.work(step="resize", overdue=True)
    assert engine.asked[0].query == {"status": "failed", "label": "team:a&b", "limit": "5"}
    assert engine.asked[1].query == {"step": "resize", "overdue": "true"}


async def test_a_result_is_polled_until_it_is_final(engine: CannedEngine, client: Client) -> None:
    final = {"flow_id": "f", "status": "completed", "outputs": {"a": 1}, "error": None}
    waiting = Reply(202, {"flow_id": "f", "status": "active"})
    engine.reply("GET /api/v1/flows/f/result", waiting, waiting, Reply(200, final))
    assert await client.result("f", wait=20) == final
    assert len(engine.asked) == 3
    assert 0 < float(engine.asked[0].query["wait"]) <= 20


async def test_a_result_that_does_not_come_in_time_says_how_far_it_is(engine: CannedEngine, client: Client) -> None:
    engine.reply("GET /api/v1/flows/f/result", Reply(202, {"flow_id": "f", "status": "active"}))
    assert (await client.result("f", wait=0))["status"] == "active"
    assert len(engine.asked) == 1


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (error(404, "UNKNOWN_FLOW"), UnknownFlow),
        (error(409, "FLOW_EXISTS"), FlowExists),
        (error(422, "INVALID_STEP", errors=[{"place": "endpoint", "message": "is missing"}]), InvalidStep),
        (error(422, "PLAN_CYCLE", steps=["a", "b"]), PlanCycle),
        (error(409, "FLOW_NOT_FAILED"), FlowNotFailed),
        (error(409, "WORK_NOT_FAILED"), WorkNotFailed),
        (error(401, "UNAUTHENTICATED"), Unauthenticated),
        (error(418, "SOMETHING_NEW"), ApiError),
    ],
)
async def test_each_code_has_its_error(
    engine: CannedEngine, client: Client, reply: Reply, kind: type[ApiError]
) -> None:
    engine.reply("GET /api/v1/flows/f", reply)
    with pytest.raises(kind) as caught:
        await client.flow("f")
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.code) == (reply.status, reply.body["error"]["code"])
    assert caught.value.details == reply.body["error"]["details"]


@pytest.mark.parametrize("kind", list(error_types()), ids=lambda kind: kind.code)
def test_the_client_raises_the_class_of_each_code(kind: type[ApiError]) -> None:
    raised = api_error(418, {"error": {"code": kind.code, "message": "no", "details": {"a": 1}}}, retry_after=2.0)
    assert type(raised) is next(each for each in error_types() if each.code == kind.code), "of several, the general one"
    assert isinstance(raised, ApiError)
    assert isinstance(raised, ClientError)
    assert str(raised) == f"{kind.code}: no"
    assert (raised.message, raised.details, raised.status, raised.retry_after) == ("no", {"a": 1}, 418, 2.0)


def test_details_of_any_name_are_kept() -> None:
    details = {"message": "m", "self": 1, "status": "pending"}
    raised = api_error(409, {"error": {"code": "NOT_PENDING", "message": "no", "details": details}})
    assert isinstance(raised, NotPendingError)
    assert (raised.details, raised.status, raised.approval_status) == (details, 409, "pending")


async def test_a_field_that_a_newer_engine_adds_is_there_too(engine: CannedEngine, client: Client) -> None:
    engine.reply("GET /api/v1/flows/f", Reply(200, {"flow_id": "f", "invented_later": 1}))
    assert dict(await client.flow("f")) == {"flow_id": "f", "invented_later": 1}


async def test_unavailable_says_when_to_try_again(engine: CannedEngine, client: Client) -> None:
    engine.reply("GET /readyz", error(503, "UNAVAILABLE", headers={"Retry-After": "7"}))
    with pytest.raises(Unavailable) as caught:
        await client.health()
    assert caught.value.retry_after == 7


@pytest.mark.parametrize(("status", "body"), [(502, b"<html>bad gateway</html>"), (200, b"hello"), (302, b"")])
async def test_an_answer_that_is_no_engines_is_named_so(
    engine: CannedEngine, client: Client, status: int, body: bytes
) -> None:
    engine.reply("GET /api/v1/steps", Reply(status, body))
    with pytest.raises(ApiError, match="not one of a Counterfoil engine") as caught:
        await client.list_steps()
    assert caught.value.code == f"HTTP_{status}"


async def test_no_engine_at_the_address_says_what_to_do(unused_tcp_port: int) -> None:
    async with Client(f"http://127.0.0.1:{unused_tcp_port}/") as client:
        with pytest.raises(ConnectionFailed) as caught:
            await client.list_steps()
    expected = f"no engine answers at http://127.0.0.1:{unused_tcp_port}: start one with `counterfoil serve`"
    assert str(caught.value) == expected


async def test_a_cut_connection_is_no_answer(engine: CannedEngine, client: Client) -> None:
    engine.reply("GET /api/v1/steps", Reply(cut=True))
    with pytest.raises(ConnectionFailed, match="broke"):
        await client.list_steps()


def test_an_address_must_be_one() -> None:
    with pytest.raises(ClientError, match="is not an engine address"):
        Client("localhost:8080")


async def test_a_client_that_is_not_open_says_so() -> None:
    with pytest.raises(ClientError, match="async with"):
        await Client("http://127.0.0.1:1").list_steps()


def test_the_key_is_not_shown() -> None:
    assert "s3cret" not in repr(Client("http://127.0.0.1:1", "s3cret"))


async def test_a_stream_goes_on_behind_the_last_event_after_a_break(engine: CannedEngine, client: Client) -> None:
    half = sse(event(1), event(2)) + b"id: 3\nevent: work_dispatched\ndata: {"
    engine.reply(
        "GET /api/v1/stream",
        Reply(200, half, cut=True),
        error(503, "UNAVAILABLE"),
        Reply(200, b": keep-alive\n\n" + sse(event(2), event(3), event(4))),
    )
    seen = []
    async with aclosing(client.stream()) as events:
        async for item in events:
            seen.append(item["seq"])
            if item["seq"] == 4:
                break
    assert seen == [1, 2, 3, 4]
    assert [asked.headers.get("Last-Event-ID") for asked in engine.asked] == [None, "2", "2"]


async def test_a_stream_that_never_opened_raises_at_once(engine: CannedEngine, client: Client) -> None:
    engine.reply("GET /api/v1/flows/f/stream", error(404, "UNKNOWN_FLOW"))
    with pytest.raises(UnknownFlow):
        await anext(client.stream("f"))


async def test_a_stream_without_an_engine_gives_up_when_patience_is_over(engine: CannedEngine) -> None:
    engine.reply("GET /api/v1/stream", Reply(200, sse(event(1)), cut=True), error(503, "UNAVAILABLE"))
    async with Client(engine.url, patience=0) as client:
        events = client.stream(after=0)
        assert (await anext(events))["seq"] == 1
        with pytest.raises(ClientError):
            await anext(events)
    assert engine.asked[0].headers["Last-Event-ID"] == "0"


async def test_the_stream_of_a_flow_ends_with_the_flow(engine: CannedEngine, client: Client) -> None:
    engine.reply("GET /api/v1/flows/f/stream", Reply(200, sse(event(1))), Reply(200, sse(event(2, "flow_completed"))))
    engine.reply("GET /api/v1/flows/f/result", Reply(200, {"flow_id": "f", "status": "completed"}))
    assert [item["seq"] async for item in client.stream("f", after=0)] == [1, 2]


async def test_the_stream_of_a_flow_goes_on_when_only_the_engine_stopped(engine: CannedEngine, client: Client) -> None:
    engine.reply("GET /api/v1/flows/f/stream", Reply(200, b""), Reply(200, sse(event(1))), Reply(200, b""))
    engine.reply(
        "GET /api/v1/flows/f/result",
        Reply(202, {"flow_id": "f", "status": "active"}),
        Reply(200, {"flow_id": "f", "status": "completed"}),
    )
    assert [item["seq"] async for item in client.stream("f")] == [1]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_events_are_found_however_the_bytes_are_cut(size: int) -> None:
    text = b': hello\nretry: 1000\n\nid: 1\ndata: {"a":\r\ndata: 1}\r\n\r\ndata:x\n\ndata: unfinished'
    lines = SseLines()
    found = [data for start in range(0, len(text), size) for data in lines.feed(text[start : start + size])]
    assert found == [b'{"a":\n1}', b"x"]
