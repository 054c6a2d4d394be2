"""The callback inbox: every attempt at a webhook or heartbeat URL is listed with its verdict, and never a token."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import aiohttp
import orjson
import pytest

from counterfoil.domain.callbacks.inbox import trace_of
from counterfoil.testing import StepEndpoint
from tests.by_hand import by_hand
from tests.eventually import eventually
from tests.integration.callbacks.inbox import FORGED, StandingClock, callbacks, verdicts
from tests.integration.scenario import PATH, STEP, dispatched, place_of, webhook_path
from tests.running import Connect, Node, StartNode
from tests.wire import Api

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
SUCCESS = {"success": True, "outputs": {"n": 1}}


@pytest.mark.both_paths
async def test_a_duplicate_is_listed_with_what_is_known_of_it(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    await api.succeed(received, n=1)
    body = orjson.dumps(SUCCESS)
    again = await api.complete(received, SUCCESS, traceparent=TRACEPARENT)
    again.refused(400, "ALREADY_SUCCEEDED")
    refused, accepted = await callbacks(api, flow=flow_id)
    work_id = (await api.work(flow_id))["work_id"]
    assert refused | {"callback_id": "", "at": ""} == {
        "callback_id": "",
        "at": "",
        "kind": "completion",
        "verdict": "ALREADY_SUCCEEDED",
        "status": 400,
        "flow_id": flow_id,
        "step_id": STEP,
        "work_id": work_id,
        "attempt": 1,
        "size": len(body),
        "digest": f"sha256:{hashlib.sha256(body).hexdigest()}",
        "source": "127.0.0.1",
        "trace_id": TRACE,
        "body_kept": False,
    }
    known = ("kind", "verdict", "status", "flow_id", "step_id", "work_id", "attempt")
    assert [accepted[name] for name in known] == ["completion", "accepted", 200, flow_id, STEP, work_id, 1]
    assert [accepted[name] for name in ("size", "digest", "source", "trace_id")] == [None] * 4
    for each in (refused, accepted):
        detail = (await api.get(f"/api/v1/callbacks/{each['callback_id']}")).ok()
        assert detail == {**each, "body": None}


@pytest.mark.both_paths
async def test_every_refusal_of_a_valid_receipt_is_listed(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    api = connect(await start_node(max_body_bytes=10_000, signing_secret="whsec_c2VjcmV0"))
    flow_id, received = await dispatched(api, endpoint, require_signature=True)
    await api.complete(received, SUCCESS)
    path, tokens = webhook_path(received), {"Content-Type": "application/json"}
    await api.request("POST", path, data=b"<x/>", headers={"Content-Type": "text/xml"})
    await api.request("POST", path, data=b"{", headers=tokens)
    await api.request("POST", path, data=b'{"success": "yes"}', headers=tokens)
    await api.request("POST", path, data=b" " * 10_001, headers=tokens)
    await api.request("POST", f"{path}/heartbeat", data=b"[]", headers=tokens)
    found = await callbacks(api, flow=flow_id)
    assert {(each["step_id"], each["work_id"], each["attempt"]) for each in found} == {
        (STEP, (await api.work(flow_id))["work_id"], 1)
    }
    assert [(each["kind"], each["verdict"], each["status"], each["size"]) for each in reversed(found)] == [
        ("completion", "INVALID_SIGNATURE", 401, 34),
        ("completion", "UNSUPPORTED_MEDIA_TYPE", 415, 4),
        ("completion", "INVALID_RESULT", 422, 1),
        ("completion", "INVALID_RESULT", 422, 18),
        ("completion", "PAYLOAD_TOO_LARGE", 413, 10_001),
        ("heartbeat", "INVALID_RESULT", 422, 2),
    ]


@pytest.mark.both_paths
async def test_a_body_that_is_refused_before_it_is_sent_is_listed(node: Node, api: Api, endpoint: StepEndpoint) -> None:
    """curl announces a large body with ``Expect: 100-continue`` and waits."""
    flow_id, received = await dispatched(api, endpoint)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(node.url.rpartition(":")[2]))
    head = f"POST {webhook_path(received)} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: 2000000\r\nExpect: 100-continue\r\n\r\n".encode())
    line = await reader.readline()
    writer.close()
    assert line.startswith(b"HTTP/1.1 413")
    [found] = await callbacks(api, flow=flow_id)
    assert (found["verdict"], found["status"], found["size"]) == ("PAYLOAD_TOO_LARGE", 413, 2_000_000)


async def test_verdicts_of_reports_that_were_not_refused(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(
        api, endpoint, duplicate_status=200, work={"init_backoff_ms": 5, "max_retries": 5}
    )
    again = {"success": False, "retriable": True, "error": "busy", "attempt": 1}
    await api.complete(received, again)
    second = await endpoint.received(PATH, 2)
    await api.until_acknowledged(flow_id, 2)
    assert (await api.complete(second, again)).ok()["verdict"] == "stale"
    await api.post(f"{second.webhook_url}/heartbeat", {"progress": 0.5})
    await api.complete(second, SUCCESS)
    assert (await api.complete(second, SUCCESS)).ok()["verdict"] == "duplicate"
    assert list(reversed(await verdicts(api, flow=flow_id))) == [
        ("completion", "accepted", 200),
        ("completion", "stale", 200),
        ("heartbeat", "accepted", 200),
        ("completion", "accepted", 200),
        ("completion", "duplicate", 200),
    ]


async def test_a_heartbeat_for_cancelled_work_is_ignored(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    await api.post(f"/api/v1/flows/{flow_id}/cancel")
    assert (await api.post(f"{received.webhook_url}/heartbeat")).ok()["cancel_requested"]
    (await api.complete(received, SUCCESS)).refused(400, "WORK_CANCELLED")
    assert await verdicts(api, flow=flow_id) == [
        ("completion", "WORK_CANCELLED", 400),
        ("heartbeat", "ignored", 200),
    ]


@pytest.mark.both_paths
async def test_an_unknown_receipt_is_listed_without_what_it_claims(
    node: Node, api: Api, endpoint: StepEndpoint
) -> None:
    flow_id, received = await dispatched(api, endpoint)
    (await api.post(webhook_path(received, FORGED), SUCCESS)).refused(404, "UNKNOWN_RECEIPT")
    # A token in the place of an id must not be kept, either.
    (await api.post(f"/webhook/{received.token}/{STEP}/{received.token}", SUCCESS)).refused(404, "UNKNOWN_RECEIPT")
    (await api.post(f"{webhook_path(received, FORGED)}/heartbeat")).refused(404, "UNKNOWN_RECEIPT")
    found = await callbacks(api)
    assert [(each["kind"], each["verdict"], each["source"]) for each in found] == [
        ("heartbeat", "UNKNOWN_RECEIPT", "127.0.0.1"),
        ("completion", "UNKNOWN_RECEIPT", "127.0.0.1"),
        ("completion", "UNKNOWN_RECEIPT", "127.0.0.1"),
    ]
    assert {(each["flow_id"], each["step_id"], each["work_id"]) for each in found} == {(None, None, None)}
    rows = by_hand(place_of(node), "SELECT * FROM callbacks")
    assert len(rows) == 3
    assert received.token not in repr(rows)
    assert FORGED not in repr(rows)
    assert await callbacks(api, flow=flow_id) == []


async def test_filters(api: Api, endpoint: StepEndpoint) -> None:
    first, received = await dispatched(api, endpoint)
    await api.post(f"{received.webhook_url}/heartbeat")
    await api.succeed(received)
    await api.complete(received, {"success": True})
    await api.put_step("other", endpoint.url("/other"))
    second = await api.start("other")
    await api.succeed(await endpoint.received("/other"))
    await api.post(webhook_path(received, FORGED), SUCCESS)
    everything = await callbacks(api)
    assert len(everything) == 5
    work_id = (await api.work(first))["work_id"]

    async def count(**filters: str) -> int:
        found = await callbacks(api, **filters)
        assert [each for each in everything if each in found] == found
        return len(found)

    assert await count(flow=first) == 3
    assert await count(flow=second) == 1
    assert await count(step="other") == 1
    assert await count(work=work_id) == 3
    assert await count(work=work_id, flow=second) == 0
    assert await count(work="nobody") == 0
    assert await count(flow="nobody") == 0
    assert await count(kind="heartbeat") == 1
    assert await count(kind="hook") == 0
    assert await count(verdict="accepted") == 3
    assert await count(verdict="ALREADY_SUCCEEDED") == 1
    assert await count(verdict="UNKNOWN_RECEIPT", flow=first) == 0
    assert await count(verdict="UNKNOWN_RECEIPT") == 1
    assert await count(flow=first, kind="completion", verdict="accepted") == 1


async def test_times_are_filtered_from_since_up_to_until(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    clock = StandingClock()
    api = connect(await start_node(clock))
    _, received = await dispatched(api, endpoint)
    await api.succeed(received)
    for _ in range(3):
        clock.forward(3_600_000)
        await api.complete(received, {"success": True})
        await api.post(webhook_path(received, FORGED), SUCCESS)
    found = await callbacks(api)
    times = sorted({each["at"] for each in found})
    assert len(times) == 4
    assert [each["at"] for each in found] == sorted((each["at"] for each in found), reverse=True)
    for since in (None, *times):
        for until in (None, *times):
            wanted = [
                each for each in found if (not since or each["at"] >= since) and (not until or each["at"] < until)
            ]
            filters = {name: text for name, text in (("since", since), ("until", until)) if text}
            assert await callbacks(api, **filters) == wanted
            assert await callbacks(api, limit="1", **filters) == wanted


async def test_pages_have_every_callback_once(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the size of a page, and however little of the journal one page looks at."""
    clock = StandingClock()
    api = connect(await start_node(clock))
    await api.put_step(STEP, endpoint.url(PATH))
    for number in range(12):
        await api.start(STEP)
        received = await endpoint.received(PATH, number + 1)
        for _ in range(number % 3):
            await api.post(f"{received.webhook_url}/heartbeat")
            clock.forward(number % 2)
        await api.succeed(received)
        for _ in range(number % 4):
            await api.complete(received, {"success": True})
            clock.forward(number % 3)
    everything = await callbacks(api, limit="1000")
    assert len(everything) == 12 + 12 + 18
    assert len({each["callback_id"] for each in everything}) == len(everything)
    assert [each["at"] for each in everything] == sorted((each["at"] for each in everything), reverse=True)
    for limit in ("1", "2", "5", "41"):
        assert await callbacks(api, limit=limit) == everything
    monkeypatch.setattr("counterfoil.engine.queries.callback_queries.ENTRIES_TOGETHER", 2)
    monkeypatch.setattr("counterfoil.engine.queries.callback_queries.ENTRIES_A_PAGE", 4)
    for limit in ("1", "3", "1000"):
        assert sorted(await callbacks(api, limit=limit), key=str) == sorted(everything, key=str)


@pytest.mark.either_store
@pytest.mark.parametrize(
    "query",
    [
        {"cursor": "x"},
        {"cursor": "1.2"},
        {"cursor": "1.2.99999999999999999999"},
        {"kind": "mail"},
        {"limit": "0"},
        {"since": "yesterday"},
        {"verdict": "a b"},
        {"nonsense": "1"},
    ],
)
async def test_bad_filters_are_refused(api: Api, query: dict[str, str]) -> None:
    details = (await api.get("/api/v1/callbacks", **query)).refused(422, "INVALID_INPUT")
    assert [each["place"] for each in details["errors"]] == list(query)


async def test_unknown_ids(api: Api) -> None:
    for callback_id in ("0" * 32, "j64", "j0", "j999999999999999999", "j1x", "a" * 65, "%00"):
        (await api.get(f"/api/v1/callbacks/{callback_id}")).refused(404, "UNKNOWN_CALLBACK")
        (await api.post(f"/api/v1/callbacks/{callback_id}/replay")).refused(404, "UNKNOWN_CALLBACK")


async def test_an_event_that_no_callback_led_to_is_no_callback(api: Api, endpoint: StepEndpoint) -> None:
    """A response of an endpoint, and an operator, complete work without a callback."""
    await api.put_step("sync", endpoint.url("/sync"), kind="sync")
    flow_id = await api.start("sync")
    await api.final(flow_id)
    other, _ = await dispatched(api, endpoint)
    work_id = (await api.work(other))["work_id"]
    (await api.post(f"/api/v1/work/{work_id}/complete", SUCCESS)).ok()
    assert await callbacks(api) == []
    for event in await api.events(flow_id):
        (await api.get(f"/api/v1/callbacks/j{event['seq']}")).refused(404, "UNKNOWN_CALLBACK")


async def test_forged_receipts_are_sampled_and_the_table_is_bounded(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, session: aiohttp.ClientSession
) -> None:
    clock = StandingClock()
    node = await start_node(clock, callbacks={"unknown_per_second": 2, "unknown_burst": 5, "max_rows": 12})
    api = connect(node)
    _, received = await dispatched(api, endpoint)

    async def flood(count: int) -> None:
        await asyncio.gather(*(api.post(webhook_path(received, FORGED), SUCCESS) for _ in range(count)))

    await flood(40)
    assert len(await callbacks(api)) == 5
    clock.forward(1000)
    await flood(10)
    assert len(await callbacks(api)) == 7
    await api.succeed(received)
    for _ in range(10):
        await api.complete(received, {"success": True})
    found = await callbacks(api)
    assert len([each for each in found if each["verdict"] != "accepted"]) == 12
    assert by_hand(place_of(node), "SELECT count(*) FROM callbacks") == [(12,)]
    assert len([each for each in found if each["verdict"] == "ALREADY_SUCCEEDED"]) == 10
    metrics = (await api.get("/metrics")).content.decode()
    assert 'counterfoil_callbacks_dropped_total{reason="unknown_receipt"} 43.0' in metrics
    assert "counterfoil_callbacks_recorded_total 17.0" in metrics


async def test_repeats_of_one_work_item_are_bounded(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    clock = StandingClock()
    api = connect(await start_node(clock))
    flow_id, received = await dispatched(api, endpoint)
    await api.succeed(received)
    for _ in range(130):
        await api.complete(received, {"success": True})
    assert len(await callbacks(api, flow=flow_id, verdict="ALREADY_SUCCEEDED")) == 100
    clock.forward(5_000)
    for _ in range(20):
        await api.complete(received, {"success": True})
    assert len(await callbacks(api, flow=flow_id, verdict="ALREADY_SUCCEEDED")) == 105


async def test_rows_are_kept_for_their_time_and_not_longer(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    clock = StandingClock()
    node = await start_node(clock, callbacks={"retention_ms": 60_000}, sweep_interval_ms=50)
    api = connect(node)
    _, received = await dispatched(api, endpoint)
    await api.post(webhook_path(received, FORGED), SUCCESS)
    clock.forward(59_000)
    await api.post(webhook_path(received, FORGED), SUCCESS)
    assert len(await callbacks(api)) == 2
    clock.forward(2_000)
    await eventually(lambda: _count(node, 1), what="the older one is gone")
    clock.forward(60_000)

    async def both_are_gone() -> bool:
        clock.forward(100)  # the pause between two rounds of forgetting never ends while the clock stands
        return await _count(node, 0)

    await eventually(both_are_gone, what="both are gone")


@pytest.mark.parametrize("kept", [{"retention_ms": 60_000}, {"payload_retention_ms": 60_000}])
async def test_rows_of_a_flow_go_with_it(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, kept: dict[str, Any]
) -> None:
    clock = StandingClock()
    node = await start_node(clock, **kept, sweep_interval_ms=50, callbacks={"keep_bodies": "all"})
    api = connect(node)
    flow_id, received = await dispatched(api, endpoint)
    await api.succeed(received)
    await api.complete(received, {"success": True})
    await api.post(webhook_path(received, FORGED), SUCCESS)
    assert len(await callbacks(api, flow=flow_id)) == 2
    clock.forward(61_000)
    await eventually(lambda: _count(node, 1), what="only the one of no flow is left")
    assert await callbacks(api, flow=flow_id) == []
    assert await verdicts(api) == [("completion", "UNKNOWN_RECEIPT", 404)]


async def _count(node: Node, wanted: int) -> bool:
    return bool(by_hand(place_of(node), "SELECT count(*) FROM callbacks") == [(wanted,)])


async def test_a_receipt_of_a_pruned_flow_is_listed_without_the_flow(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    clock = StandingClock()
    node = await start_node(clock, retention_ms=60_000, sweep_interval_ms=50)
    api = connect(node)
    flow_id, received = await dispatched(api, endpoint)
    await api.succeed(received)
    clock.forward(61_000)

    async def gone() -> bool:
        return (await api.get(f"/api/v1/flows/{flow_id}")).status == 404

    await eventually(gone, what="the flow is pruned")
    (await api.complete(received, {"success": True})).refused(404, "UNKNOWN_RECEIPT")
    [found] = await callbacks(api)
    assert (found["verdict"], found["flow_id"]) == ("UNKNOWN_RECEIPT", None)
    assert found["work_id"] == received.metadata["work_id"]


async def test_what_was_noted_before_a_graceful_stop_is_kept(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    node = await start_node()
    api = connect(node)
    _, received = await dispatched(api, endpoint)
    await api.post(webhook_path(received, FORGED), SUCCESS)
    await node.stop()
    assert by_hand(place_of(node), "SELECT verdict FROM callbacks") == [("UNKNOWN_RECEIPT",)]


async def test_nothing_is_written_for_accepted_callbacks(node: Node, api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    await api.post(f"{received.webhook_url}/heartbeat")
    await api.succeed(received)
    assert len(await callbacks(api, flow=flow_id)) == 2
    assert by_hand(place_of(node), "SELECT count(*) FROM callbacks") == [(0,)]
    assert "counterfoil_callbacks_recorded_total 0.0" in (await api.get("/metrics")).content.decode()


async def test_roles(start_node: StartNode, connect: Connect, session: aiohttp.ClientSession) -> None:
    keys = {role: f"secret-of-the-{role}" for role in ("viewer", "operator", "reviewer", "admin")}
    node = await start_node(api_keys=",".join(f"{role}:{role}:{secret}" for role, secret in keys.items()))
    (await connect(node).get("/api/v1/callbacks")).refused(401, "UNAUTHENTICATED")
    for role, secret in keys.items():
        api = Api(session, node.url, {"Authorization": f"Bearer {secret}"})
        (await api.get("/api/v1/callbacks")).ok()
        allowed = role in ("operator", "admin")
        replayed, completed = (
            await api.post("/api/v1/callbacks/j1/replay"),
            await api.post("/api/v1/work/none/complete", SUCCESS),
        )
        assert (replayed.status, completed.status) == ((404, 404) if allowed else (403, 403))


def test_the_trace_id_is_that_of_a_valid_header() -> None:
    assert trace_of(TRACEPARENT) == TRACE
    assert trace_of(f" {TRACEPARENT}-future ") == TRACE
    for text in (None, "", "00", TRACE, TRACEPARENT.upper(), f"00-{'0' * 32}-00f067aa0ba902b7-01", TRACEPARENT + "x"):
        assert trace_of(text) is None
