"""What a hook step may be, and what its registration refuses, with the place."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.hooking import CONFIRMED, ORDER, put_hook
from tests.wire import Api


async def test_a_hook_is_shown_with_its_defaults(api: Api) -> None:
    document = (await put_hook(api)).ok(201)
    assert document["kind"] == "hook"
    assert document["endpoint"] is None
    assert document["hook"] == {
        "token": "order:{order_id}", "collect": 1, "until": None, "schema": None, "on_conflict": "fail",
        "on_timeout": "fail",
    }  # fmt: skip
    assert document["work"]["deadline_ms"] == 3_600_000
    assert (await api.get("/api/v1/steps/order")).ok() == document
    assert (await put_hook(api)).status == 200


@pytest.mark.either_store
@pytest.mark.parametrize(
    ("definition", "place"),
    [
        ({"hook": {"token": "order:{other}"}}, "hook.token"),
        ({"hook": {"token": "order:{confirmed}"}}, "hook.token"),
        ({"hook": {"token": "order:{order_id"}}, "hook.token"),
        ({"hook": {"token": "order:}"}}, "hook.token"),
        ({"hook": {"token": "order:{}"}}, "hook.token"),
        ({"hook": {"token": ""}}, "hook.token"),
        ({"hook": {"token": "\0"}}, "hook.token"),
        ({"hook": {"token": "x" * 256}}, "hook.token"),
        ({"hook": {"collect": 0}}, "hook.collect"),
        ({"hook": {"collect": 1001}}, "hook.collect"),
        ({"hook": {"collect": "2"}}, "hook.collect"),
        ({"hook": {"until": "payload +"}}, "hook.until"),
        ({"hook": {"until": "inputs.order_id == ''"}}, "hook.until"),
        ({"hook": {"until": "payloads.size()"}}, "hook.until"),
        ({"hook": {"until": "payloads == 'x'"}}, "hook.until"),
        ({"hook": {"schema": {"type": "nonsense"}}}, "hook.schema"),
        ({"hook": {"schema": 7}}, "hook.schema"),
        ({"hook": {"on_conflict": "reject"}}, "hook.on_conflict"),
        ({"hook": {"on_timeout": "retry"}}, "hook.on_timeout"),
        ({"hook": {"unknown": 1}}, "hook.unknown"),
        ({"endpoint": "http://worker/x"}, "endpoint"),
        ({"status_url": "http://worker/x"}, "status_url"),
        ({"cancel_url": "http://worker/x"}, "cancel_url"),
        ({"work": {"parallelism": 1}}, "work.parallelism"),
        ({"work": {"rate_limit": {"count": 1, "per_ms": 1}}}, "work.rate_limit"),
        ({"effect": {"policy": "dedupe"}}, "effect"),
        ({"effect": {"policy": "reconcile"}}, "effect"),
        ({"control": {"approval": {"reason": "x"}}}, "control.approval"),
        ({"flow": {"goals": ["x"]}}, "flow"),
        ({"attributes": {**ORDER, **CONFIRMED}, "hook": {"collect": 2}}, "attributes"),
        ({"attributes": {"order_id": {"role": "required", "type": "object"}}}, "hook.token"),
    ],
)
async def test_a_bad_definition_is_refused_with_its_place(api: Api, definition: dict[str, Any], place: str) -> None:
    details = (await put_hook(api, **definition)).refused(422, "INVALID_STEP")
    assert place in [error["place"] for error in details["errors"]], details


@pytest.mark.parametrize("kind", ["async", "sync", "flow"])
async def test_only_a_hook_has_a_hook(api: Api, kind: str) -> None:
    body = {"kind": kind, "endpoint": "http://worker/x", "hook": {"token": "x"}}
    details = (await api.request("PUT", "/api/v1/steps/x", json=body)).refused(422, "INVALID_STEP")
    assert {"hook", "endpoint", "flow"} & {error["place"] for error in details["errors"]}
    reply = await api.request("PUT", "/api/v1/steps/x", json={"kind": "hook"})
    assert reply.refused(422, "INVALID_STEP")["errors"][0]["place"] == "hook"


@pytest.mark.either_store
@pytest.mark.parametrize(
    ("token", "value", "given"),
    [
        ("{{{order_id}}}", "a", "{a}"),
        ("a{{b}}", "x", "a{b}"),
        ("{order_id}{order_id}", 7, "77"),
        ("{order_id}", 1.0, "1"),
        ("{order_id}", True, "true"),
        ("plain", "x", "plain"),
    ],
)
async def test_a_template_takes_texts_numbers_and_booleans(api: Api, token: str, value: Any, given: str) -> None:
    attributes = {"order_id": {"role": "required"}, **CONFIRMED}
    (await put_hook(api, hook={"token": token}, attributes=attributes)).ok(201)
    await api.start("order", init={"order_id": value})
    assert [hook["token"] for hook in (await api.get("/api/v1/hooks")).ok()["hooks"]] == [given]


@pytest.mark.parametrize("value", [None, [], {}, "0" * 32 + ".%41" + "A" * 42])
async def test_a_value_that_gives_no_token_fails_the_step(api: Api, value: Any) -> None:
    attributes = {"order_id": {"role": "required"}, **CONFIRMED}
    (await put_hook(api, hook={"token": "{order_id}"}, attributes=attributes)).ok(201)
    flow_id = await api.start("order", init={"order_id": value})
    if isinstance(value, str):
        assert (await api.flow(flow_id))["status"] == "active"  # the engine decodes nothing: it is no made token
        return
    result = await api.final(flow_id)
    assert (result["status"], result["error"]["code"]) == ("failed", "INVALID_INPUT")
    assert "order_id must be a string" in result["error"]["message"]
