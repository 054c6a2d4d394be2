"""Every route, with every status that it declares for success: the test client compares each answer with OpenAPI."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, cast

from counterfoil.server.app import api_routes
from counterfoil.testing import Answer, Received, StepEndpoint
from tests.contract import Exercised, published
from tests.eventually import eventually
from tests.integration.relays.test_relays import RELAY, pulled, reply
from tests.integration.scenario import PATH, STEP, dispatched
from tests.integration.subscribing import APPROVAL
from tests.running import Connect, StartNode
from tests.wire import JSON, Api

ROUTES = api_routes(cast(Any, None))
POLICY = {"name": "ask", "match": {"step_id": "wire*"}, "action": {"type": "require_approval", "reason": "money"}}
SCHEDULE = {"every_ms": 3_600_000, "flow": {"goals": [STEP]}}


class Tour:
    """Calls each route as a client would, in an order in which what it needs exists."""

    def __init__(self, api: Api, endpoint: StepEndpoint) -> None:
        self.api = api
        self.endpoint = endpoint

    async def ask(self, method: str, path: str, status: int = 200, json: Any = None, **params: str) -> Any:
        reply = await self.api.request(method, path, json=json, params=params)
        assert reply.status == status, reply.content
        return reply.body if reply.content and reply.headers["Content-Type"] == "application/json" else None

    async def steps_and_flows(self) -> None:
        flow_id, received = await dispatched(self.api, self.endpoint, work={"max_retries": 0})
        step = {"endpoint": self.endpoint.url(PATH), "work": {"jitter": False, "max_retries": 0}}
        await self.ask("PUT", f"/api/v1/steps/{STEP}", 200, step)
        await self.ask("PUT", "/api/v1/steps/spare", 201, step)
        await self.ask("GET", "/api/v1/steps")
        await self.ask("GET", f"/api/v1/steps/{STEP}")
        await self.ask("DELETE", "/api/v1/steps/spare", 204)
        await self.ask("POST", "/api/v1/plan", 200, {"goals": [STEP]})
        await self.ask("GET", f"/api/v1/flows/{flow_id}/result", 202, wait="0")
        await self.webhook(received)
        await self.ask("GET", f"/api/v1/flows/{flow_id}/result", wait="10")
        await self.ask("GET", f"/api/v1/flows/{flow_id}")
        await self.ask("GET", f"/api/v1/flows/{flow_id}/events")
        await self.ask("GET", f"/api/v1/flows/{flow_id}/stream")
        await self.ask("GET", "/api/v1/flows")
        await self.stream()

    async def webhook(self, received: Received) -> None:
        await self.ask("POST", f"{received.webhook_url}/heartbeat", 200, {"progress": 0.5})
        await self.ask("GET", received.webhook_url)
        await self.api.succeed(received, answer=42)
        _, other = await dispatched(self.api, self.endpoint)
        by_header = {**JSON, "Counterfoil-Receipt": other.token}
        address = other.webhook_url.rpartition("/")[0]
        reply = await self.api.request("POST", address, json={"success": True}, headers=by_header)
        reply.ok()

    async def stream(self) -> None:
        """The stream of all flows does not end, so it is read as far as its first events."""
        address = f"{self.api.url}/api/v1/stream"
        async with self.api.session.get(address, headers={"Last-Event-ID": "0"}) as response:
            content = await response.content.readuntil(b"\n\n") + await response.content.readuntil(b"\n\n")
        assert b"data: " in content
        published().check("GET", "/api/v1/stream", response.status, response.headers, content)

    async def failures(self) -> None:
        flow_id, received = await dispatched(self.api, self.endpoint)
        await self._fail(flow_id, received)
        [item] = (await self.ask("GET", "/api/v1/work?status=failed"))["work"]
        await self.ask("GET", f"/api/v1/work/{item['work_id']}")
        await self.ask("POST", "/api/v1/work/redrive", 200, {"dry_run": True})
        await self._fail(flow_id, await self._redriven(f"/api/v1/work/{item['work_id']}/redrive"))
        await self._redriven(f"/api/v1/flows/{flow_id}/redrive")
        await self.ask("POST", f"/api/v1/flows/{flow_id}/cancel")

    async def _fail(self, flow_id: str, received: Received) -> None:
        (await self.api.complete(received, {"success": False, "error": "no"})).ok()
        assert (await self.api.final(flow_id))["status"] == "failed"

    async def _redriven(self, path: str) -> Received:
        """The dispatch that follows from a redrive."""
        before = len(self.endpoint.requests(PATH))
        await self.ask("POST", path)
        return await self.endpoint.received(PATH, before + 1)

    async def schedules(self) -> None:
        for status in (201, 200):
            await self.ask("PUT", "/api/v1/schedules/hourly", status, SCHEDULE)
        await self.ask("GET", "/api/v1/schedules/hourly")
        await self.ask("GET", "/api/v1/schedules")
        await self.ask("DELETE", "/api/v1/schedules/hourly", 204)

    async def policies(self) -> None:
        for status in (201, 200):
            await self.ask("PUT", "/api/v1/policies/ask", status, POLICY)
        await self.ask("PUT", "/api/v1/policies/spare", 201, POLICY)
        await self.ask("DELETE", "/api/v1/policies/spare", 204)
        await self.ask("GET", "/api/v1/policies")
        await self.ask("GET", "/api/v1/policies/ask")
        await self.ask("GET", "/api/v1/policies/spare/versions")
        await self.ask("POST", "/api/v1/policies/test", 200, {"call": {"step_id": "wire"}})

    async def workflows(self) -> None:
        begin = {"workflow_name": "refund", "idempotency_key": "once"}
        for status in (201, 200):
            workflow_id = (await self.ask("POST", "/api/v1/workflows", status, begin))["workflow_id"]
        path = f"/api/v1/workflows/{workflow_id}"
        claim = {"step_input": {"a": 1}, "claim": {"lease_seconds": 60, "holder": "agent"}}
        await self.ask("POST", f"{path}/steps/look/gate", 200, claim)
        await self.ask("POST", f"{path}/steps/look/heartbeat", 200, {"holder": "agent", "lease_seconds": 60})
        await self.ask("POST", f"{path}/steps/look/complete", 204, {"output": {"found": True}})
        await self.ask("GET", f"{path}/steps/look")
        for verb in ("approve", "reject"):
            await self.ask("POST", f"{path}/steps/wire-{verb}/gate")
        await self.ask("GET", "/api/v1/workflows/approvals/pending")
        await self.ask("POST", f"{path}/steps/wire-approve/approve")
        await self.ask("POST", f"{path}/resume", 409)  # the other one is still to be decided
        await self.ask("POST", f"{path}/steps/wire-reject/reject", 200, {"reason": "no"})
        await self.ask("GET", path)
        await self.ask("GET", "/api/v1/workflows")
        for verb in ("resume", "complete", "fail", "abort"):
            other = (await self.ask("POST", "/api/v1/workflows", 201, {"workflow_name": verb}))["workflow_id"]
            await self.ask("POST", f"/api/v1/workflows/{other}/{verb}")
        await self.checkpoints()

    async def checkpoints(self) -> None:
        made = await self.ask("POST", "/api/v1/workflows", 201, {"workflow_name": "w"})
        path = f"/api/v1/workflows/{made['workflow_id']}"
        await self.ask("POST", f"{path}/checkpoints/resume", 409)
        await self.ask("POST", f"{path}/steps/look/gate")
        await self.ask("POST", f"{path}/steps/look/complete", 204, {"metadata": {"model": "m"}})
        [checkpoint] = (await self.ask("GET", f"{path}/checkpoints"))["checkpoints"]
        await self.ask("POST", f"{path}/abort")
        await self.ask("POST", f"{path}/checkpoints/resume")
        await self.ask("POST", f"{path}/checkpoints/{checkpoint['id']}/resume")

    async def approvals(self) -> None:
        await self.api.put_step("pay", self.endpoint.url("/pay"), kind="sync", **APPROVAL)
        for verb in ("approve", "reject"):
            flow_id = await self.api.start("pay")
            [approval] = (await self.ask("GET", "/api/v1/approvals", flow_id=flow_id))["approvals"]
            await self.ask("GET", f"/api/v1/approvals/{approval['approval_id']}")
            await self.ask("POST", f"/api/v1/approvals/{approval['approval_id']}/{verb}")

    async def reconciliations(self) -> None:
        self.endpoint.answer("/charge", Answer(500))
        step = {"kind": "sync", "effect": {"policy": "reconcile"}, "status_url": self.endpoint.url("/status")}
        await self.api.put_step("charge", self.endpoint.url("/charge"), **step)
        for outcome in ("applied", "failed", "not_applied"):
            flow_id = await self.api.start("charge", init_keys={"charge": f"order-{outcome}"})
            item = await self.api.until_work(flow_id, "not_completed", hold="reconcile")
            path = f"/api/v1/reconciliations/{item['work_id']}"
            await eventually(partial(self._is_probed, path), what="an answer of status_url")
            await self.ask("GET", "/api/v1/reconciliations", step="charge")
            await self.ask("GET", f"/api/v1/work/{item['work_id']}")
            await self.ask("POST", path, 200, {"outcome": outcome, "note": "looked"})
            await self.ask("GET", f"/api/v1/flows/{flow_id}/events")

    async def run_keys(self) -> None:
        await self.ask("PUT", "/api/v1/steps/once", 201, {"kind": "hook", "hook": {"token": "once"}})
        start = {"goals": ["once"], "idempotency_key": "order:7", "on_conflict": "adopt"}
        for status in (201, 200):
            await self.ask("POST", "/api/v1/flows", status, start)
        await self.ask("GET", "/api/v1/flows", key="order:7")

    async def effects(self) -> None:
        body = {"tool": "refund", "key": "order/7", "class": "irreversible", "holder": "agent", "ttl_seconds": 1}
        for status in (201, 200):
            await self.ask("POST", "/api/v1/effects", status, body)
        path = "/api/v1/effects/refund/order%2F7"
        await self.ask("GET", "/api/v1/effects", state="pending")
        await eventually(partial(self._has_lapsed, path), what="the end of the reservation")
        await self.ask("GET", "/api/v1/reconciliations", hold="irreversible")
        await self.ask("POST", f"{path}/settle", 200, {"outcome": "not_applied", "note": "looked"})
        await self.ask("POST", "/api/v1/effects", 201, {**body, "ttl_seconds": 60})
        await self.ask("POST", f"{path}/complete", 200, {"fence": 2, "success": True, "result": {"id": 1}})
        await self.ask("POST", "/api/v1/effects", 200, body)
        await self.ask("GET", path)
        failed = {**body, "key": "other", "ttl_seconds": 60}
        await self.ask("POST", "/api/v1/effects", 201, failed)
        error = {"fence": 1, "success": False, "error": {"code": "NO"}}
        await self.ask("POST", "/api/v1/effects/refund/other/complete", 200, error)
        await self.ask("GET", "/api/v1/effects")

    async def _has_lapsed(self, path: str) -> bool:
        return bool((await self.ask("GET", path))["lapsed"])

    async def _is_probed(self, path: str) -> bool:
        return (await self.ask("GET", path))["last_probe"] is not None

    async def hooks(self) -> None:
        await self.ask("PUT", "/api/v1/steps/vote", 201, {"kind": "hook", "hook": {"token": "vote", "collect": 2}})
        flow_id = await self.api.start("vote")
        await self.ask("GET", "/api/v1/hooks")
        await self.ask("GET", "/api/v1/hooks/vote")
        await self.ask("GET", f"/api/v1/flows/{flow_id}")
        for payload in ({"yes": True}, {"yes": False}):
            await self.ask("POST", "/api/v1/hooks/vote", 200, payload)

    async def callbacks(self) -> None:
        """Refused and accepted callbacks, replays of both kinds, and reports of an operator."""
        _, received = await dispatched(self.api, self.endpoint)
        reply = await self.api.request("POST", received.webhook_url, data=b"{", headers=JSON)
        reply.refused(422, "INVALID_RESULT")
        await self.api.succeed(received, answer=1)
        listed = (await self.ask("GET", "/api/v1/callbacks", limit="10"))["callbacks"]
        assert {"accepted", "INVALID_RESULT"} <= {each["verdict"] for each in listed}
        for each in listed:
            await self.ask("GET", f"/api/v1/callbacks/{each['callback_id']}")
        await self.ask("PUT", "/api/v1/steps/open", 201, {"kind": "hook", "hook": {"token": "open", "collect": 3}})
        flow_id = await self.api.start("open")
        await self.ask("POST", "/api/v1/hooks/open", 200, {"n": 1})
        (callback,) = (await self.ask("GET", "/api/v1/callbacks", flow=flow_id))["callbacks"]
        await self.ask("POST", f"/api/v1/callbacks/{callback['callback_id']}/replay", 200)
        work = await self.api.work(flow_id)
        await self.ask("POST", f"/api/v1/work/{work['work_id']}/payload", 200, {"n": 3})
        flow_id, _ = await dispatched(self.api, self.endpoint)
        work = await self.api.work(flow_id)
        await self.ask("POST", f"/api/v1/work/{work['work_id']}/complete", 200, {"success": True})

    async def relays(self) -> None:
        await self.ask("PUT", "/api/v1/steps/relayed", 201, {"kind": "sync", "endpoint": "relay://dev/work"})
        async with pulled(self.api) as stream:
            published().check("GET", RELAY, 200, stream.response.headers, b"")
            flow_id = await self.api.start("relayed")
            await reply(self.api, await stream.request(), body='{"success": true}')
            await self.api.final(flow_id)

    async def subscriptions(self) -> None:
        path = "/api/v1/subscriptions/ops"
        self.endpoint.answer("/told", *[Answer(503)] * 100)
        definition = {"url": self.endpoint.url("/told"), "events": ["flow.*"]}
        for status in (201, 200):
            await self.ask("PUT", path, status, definition)
        await self.ask("GET", path)
        await self.ask("GET", f"{path}/secret")
        await self.ask("GET", "/api/v1/subscriptions")
        delivery = await self.ask("POST", f"{path}/test", 202)
        await self.ask("GET", f"{path}/deliveries")
        await self.ask("POST", f"{path}/deliveries/{delivery['delivery_id']}/redeliver", 202)
        await self.ask("DELETE", path, 204)

    async def operations(self) -> None:
        await self.ask("GET", "/healthz")
        await eventually(self._is_ready, what="readiness")
        await self.ask("GET", "/metrics")

    async def _is_ready(self) -> bool:
        return (await self.api.get("/readyz")).status == 200

    async def refusals(self) -> None:
        """Ids that name nothing, parameters that there are not, and bodies that are no JSON."""
        for route in ROUTES:
            path = re.sub(r"\{\w+\}", "Nothing", route.path)
            body = None if route.request is None else b"{"
            params = {} if route.query is None else {"limit": "none", "wait": "none"}
            reply = await self.api.request(route.method, path, data=body, params=params, headers=JSON)
            assert reply.status >= 400 or path == route.path, (route.method, route.path)


async def test_every_route_answers_as_it_declares(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    api = connect(await start_node(callbacks={"keep_bodies": "all"}))
    tour = Tour(api, endpoint)
    with published().recorded() as seen:
        await tour.steps_and_flows()
        await tour.failures()
        await tour.schedules()
        await tour.policies()
        await tour.workflows()
        await tour.approvals()
        await tour.reconciliations()
        await tour.run_keys()
        await tour.effects()
        await tour.hooks()
        await tour.callbacks()
        await tour.relays()
        await tour.subscriptions()
        await tour.operations()
        await tour.refusals()
    declared = {Exercised(route.method, route.path, status) for route in ROUTES for status in route.answers}
    assert sorted(declared - seen) == []
