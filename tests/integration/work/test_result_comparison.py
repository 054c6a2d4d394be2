"""When two reports are the same result: canonical JSON, and only the fields that count."""

from __future__ import annotations

import orjson
import pytest

from counterfoil.testing import StepEndpoint
from tests.integration.scenario import dispatched
from tests.wire import JSON, Api

pytestmark = pytest.mark.both_paths

SAME = [
    ('{"success": true, "outputs": {"a": 1, "b": [1, 2]}}', '{"outputs":{"b":[1,2],"a":1},"success":true}'),
    ('{"success": true, "outputs": {"n": 1}}', '{"success": true, "outputs": {"n": 1.0}}'),
    ('{"success": true, "outputs": {"n": 100}}', '{"success": true, "outputs": {"n": 1e2}}'),
    ('{"success": true, "outputs": {"n": 0}}', '{"success": true, "outputs": {"n": -0.0}}'),
    ('{"success": true, "outputs": {"t": "\\u00e9\\/"}}', '{"success": true, "outputs": {"t": "é/"}}'),
    ('{"success": true}', '{"success": true, "outputs": {}}'),
    ('{"success": true, "outputs": {}}', '{"success": true, "error": null}'),
    ('{"success": true}', '{"success": true, "attempt": 7, "took_ms": 12, "retriable": false}'),
    ('{"success": false}', '{"success": false, "error": null, "retriable": false}'),
    ('{"success": false, "error": "x"}', '{"success": false, "error": "x", "outputs": {}, "trace": {"deep": [1]}}'),
]
DIFFERENT = [
    ('{"success": true, "outputs": {"n": 1}}', '{"success": true, "outputs": {"n": true}}'),
    ('{"success": true, "outputs": {"n": 1}}', '{"success": true, "outputs": {"n": "1"}}'),
    ('{"success": true, "outputs": {"n": [1, 2]}}', '{"success": true, "outputs": {"n": [2, 1]}}'),
    ('{"success": true, "outputs": {"n": null}}', '{"success": true, "outputs": {}}'),
    ('{"success": true}', '{"success": true, "error": ""}'),
    ('{"success": false, "error": "x"}', '{"success": false, "error": "X"}'),
    ('{"success": false, "error": "x"}', '{"success": false, "error": "x", "outputs": {"a": 1}}'),
    ('{"success": true, "outputs": {"t": "\\u00e9"}}', '{"success": true, "outputs": {"t": "e\\u0301"}}'),
]


@pytest.mark.parametrize(("first", "again"), SAME)
async def test_the_same_result_in_another_form(api: Api, endpoint: StepEndpoint, first: str, again: str) -> None:
    _, received = await dispatched(api, endpoint)
    (await api.request("POST", received.webhook_url, data=first.encode(), headers=JSON)).ok()
    code = "ALREADY_SUCCEEDED" if orjson.loads(first)["success"] else "ALREADY_FAILED"
    repeat = await api.request("POST", received.webhook_url, data=again.encode(), headers=JSON)
    assert repeat.refused(400, code)["same_result"] is True


@pytest.mark.parametrize(("first", "again"), DIFFERENT)
async def test_a_result_that_only_looks_the_same(api: Api, endpoint: StepEndpoint, first: str, again: str) -> None:
    _, received = await dispatched(api, endpoint)
    (await api.request("POST", received.webhook_url, data=first.encode(), headers=JSON)).ok()
    repeat = await api.request("POST", received.webhook_url, data=again.encode(), headers=JSON)
    assert repeat.refused(400, "CONFLICTING_RESULT")["same_result"] is False


@pytest.mark.parametrize("result", [{"success": True, "outputs": {"a": 1}}, {"success": False, "error": "x"}])
async def test_duplicate_status_200(api: Api, endpoint: StepEndpoint, result: dict[str, object]) -> None:
    """A step may ask for 200 on an identical repeat; another result is still refused with 400."""
    flow_id, received = await dispatched(api, endpoint, duplicate_status=200)
    first = (await api.complete(received, result)).ok()
    before = await api.events(flow_id)
    repeat = (await api.complete(received, result)).ok()
    assert repeat["verdict"] == "duplicate"
    assert {**repeat, "verdict": "accepted"} == first
    details = (await api.complete(received, {"success": True, "outputs": {"a": 2}})).refused(400, "CONFLICTING_RESULT")
    assert details["same_result"] is False
    assert await api.events(flow_id) == before


async def test_duplicate_status_200_does_not_excuse_a_cancelled_item(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint, duplicate_status=200)
    (await api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()
    (await api.complete(received, {"success": True})).refused(400, "WORK_CANCELLED")


async def test_unknown_fields_are_ignored_and_not_kept(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    result = {"success": True, "outputs": {"a": 1}, "took_ms": 12, "nested": {"x": [1, {"y": None}]}}
    assert (await api.complete(received, result)).ok()["status"] == "succeeded"
    assert (await api.final(flow_id))["outputs"] == {"a": 1}


async def test_large_integers_and_deep_values_come_back_as_they_were(api: Api, endpoint: StepEndpoint) -> None:
    """Amounts of money come in integers: every digit is kept."""
    flow_id, received = await dispatched(api, endpoint)
    content = b'{"success":true,"outputs":{"cents":123456789012345678,"deep":[[[{"a":"\\u0000\xc3\xa9"}]]],"f":0.1}}'
    (await api.request("POST", received.webhook_url, data=content, headers=JSON)).ok()
    reply = await api.get(f"/api/v1/flows/{flow_id}/result")
    assert reply.body["outputs"] == orjson.loads(content)["outputs"]
    assert b"123456789012345678" in reply.content


@pytest.mark.parametrize(
    ("outputs", "attribute"),
    [({"text": 5, "count": 1}, "text"), ({"count": 1}, "text"), ({"text": "x", "count": True}, "count"), ({}, "text")],
)
async def test_outputs_of_another_type_than_declared_are_recorded_as_failed(
    api: Api, endpoint: StepEndpoint, outputs: dict[str, object], attribute: str
) -> None:
    """200 with failed: the worker has nothing to repeat, and the flow says which attribute was wrong."""
    attributes = {"text": {"role": "output", "type": "string"}, "count": {"role": "output", "type": "number"}}
    flow_id, received = await dispatched(api, endpoint, attributes=attributes)
    result = {"success": True, "outputs": outputs}
    body = (await api.complete(received, result)).ok()
    assert (body["verdict"], body["status"]) == ("accepted", "failed")
    work, final = await api.work(flow_id), await api.final(flow_id)
    assert work["error"]["code"] == "INVALID_OUTPUT"
    assert attribute in orjson.dumps(work["error"]).decode()
    assert final["status"] == "failed"
    assert "INVALID_OUTPUT" in orjson.dumps(final["error"]).decode()
    assert attribute in orjson.dumps(final["error"]).decode()
    assert (await api.complete(received, result)).refused(400, "ALREADY_FAILED")["same_result"] is True
    (await api.complete(received, {"success": True, "outputs": {"text": "x", "count": 1}})).refused(
        400, "CONFLICTING_RESULT"
    )
