"""Section 1: what is refused before the state machine is asked, and that it leaves no trace."""

from __future__ import annotations

import gzip
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from counterfoil.app import StartFailure
from counterfoil.testing import StepEndpoint
from tests.integration.scenario import PATH, dispatched
from tests.running import Connect, Node, StartNode
from tests.wire import JSON, Api, Reply, signature_headers

pytestmark = pytest.mark.both_paths

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
RESULT = b'{"success": true, "outputs": {"a": 1}}'

INVALID = [
    (b"", ""),
    (b"{", ""),
    (b"not json", ""),
    (b"\xff\xfe", ""),
    (b'{"success": true, "outputs": {"a": "\xff"}}', ""),
    (b"null", ""),
    (b"[]", ""),
    (b'"text"', ""),
    (b"{}", "success"),
    (b'{"success": "true"}', "success"),
    (b'{"success": 1}', "success"),
    (b'{"success": null}', "success"),
    (b'{"outputs": {}}', "success"),
    (b'{"success": true, "outputs": []}', "outputs"),
    (b'{"success": true, "outputs": "text"}', "outputs"),
    (b'{"success": true, "outputs": 5}', "outputs"),
    (b'{"success": false, "error": 5}', "error"),
    (b'{"success": false, "error": {"message": "x"}}', "error"),
    (b'{"success": false, "retriable": "yes"}', "retriable"),
    (b'{"success": false, "retriable": true, "retry_after": -1}', "retry_after"),
    (b'{"success": false, "retriable": true, "retry_after": "soon"}', "retry_after"),
    (b'{"success": false, "attempt": 0}', "attempt"),
    (b'{"success": false, "attempt": "1"}', "attempt"),
    (b'{"success": false, "attempt": 1.5}', "attempt"),
    (b'{"success": true, "outputs": {"a": NaN}}', ""),
    (b'{"success": true, "outputs": {"a": 1e999}}', ""),
]


async def unchanged(api: Api, flow_id: str) -> None:
    """Nothing but the dispatch happened to the one work item of this flow."""
    assert (await api.work(flow_id))["status"] == "active"
    assert not {"work_succeeded", "work_failed", "work_not_completed"} & set(await api.event_types(flow_id))


@pytest.mark.either_store
@pytest.mark.parametrize(("content", "place"), INVALID)
async def test_not_a_step_result(api: Api, endpoint: StepEndpoint, content: bytes, place: str) -> None:
    """422 says where; the receipt stays good."""
    flow_id, received = await dispatched(api, endpoint)
    reply = await api.request("POST", received.webhook_url, data=content, headers=JSON)
    errors = reply.refused(422, "INVALID_RESULT")["errors"]
    assert errors
    assert place in orjson.dumps(errors).decode()
    assert received.token not in reply.content.decode()
    await unchanged(api, flow_id)
    assert (await api.succeed(received))["status"] == "succeeded"


@pytest.mark.either_store
@pytest.mark.parametrize(
    "media_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/octet-stream",
        "application/xml",
        "text/json",
        "nonsense",
    ],
)
async def test_another_media_type(api: Api, endpoint: StepEndpoint, media_type: str) -> None:
    flow_id, received = await dispatched(api, endpoint)
    reply = await api.request("POST", received.webhook_url, data=RESULT, headers={"Content-Type": media_type})
    reply.refused(415, "UNSUPPORTED_MEDIA_TYPE")
    await unchanged(api, flow_id)


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=utf-8", "APPLICATION/JSON", 'application/json;charset="UTF-8"']
)
async def test_json_with_parameters_is_json(api: Api, endpoint: StepEndpoint, media_type: str) -> None:
    _, received = await dispatched(api, endpoint)
    reply = await api.request("POST", received.webhook_url, data=RESULT, headers={"Content-Type": media_type})
    assert reply.ok()["status"] == "succeeded"


def result_of_size(size: int) -> bytes:
    """A StepResult of exactly so many bytes."""
    empty = b'{"success":true,"outputs":{"a":""}}'
    return b'{"success":true,"outputs":{"a":"' + b"x" * (size - len(empty)) + b'"}}'


async def in_chunks(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 16_384):
        yield content[start : start + 16_384]


async def test_a_compressed_body(api: Api, endpoint: StepEndpoint) -> None:
    """It is taken; one that is broken is malformed (400 would tell the worker that the state machine refuses it)."""
    flow_id, received = await dispatched(api, endpoint)
    headers = {**JSON, "Content-Encoding": "gzip"}
    broken = gzip.compress(RESULT)[:-12] + b"garbage!"
    (await api.request("POST", received.webhook_url, data=broken, headers=headers)).refused(422, "INVALID_RESULT")
    bomb = gzip.compress(b" " * 50_000_000)
    (await api.request("POST", received.webhook_url, data=bomb, headers=headers)).refused(413, "PAYLOAD_TOO_LARGE")
    await unchanged(api, flow_id)
    reply = await api.request("POST", received.webhook_url, data=gzip.compress(RESULT), headers=headers)
    assert reply.ok()["status"] == "succeeded"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, chunked: bool
) -> None:
    """413 with a declared length and with a chunked body; a body of exactly the limit is taken."""
    api = connect(await start_node(max_body_bytes=100_000))
    flow_id, received = await dispatched(api, endpoint)

    async def post(size: int) -> Reply:
        content = result_of_size(size)
        data: Any = in_chunks(content) if chunked else content
        return await api.request("POST", received.webhook_url, data=data, headers=JSON)

    (await post(100_001)).refused(413, "PAYLOAD_TOO_LARGE")
    (await post(1_000_000)).refused(413, "PAYLOAD_TOO_LARGE")
    await unchanged(api, flow_id)
    assert (await post(100_000)).ok()["status"] == "succeeded"


async def test_the_limit_is_one_mebibyte_by_default(api: Api, endpoint: StepEndpoint) -> None:
    _, received = await dispatched(api, endpoint)
    over = await api.request("POST", received.webhook_url, data=result_of_size(2**20 + 1), headers=JSON)
    over.refused(413, "PAYLOAD_TOO_LARGE")
    at = await api.request("POST", received.webhook_url, data=result_of_size(2**20), headers=JSON)
    assert at.ok()["status"] == "succeeded"


@pytest.fixture
async def signed_node(start_node: StartNode) -> Node:
    return await start_node(signing_secret=SECRET)


@pytest.fixture
async def signed_api(signed_node: Node, connect: Connect) -> Api:
    return connect(signed_node)


async def post_signed(api: Api, url: str, headers: dict[str, str]) -> Reply:
    return await api.request("POST", url, data=RESULT, headers={**JSON, **headers})


async def test_a_right_signature_is_accepted(signed_api: Api, endpoint: StepEndpoint) -> None:
    _, received = await dispatched(signed_api, endpoint, require_signature=True)
    reply = await post_signed(signed_api, received.webhook_url, signature_headers(SECRET, RESULT))
    assert reply.ok()["status"] == "succeeded"


async def test_one_right_signature_among_several_is_enough(signed_api: Api, endpoint: StepEndpoint) -> None:
    _, received = await dispatched(signed_api, endpoint, require_signature=True)
    right, wrong = signature_headers(SECRET, RESULT), signature_headers(OTHER_SECRET, RESULT)
    right["webhook-signature"] = f"{wrong['webhook-signature']} v1a,AAAA {right['webhook-signature']}"
    assert (await post_signed(signed_api, received.webhook_url, right)).ok()["status"] == "succeeded"


@pytest.mark.parametrize("age", [299 - 5, -(299 - 5)])
async def test_a_timestamp_within_five_minutes_is_accepted(signed_api: Api, endpoint: StepEndpoint, age: int) -> None:
    _, received = await dispatched(signed_api, endpoint, require_signature=True)
    headers = signature_headers(SECRET, RESULT, at=time.time() - age)
    assert (await post_signed(signed_api, received.webhook_url, headers)).ok()["status"] == "succeeded"


def _without(name: str) -> dict[str, str]:
    headers = signature_headers(SECRET, RESULT)
    del headers[name]
    return headers


BAD_SIGNATURES: dict[str, Callable[[], dict[str, str]]] = {
    "none": dict,
    "no id": lambda: _without("webhook-id"),
    "no timestamp": lambda: _without("webhook-timestamp"),
    "no signature": lambda: _without("webhook-signature"),
    "another secret": lambda: signature_headers(OTHER_SECRET, RESULT),
    "another body": lambda: signature_headers(SECRET, RESULT + b" "),
    "another id": lambda: {**signature_headers(SECRET, RESULT), "webhook-id": "msg_2"},
    "too old": lambda: signature_headers(SECRET, RESULT, at=time.time() - 310),
    "too new": lambda: signature_headers(SECRET, RESULT, at=time.time() + 310),
    "moved timestamp": lambda: {**signature_headers(SECRET, RESULT), "webhook-timestamp": str(int(time.time()) - 7)},
    "timestamp is not a number": lambda: {**signature_headers(SECRET, RESULT), "webhook-timestamp": "now"},
    "timestamp is huge": lambda: {**signature_headers(SECRET, RESULT), "webhook-timestamp": "9" * 400},
    "signature is no base64": lambda: {**signature_headers(SECRET, RESULT), "webhook-signature": "v1,!!!"},
    "signature without a version": lambda: {**signature_headers(SECRET, RESULT), "webhook-signature": "nonsense"},
    "empty signature": lambda: {**signature_headers(SECRET, RESULT), "webhook-signature": ""},
}


@pytest.mark.either_store
@pytest.mark.parametrize("case", BAD_SIGNATURES)
async def test_a_missing_or_wrong_signature(signed_api: Api, endpoint: StepEndpoint, case: str) -> None:
    """401, and the receipt stays good for a result that is signed."""
    flow_id, received = await dispatched(signed_api, endpoint, require_signature=True)
    reply = await post_signed(signed_api, received.webhook_url, BAD_SIGNATURES[case]())
    reply.refused(401, "INVALID_SIGNATURE")
    await unchanged(signed_api, flow_id)
    right = signature_headers(SECRET, RESULT)
    assert (await post_signed(signed_api, received.webhook_url, right)).ok()["status"] == "succeeded"


async def test_a_step_that_asks_for_no_signature_needs_none(signed_api: Api, endpoint: StepEndpoint) -> None:
    _, received = await dispatched(signed_api, endpoint)
    assert (await signed_api.succeed(received))["status"] == "succeeded"


async def test_a_signature_is_wanted_with_the_header_form_too(signed_api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(signed_api, endpoint, require_signature=True)
    headers = {"Counterfoil-Receipt": received.token}
    path = f"/webhook/{flow_id}/{received.metadata['step_id']}"
    (await post_signed(signed_api, path, headers)).refused(401, "INVALID_SIGNATURE")
    assert (await post_signed(signed_api, path, {**headers, **signature_headers(SECRET, RESULT)})).ok()


async def test_a_signing_secret_can_be_replaced_while_both_sides_run(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """Old, then both, then new: neither side is refused as long as it has a secret of that time."""
    for secrets, accepted in ((SECRET, [SECRET]), (f"{SECRET},{OTHER_SECRET}", [SECRET, OTHER_SECRET])):
        node = await start_node(signing_secret=secrets)
        for secret in accepted:
            _, received = await dispatched(connect(node), endpoint, require_signature=True)
            Webhook(secret).verify(received.content, dict(received.headers))
            reply = await post_signed(connect(node), received.webhook_url, signature_headers(secret, RESULT))
            assert reply.ok()["status"] == "succeeded"
        await node.stop()
    api = connect(await start_node(signing_secret=OTHER_SECRET))
    _, received = await dispatched(api, endpoint, require_signature=True)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(received.content, dict(received.headers))
    old = await post_signed(api, received.webhook_url, signature_headers(SECRET, RESULT))
    old.refused(401, "INVALID_SIGNATURE")
    assert (await post_signed(api, received.webhook_url, signature_headers(OTHER_SECRET, RESULT))).ok()


async def test_a_receipt_secret_can_be_rotated(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    """A receipt of the old secret stays good while the old secret is still listed, and not after it was given up."""
    node = await start_node(receipt_secrets="old-secret-0123456789abcdef")
    _, first = await dispatched(connect(node), endpoint)
    _, second = await dispatched(connect(node), endpoint)
    await node.stop()
    node = await start_node(receipt_secrets="new-secret-0123456789abcdef,old-secret-0123456789abcdef")
    api = connect(node)
    assert (await api.post(api.url + _path(first.webhook_url), {"success": True})).ok()["status"] == "succeeded"
    await node.stop()
    with pytest.raises(StartFailure, match="--new-receipt-secret"):
        await start_node(receipt_secrets="new-secret-0123456789abcdef")
    node = await start_node(receipt_secrets="new-secret-0123456789abcdef", new_receipt_secret=True)
    api = connect(node)
    (await api.post(api.url + _path(second.webhook_url), {"success": True})).refused(404, "UNKNOWN_RECEIPT")


async def test_receipt_secrets_are_made_when_none_is_configured(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """They are kept in the data directory, so that a receipt outlives a restart."""
    node = await start_node()
    _, received = await dispatched(connect(node), endpoint)
    await node.stop()
    api = connect(await start_node())
    assert (await api.post(api.url + _path(received.webhook_url), {"success": True})).ok()["status"] == "succeeded"
    assert len(endpoint.requests(PATH)) == 1


def _path(url: str) -> str:
    return "/" + url.split("/", 3)[3]
