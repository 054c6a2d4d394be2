"""The reconciliation queue over HTTP: what it shows, what settles an item, and what is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.eventually import eventually
from tests.integration.people import KEYED, approve, clients
from tests.integration.scenario import PATH, STEP, dispatched
from tests.integration.subscribing import Subscriber
from tests.running import StartNode
from tests.wire import Api

QUEUE = "/api/v1/reconciliations"
RECONCILE = {"policy": "reconcile"}
UNSAFE: dict[str, Any] = {"effect": {"policy": "unsafe_once"}, "control": {"approval": {"reason": "money moves"}}}
RESULT = {"success": True, "outputs": {"charge_id": "ch_2"}}


async def unknown(api: Api, endpoint: StepEndpoint, step_id: str = STEP, **definition: Any) -> tuple[str, str]:
    """A flow and its work item, whose only attempt was answered with 500."""
    path = f"/{step_id}"
    endpoint.answer(path, Answer(500), Answer(200, RESULT))
    await api.put_step(step_id, endpoint.url(path), kind="sync", **{"effect": RECONCILE, **definition})
    flow_id = await api.start(step_id, init={"amount": 7})
    item = await api.until_work(flow_id, "not_completed", hold="reconcile")
    return flow_id, str(item["work_id"])


async def unknown_once(api: Api, endpoint: StepEndpoint, reviewer: Api | None = None) -> tuple[str, str]:
    """The same of an unsafe_once step, after its approval."""
    endpoint.answer(PATH, Answer(500), Answer(200, RESULT))
    await api.put_step(STEP, endpoint.url(PATH), kind="sync", **UNSAFE)
    flow_id = await api.start(STEP)
    held = await api.until_work(flow_id, "held")
    (await approve(reviewer or api, held["hold"])).ok()
    item = await api.until_work(flow_id, "not_completed", hold="unsafe_once")
    return flow_id, str(item["work_id"])


async def settled(api: Api, work_id: str, outcome: str, **more: Any) -> Any:
    return (await api.post(f"{QUEUE}/{work_id}", {"outcome": outcome, **more})).ok()


async def events(api: Api, flow_id: str, kind: str) -> list[dict[str, Any]]:
    found = (await api.get(f"/api/v1/flows/{flow_id}/events")).ok()["events"]
    return [event for event in found if event["type"] == kind]


async def test_an_item_of_the_queue_has_what_is_needed_to_find_out(api: Api, endpoint: StepEndpoint) -> None:
    endpoint.answer("/status", Answer(200, {"state": "unknown"}))
    status_url = endpoint.url("/status").replace("http://", "http://user:pass@")
    flow_id, work_id = await unknown(api, endpoint, status_url=status_url, work={"init_backoff_ms": 60_000})
    asked = await endpoint.received("/status")
    (sent,) = endpoint.requests(PATH)
    work = (await api.get(f"/api/v1/work/{work_id}")).ok()
    assert (work["error"]["code"], work["next_attempt_at"]) == ("OUTCOME_UNKNOWN", None)
    key = sent.headers["Idempotency-Key"]
    assert work["error"]["details"] == {"cause": "server_error", "attempt": 1, "idempotency_key": key}
    assert asked.headers["Idempotency-Key"] == key
    item = await until_probed(api, work_id)
    assert item == (await api.get(QUEUE)).ok()["reconciliations"][0]
    told_of = {name: item[name] for name in ("flow_id", "step_id", "status", "hold", "cause", "attempt", "arguments")}
    assert told_of == {
        "flow_id": flow_id,
        "step_id": STEP,
        "status": "not_completed",
        "hold": "reconcile",
        "cause": "server_error",
        "attempt": 1,
        "arguments": {"amount": 7},
    }
    assert (item["idempotency_key"], item["last_probe"]["state"]) == (key, "unknown")
    assert item["status_url"] == status_url.replace("user:pass", "user:***")
    assert item["next_probe_at"] > item["last_probe"]["at"] >= item["since"]


async def until_probed(api: Api, work_id: str) -> dict[str, Any]:
    """The item of the queue, when its status_url has answered."""

    async def look() -> dict[str, Any] | None:
        item: dict[str, Any] = (await api.get(f"{QUEUE}/{work_id}")).ok()
        return item if item["last_probe"] is not None else None

    return await eventually(look, what="an answer of status_url")


async def test_applied_succeeds_with_the_outputs_of_the_operator(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, work_id = await unknown(api, endpoint)
    answer = await settled(api, work_id, "applied", outputs={"charge_id": "ch_1"}, note="ledger, line 7")
    assert answer == {"work_id": work_id, "status": "succeeded"}
    final = await api.final(flow_id)
    assert (final["status"], final["outputs"]) == ("completed", {"charge_id": "ch_1"})
    assert len(endpoint.requests(PATH)) == 1
    (event,) = await events(api, flow_id, "work_reconciled")
    assert {name: event["data"][name] for name in ("outcome", "by", "note", "hold")} == {
        "outcome": "applied",
        "by": "local",
        "note": "ledger, line 7",
        "hold": "reconcile",
    }
    assert (await api.get(QUEUE)).ok() == {"reconciliations": [], "next_cursor": None}
    (attempt,) = (await api.get(f"/api/v1/work/{work_id}")).ok()["attempts"]
    assert (attempt["outcome"], attempt["delivery"], attempt["approved_at"]) == ("succeeded", "delivered", None)
    assert attempt["planned_at"] <= attempt["started_at"] <= attempt["finished_at"]


async def test_not_applied_is_sent_again_though_no_retry_is_left(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, work_id = await unknown(api, endpoint, work={"max_retries": 0})
    assert await settled(api, work_id, "not_applied") == {"work_id": work_id, "status": "not_completed"}
    assert (await api.final(flow_id))["outputs"] == RESULT["outputs"]
    first, second = endpoint.requests(PATH)
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
    before, after = (await api.get(f"/api/v1/work/{work_id}")).ok()["attempts"]
    assert (before["outcome"], before["delivery"], before["cause"]) == ("not_completed", "delivered", "server_error")
    assert (after["outcome"], after["delivery"], after["cause"]) == ("succeeded", "delivered", None)
    (event,) = await events(api, flow_id, "work_reconciled")
    assert after["planned_at"] == event["at"]


async def test_failed_fails_with_the_error_of_the_operator(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, work_id = await unknown(api, endpoint)
    assert await settled(api, work_id, "failed", error="the card was refused") == {
        "work_id": work_id,
        "status": "failed",
    }
    error = (await api.final(flow_id))["error"]
    assert (error["code"], error["message"]) == ("STEP_FAILED", "the card was refused")


async def test_an_unsafe_once_item_is_sent_again_after_a_new_approval_only(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, work_id = await unknown_once(api, endpoint)
    answer = await settled(api, work_id, "not_applied")
    assert answer == {"work_id": work_id, "status": "held", "approval_id": answer["approval_id"]}
    assert (await api.work(flow_id))["hold"] == answer["approval_id"]
    assert len(endpoint.requests(PATH)) == 1
    (await approve(api, answer["approval_id"])).ok()
    assert (await api.final(flow_id))["status"] == "completed"
    assert len(endpoint.requests(PATH)) == 2
    attempts = (await api.get(f"/api/v1/work/{work_id}")).ok()["attempts"]
    assert all(attempt["approved_at"] is not None for attempt in attempts)


async def test_a_late_report_settles_an_item_and_takes_it_from_the_queue(api: Api, endpoint: StepEndpoint) -> None:
    endpoint.answer(PATH, Answer(500))
    flow_id, received = await dispatched(api, endpoint, acknowledged=False, effect=RECONCILE)
    await api.until_work(flow_id, "not_completed", hold="reconcile")
    await api.succeed(received, charge_id="ch_3")
    assert (await api.final(flow_id))["outputs"] == {"charge_id": "ch_3"}
    work_id = (await api.work(flow_id))["work_id"]
    details = (await api.post(f"{QUEUE}/{work_id}", {"outcome": "applied"})).refused(
        409, "NOT_WAITING_FOR_RECONCILIATION"
    )
    assert details["status"] == "succeeded"


async def test_a_cancelled_item_stays_in_the_queue_until_it_is_settled(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, work_id = await unknown(api, endpoint)
    (await api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()
    (item,) = (await api.get(QUEUE)).ok()["reconciliations"]
    assert (item["work_id"], item["status"]) == (work_id, "cancelled")
    assert await settled(api, work_id, "not_applied") == {"work_id": work_id, "status": "cancelled"}
    assert (await api.get(QUEUE)).ok()["reconciliations"] == []
    assert len(endpoint.requests(PATH)) == 1


@pytest.mark.parametrize("outcomes", [("applied", "not_applied"), ("failed", "failed"), ("not_applied", "not_applied")])
async def test_of_two_reconcilers_one_wins(api: Api, endpoint: StepEndpoint, outcomes: tuple[str, str]) -> None:
    flow_id, work_id = await unknown(api, endpoint)
    replies = await asyncio.gather(*(api.post(f"{QUEUE}/{work_id}", {"outcome": each}) for each in outcomes))
    lost, won = sorted(replies, key=lambda reply: reply.status == 200)
    assert won.ok()["work_id"] == work_id
    assert lost.refused(409, "NOT_WAITING_FOR_RECONCILIATION")["status"] in (
        "not_completed",
        "active",
        "succeeded",
        "failed",
    )
    (event,) = await events(api, flow_id, "work_reconciled")
    assert event["data"]["outcome"] == outcomes[replies.index(won)]
    assert len(endpoint.requests(PATH)) <= 2


async def test_the_queue_is_read_by_filters_and_page_by_page(api: Api, endpoint: StepEndpoint) -> None:
    items = [await unknown(api, endpoint, name) for name in ("pay", "refund", "pay", "wire")]
    _, once = await unknown_once(api, endpoint)
    ids = [work_id for _, work_id in items] + [once]

    async def listed(**wanted: str) -> list[str]:
        return [item["work_id"] for item in (await api.get(QUEUE, **wanted)).ok()["reconciliations"]]

    assert await listed() == ids, "the longest waiting item comes first"
    assert await listed(step="pay") == [ids[0], ids[2]]
    assert await listed(hold="unsafe_once") == [once]
    assert await listed(hold="reconcile") == ids[:4]
    assert await listed(step="pay", hold="unsafe_once") == []
    third = (await api.get(f"{QUEUE}/{ids[2]}")).ok()["since"]
    waits_since = [(await api.get(f"{QUEUE}/{each}")).ok()["since"] for each in ids]
    assert await listed(since=third) == [each for each, since in zip(ids, waits_since, strict=True) if since >= third]
    seen: list[str] = []
    page: dict[str, Any] = {"next_cursor": None}
    for count in (2, 2, 1):
        more = {} if page["next_cursor"] is None else {"cursor": str(page["next_cursor"])}
        page = (await api.get(QUEUE, limit="2", **more)).ok()
        assert len(page["reconciliations"]) == count
        seen += [item["work_id"] for item in page["reconciliations"]]
    assert (seen, page["next_cursor"]) == (ids, None)


async def test_wrong_questions_are_refused(api: Api, endpoint: StepEndpoint) -> None:
    _, work_id = await unknown(api, endpoint)
    for params in ({"hold": "dedup"}, {"since": "yesterday"}, {"cursor": "x"}, {"cursor": "1-"}, {"step": "a b"}):
        errors = (await api.get(QUEUE, **params)).refused(422, "INVALID_INPUT")["errors"]
        assert [error["place"] for error in errors] == list(params)
    for missing in ("01a1e4f10324776c863993f502a99a30", "x-y", "a" * 65):
        (await api.get(f"{QUEUE}/{missing}")).refused(404, "UNKNOWN_WORK")
        (await api.post(f"{QUEUE}/{missing}", {"outcome": "applied"})).refused(404, "UNKNOWN_WORK")
    (await api.request("POST", f"{QUEUE}/{work_id}", data=b"{}")).refused(415, "UNSUPPORTED_MEDIA_TYPE")
    assert (await api.get(f"{QUEUE}/{work_id}")).ok()["hold"] == "reconcile"


@pytest.mark.either_store
@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, "outcome"),
        ({"outcome": "maybe"}, "outcome"),
        ({"outcome": "applied", "outputs": []}, "outputs"),
        ({"outcome": "failed", "error": {"code": "X"}}, "error"),
        ({"outcome": "failed", "error": "a\u0000b"}, "error"),
        ({"outcome": "applied", "note": "n" * 2_001}, "note"),
        ({"outcome": "applied", "by": "another"}, "by"),
        ({"outcome": "not_applied", "outputs": {}}, "outputs"),
        ({"outcome": "applied", "error": "no"}, "error"),
    ],
)
async def test_a_settlement_that_makes_no_sense_names_the_place(
    api: Api, endpoint: StepEndpoint, body: dict[str, Any], place: str
) -> None:
    _, work_id = await unknown(api, endpoint)
    errors = (await api.post(f"{QUEUE}/{work_id}", body)).refused(422, "INVALID_INPUT")["errors"]
    assert [error["place"] for error in errors] == [place]
    assert (await api.get(f"{QUEUE}/{work_id}")).ok()["hold"] == "reconcile"


async def test_outputs_are_checked_as_those_of_a_worker(api: Api, endpoint: StepEndpoint) -> None:
    attributes = {"amount": {"role": "required"}, "charge_id": {"role": "output", "type": "string"}}
    _, work_id = await unknown(api, endpoint, attributes=attributes)
    for outputs in ({"charge_id": 7}, {}, None):
        body = {"outcome": "applied", **({} if outputs is None else {"outputs": outputs})}
        errors = (await api.post(f"{QUEUE}/{work_id}", body)).refused(422, "INVALID_INPUT")["errors"]
        assert [error["place"] for error in errors] == ["outputs.charge_id"]
    assert (await settled(api, work_id, "applied", outputs={"charge_id": "ch_1"}))["status"] == "succeeded"


async def test_work_that_does_not_wait_says_how_it_is(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, _ = await dispatched(api, endpoint)
    work_id = (await api.work(flow_id))["work_id"]
    for reply in (await api.get(f"{QUEUE}/{work_id}"), await api.post(f"{QUEUE}/{work_id}", {"outcome": "applied"})):
        details = reply.refused(409, "NOT_WAITING_FOR_RECONCILIATION")
        assert details == {"work_id": work_id, "status": "active"}


async def test_operators_settle_viewers_and_reviewers_read(
    start_node: StartNode, session: aiohttp.ClientSession, endpoint: StepEndpoint
) -> None:
    node = await start_node(**KEYED)
    team = clients(session, node.url)
    flow_id, work_id = await unknown_once(team["ada"], endpoint, team["rita"])
    for name in ("vic", "rita"):
        assert len((await team[name].get(QUEUE)).ok()["reconciliations"]) == 1
        (await team[name].get(f"{QUEUE}/{work_id}")).ok()
        (await team[name].post(f"{QUEUE}/{work_id}", {"outcome": "applied"})).refused(403, "FORBIDDEN")
    stranger = Api(session, node.url)
    for reply in (await stranger.get(QUEUE), await stranger.post(f"{QUEUE}/{work_id}", {"outcome": "applied"})):
        reply.refused(401, "UNAUTHENTICATED")
    assert (await settled(team["olga"], work_id, "applied"))["status"] == "succeeded"
    (event,) = await events(team["vic"], flow_id, "work_reconciled")
    assert event["data"]["by"] == "olga"


async def test_subscribers_are_told_of_the_queue_and_receipts_are_told_to_none(
    api: Api, endpoint: StepEndpoint
) -> None:
    subscriber = Subscriber(api, endpoint)
    await subscriber.subscribe("work.reconciliation_needed", "work.reconciled")
    endpoint.answer("/status", Answer(200, {"state": "unknown"}))
    flow_id, work_id = await unknown(api, endpoint, status_url=endpoint.url("/status"))
    await until_probed(api, work_id)
    texts = [(await api.get(path)).content.decode() for path in (QUEUE, f"{QUEUE}/{work_id}")]
    texts.append(json.dumps(await settled(api, work_id, "applied", note="found")))
    texts.append((await api.get(f"/api/v1/work/{work_id}")).content.decode())
    texts.append((await api.get(f"/api/v1/flows/{flow_id}/events")).content.decode())
    await subscriber.told(2)
    messages = subscriber.messages()
    needed, reconciled = sorted(messages, key=lambda message: str(message["timestamp"]))
    assert (needed["type"], reconciled["type"]) == ("work.reconciliation_needed", "work.reconciled")
    assert needed["data"]["path"] == f"{QUEUE}/{work_id}"
    assert (needed["data"]["hold"], needed["data"]["cause"]) == ("reconcile", "server_error")
    assert needed["data"]["error"]["code"] == "OUTCOME_UNKNOWN"
    assert (reconciled["data"]["outcome"], reconciled["data"]["note"]) == ("applied", "found")
    (sent,) = endpoint.requests(PATH)
    texts += [json.dumps(messages), *map(plain, endpoint.requests("/status"))]
    assert not [text for text in texts if sent.token in text]


def plain(received: Received) -> str:
    return json.dumps({"path": received.path, **received.headers}) + received.content.decode()
