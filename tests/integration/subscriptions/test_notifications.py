"""Subscribers are told over real HTTP: what happened, once, and signed with their own secret."""

from __future__ import annotations

import pytest

from counterfoil.testing import Answer, MovableClock, StepEndpoint
from tests.eventually import eventually
from tests.integration.planned import Workshop, gives, succeeded, takes
from tests.integration.several_nodes import hand, metric, start_nodes
from tests.integration.subscribing import Subscriber, pending_approval, review
from tests.running import Connect, StartNode
from tests.wire import Api


@pytest.fixture
def ops(api: Api, endpoint: StepEndpoint) -> Subscriber:
    return Subscriber(api, endpoint)


async def test_people_are_told_that_they_are_asked_and_what_was_decided(
    api: Api, endpoint: StepEndpoint, ops: Subscriber
) -> None:
    await ops.subscribe("approval.*")
    approval = await pending_approval(api, endpoint, init={"amount": 100})
    asked = await ops.told()
    assert (asked["type"], asked["timestamp"]) == ("approval.requested", approval["requested_at"])
    for name in ("approval_id", "flow_id", "step_id", "work_id", "attempt", "reason", "severity", "expires_at"):
        assert asked["data"][name] == approval[name], name
    assert asked["data"]["arguments"] == approval["arguments"]
    assert (await api.get(asked["data"]["path"])).ok()["approval_id"] == approval["approval_id"]
    await review(api, approval, "approve", comment="go on")
    decided = await ops.told(2)
    assert (decided["type"], decided["data"]["outcome"]) == ("approval.decided", "approved")
    assert decided["data"]["review"]["comment"] == "go on"
    await ops.all_told()
    assert len(ops.messages()) == 2


async def test_a_rejection_and_what_follows_from_it(api: Api, endpoint: StepEndpoint, ops: Subscriber) -> None:
    await ops.subscribe("approval.decided", "work.failed", "flow.*")
    await review(api, await pending_approval(api, endpoint), "reject", reason="no")
    await endpoint.received(ops.path, 4)
    await ops.all_told()
    told = {message["type"]: message["data"] for message in ops.messages()}
    assert ops.types() == ["approval.decided", "flow.failed", "flow.started", "work.failed"]
    assert told["approval.decided"]["outcome"] == "rejected"
    assert told["work.failed"]["error"]["code"] == "APPROVAL_REJECTED"


async def test_no_decision_in_time(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    ops = Subscriber(api, endpoint)
    await ops.subscribe("approval.expired")
    approval = await pending_approval(api, endpoint)
    clock.advance(hours=1)
    received = await endpoint.received(ops.path)  # its signature is of an hour from now
    assert received.body["type"] == "approval.expired"
    assert received.body["data"]["approval_id"] == approval["approval_id"]


async def test_an_approval_that_has_become_void(api: Api, endpoint: StepEndpoint, ops: Subscriber) -> None:
    await ops.subscribe("approval.void", "approval.decided")
    approval = await pending_approval(api, endpoint)
    (await api.post(f"/api/v1/flows/{approval['flow_id']}/cancel")).ok()
    void = await ops.told()
    assert (void["type"], void["data"]["approval_id"]) == ("approval.void", approval["approval_id"])
    await ops.all_told()
    assert len(ops.messages()) == 1


async def test_flow_step_and_work_events_each_arrive_once(shop: Workshop, ops: Subscriber) -> None:
    await ops.subscribe("flow.*", "step.completed", "work.succeeded")
    await shop.sync("first", {"x": gives()}, succeeded(x=1))
    await shop.sync("second", {"x": takes(), "y": gives()}, succeeded(y=2))
    flow = await shop.run("second", labels={"team": "a"})
    await shop.endpoint.received(ops.path, 6)
    await ops.all_told()
    told = ops.messages()
    assert {message["data"]["flow_id"] for message in told} == {flow["flow_id"]}
    assert ops.types() == ["flow.completed", "flow.started", *["step.completed"] * 2, *["work.succeeded"] * 2]
    ids = [received.headers["webhook-id"] for received in shop.endpoint.requests(ops.path)]
    assert len(set(ids)) == len(ids)
    assert await metric(shop.api, 'counterfoil_deliveries_total{outcome="delivered"}') == 6
    tokens = [received.token for received in shop.endpoint.requests("/first")]
    assert not [received for received in shop.endpoint.requests(ops.path) if tokens[0].encode() in received.content]


async def test_only_matching_subscriptions_are_told(api: Api, endpoint: StepEndpoint) -> None:
    mine, others, off, pays = (Subscriber(api, endpoint, name) for name in ("mine", "others", "off", "pays"))
    await mine.subscribe("flow.*", "work.*", match={"flow_labels": {"team": "a"}})
    await others.subscribe("*", match={"flow_labels": {"team": "b"}})
    await off.subscribe("*", enabled=False)
    await pays.subscribe("*", match={"step_id": "pa?"})
    endpoint.answer("/pay", succeeded())
    await api.put_step("pay", endpoint.url("/pay"), kind="sync")
    await api.final(await api.start("pay", labels={"team": "a", "more": "x"}))
    await endpoint.received(mine.path, 5)
    await pays.all_told()
    assert mine.types() == ["flow.completed", "flow.started", "work.created", "work.dispatched", "work.succeeded"]
    assert (others.messages(), off.messages()) == ([], [])
    assert {message["data"]["step_id"] for message in pays.messages()} == {"pay"}


async def test_a_blocked_agent_is_told_of(api: Api, ops: Subscriber) -> None:
    await ops.subscribe("gate.decided")
    policy = {"name": "no money", "action": {"type": "block", "reason": "not today"}}
    await api.request("PUT", "/api/v1/policies/no-money", json=policy)
    workflow = (await api.post("/api/v1/workflows", {"workflow_name": "pay"})).ok(201)["workflow_id"]
    (await api.post(f"/api/v1/workflows/{workflow}/steps/charge/gate", {"step_input": {"amount": 7}})).ok()
    data = (await ops.told())["data"]
    assert (data["decision"], data["reason"], data["policy_ids"]) == ("block", "not today", ["no-money"])


# When it does not go well ---------------------------------------------------------------------------------------------


async def test_retry_after_of_a_subscriber_is_honoured(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    clock = MovableClock()
    ops = Subscriber(connect(await start_node(clock)), endpoint)
    await ops.subscribe("flow.started")
    endpoint.answer(ops.path, Answer(status=503, headers={"Retry-After": "600"}), Answer(status=204))
    (await ops.api.post(f"{ops.url}/test")).ok(202)
    waiting = await ops.until_delivery(attempts=1, note="answered 503", status="pending")
    clock.advance(seconds=590)
    assert (await ops.deliveries())[0]["next_attempt_at"] == waiting["next_attempt_at"], "not before its time"
    clock.advance(seconds=11)
    second = await endpoint.received(ops.path, 2)
    first = endpoint.requests(ops.path)[0]
    assert second.headers["webhook-id"] == first.headers["webhook-id"] == waiting["delivery_id"]
    assert second.content == first.content
    assert int(second.headers["webhook-timestamp"]) - int(first.headers["webhook-timestamp"]) >= 600
    await ops.all_told()


async def test_what_was_given_up_is_kept_until_it_is_redelivered(endpoint: StepEndpoint, ops: Subscriber) -> None:
    await ops.subscribe("flow.started")
    endpoint.answer(ops.path, Answer(status=404), Answer())
    (await ops.api.post(f"{ops.url}/test")).ok(202)
    kept = await ops.until_delivery(status="given_up", attempts=1, note="answered 404", next_attempt_at=None)
    assert kept["message"]["type"] == "test"
    (await ops.api.post(f"{ops.url}/deliveries/{kept['delivery_id']}/redeliver")).ok(202)
    assert (await ops.told(2))["type"] == "test"
    await ops.all_told()
    again = await ops.api.post(f"{ops.url}/deliveries/{kept['delivery_id']}/redeliver")
    again.refused(404, "UNKNOWN_DELIVERY")


async def test_a_deleted_subscription_is_told_no_more(endpoint: StepEndpoint, ops: Subscriber) -> None:
    await ops.subscribe("flow.started")
    endpoint.answer(ops.path, Answer(status=410), Answer())
    (await ops.api.post(f"{ops.url}/test")).ok(202)

    async def disabled() -> bool:
        shown = (await ops.api.get(ops.url)).ok()
        return not shown["enabled"] and "410" in shown["note"]

    await eventually(disabled, what="a disabled subscription")
    [kept] = await ops.deliveries()
    for path in (f"{ops.url}/test", f"{ops.url}/deliveries/{kept['delivery_id']}/redeliver"):
        (await ops.api.post(path)).refused(409, "SUBSCRIPTION_DISABLED")
    assert (await ops.subscribe("flow.started", status=200))["note"] is None


async def test_the_inner_network_is_not_told_anything(ops: Subscriber) -> None:
    await ops.subscribe("flow.started", url="http://169.254.169.254/latest")
    (await ops.api.post(f"{ops.url}/test")).ok(202)
    kept = await ops.until_delivery(status="given_up", attempts=1)
    assert "169.254" not in kept["note"]


async def test_what_a_deleted_subscriber_was_to_be_told_is_forgotten(endpoint: StepEndpoint, ops: Subscriber) -> None:
    await ops.subscribe("flow.started")
    endpoint.answer(ops.path, Answer(status=404), Answer(status=503))
    for _ in range(2):
        (await ops.api.post(f"{ops.url}/test")).ok(202)
    await eventually(lambda: len(endpoint.requests(ops.path)) == 2, what="two calls")
    assert (await ops.api.request("DELETE", ops.url)).status == 204
    (await ops.api.get(f"{ops.url}/deliveries")).refused(404, "UNKNOWN_SUBSCRIPTION")
    await ops.subscribe("flow.started")
    assert await ops.deliveries() == []


# The API --------------------------------------------------------------------------------------------------------------


async def test_admins_change_and_readers_read(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    keys = {role: f"secret-of-the-{role}" for role in ("admin", "reviewer", "operator", "viewer")}
    api = connect(await start_node(api_keys=",".join(f"{role}:{role}:{key}" for role, key in keys.items())))
    admin, *others = (Api(api.session, api.url, {"Authorization": f"Bearer {key}"}) for key in keys.values())
    ops = Subscriber(admin, endpoint)
    document = await ops.subscribe("flow.*")
    (await api.get(ops.url)).refused(401, "UNAUTHENTICATED")
    for reader in others:
        shown = (await reader.get(ops.url)).ok()
        assert {**shown, "signing_secret": ops.secret} == document
        assert (await reader.get("/api/v1/subscriptions")).ok() == {"subscriptions": [shown], "next_cursor": None}
        (await reader.get(f"{ops.url}/deliveries")).ok()
        for method, path in (
            ("PUT", ops.url),
            ("DELETE", ops.url),
            ("POST", f"{ops.url}/test"),
            ("POST", f"{ops.url}/deliveries/x/redeliver"),
            ("GET", f"{ops.url}/secret"),
        ):
            (await reader.request(method, path)).refused(403, "FORBIDDEN")
    assert (await admin.get(f"{ops.url}/secret")).ok()["signing_secret"] == ops.secret


async def test_what_is_wrong_is_refused_with_its_place(api: Api, ops: Subscriber) -> None:
    wrong = {"url": "http://chat.test/", "events": ["flow.*", "flow.lost"]}
    details = (await api.request("PUT", ops.url, json=wrong)).refused(422, "INVALID_SUBSCRIPTION")
    assert details["errors"] == [{"place": "events.1", "message": "matches no event"}]
    refused = await api.request("PUT", "/api/v1/subscriptions/-", json={**wrong, "events": ["*"]})
    assert refused.refused(422, "INVALID_SUBSCRIPTION")["errors"][0]["place"] == "subscription_id"
    for method, path in (
        ("GET", ops.url),
        ("GET", f"{ops.url}/secret"),
        ("GET", f"{ops.url}/deliveries"),
        ("GET", "/api/v1/subscriptions/-"),
        ("DELETE", ops.url),
        ("POST", f"{ops.url}/test"),
        ("POST", f"{ops.url}/deliveries/x/redeliver"),
    ):
        (await api.request(method, path)).refused(404, "UNKNOWN_SUBSCRIPTION")
    (await api.get("/api/v1/subscriptions", cursor="-")).refused(422, "INVALID_INPUT")


async def test_lists_come_page_by_page(api: Api, endpoint: StepEndpoint) -> None:
    for name in ("a", "b", "c"):
        await Subscriber(api, endpoint, name).subscribe("flow.*")
    first = (await api.get("/api/v1/subscriptions", limit="2")).ok()
    second = (await api.get("/api/v1/subscriptions", limit="2", cursor=first["next_cursor"])).ok()
    found = [each["subscription_id"] for page in (first, second) for each in page["subscriptions"]]
    assert (found, second["next_cursor"]) == (["a", "b", "c"], None)
    endpoint.answer("/told-a", Answer(status=404))
    for _ in range(3):
        (await api.post("/api/v1/subscriptions/a/test")).ok(202)
    path = "/api/v1/subscriptions/a/deliveries"
    first = (await api.get(path, limit="2")).ok()
    second = (await api.get(path, limit="2", cursor=first["next_cursor"])).ok()
    assert (len(first["deliveries"]), len(second["deliveries"]), second["next_cursor"]) == (2, 1, None)


# Several nodes --------------------------------------------------------------------------------------------------------


@pytest.mark.postgresql_only
async def test_deleting_a_subscription_does_not_wait_for_a_delivery_in_flight(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    node = await start_node()
    ops = Subscriber(connect(node), endpoint)
    await ops.subscribe("flow.started")
    endpoint.answer(ops.path, Answer(status=404))
    (await ops.api.post(f"{ops.url}/test")).ok(202)
    await ops.until_delivery(status="given_up")
    async with hand(node) as other, other.transaction():
        await other.execute("SELECT * FROM deliveries FOR UPDATE")
        assert (await ops.api.request("DELETE", ops.url)).status == 204
        await other.execute("UPDATE deliveries SET due_at = 0")

    async def none_left() -> bool:
        async with hand(node) as looking:
            return not await looking.fetch("SELECT 1 FROM deliveries")

    await eventually(none_left, what="the end of deliveries without a subscription")
    assert len(endpoint.requests(ops.path)) == 1


@pytest.mark.postgresql_only
async def test_a_subscription_of_one_node_holds_for_what_happens_on_another(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    here, there = [connect(node) for node in await start_nodes(start_node, 2)]
    ops = Subscriber(here, endpoint)
    endpoint.answer("/pay", succeeded())
    await there.put_step("pay", endpoint.url("/pay"), kind="sync")
    await there.final(await there.start("pay"))
    await ops.subscribe("flow.*")
    flows = [await api.start("pay") for _ in range(8) for api in (here, there)]
    await endpoint.received(ops.path, 2 * len(flows))
    await ops.all_told()
    told = [(message["data"]["flow_id"], message["type"]) for message in ops.messages()]
    wanted = [(flow_id, kind) for flow_id in flows for kind in ("flow.started", "flow.completed")]
    assert sorted(told) == sorted(wanted), "each once"
    assert await metric(there, 'counterfoil_deliveries_total{outcome="delivered"}') > 0
