"""Bodies as clients may send them: in chunks, compressed, after an expectation, of several types; and refusals."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from counterfoil.testing import Received, StepEndpoint
from tests.integration.clients.calls import JSON, Call
from tests.integration.clients.senders import Send, by_clients
from tests.integration.scenario import dispatched
from tests.running import Connect, StartNode
from tests.wire import Api

pytestmark = [pytest.mark.both_paths, pytest.mark.sqlite_only]

RESULT = json.dumps({"success": True, "outputs": {"a": 1}}).encode()
LIMIT = 20_000
TOO_LARGE = json.dumps({"success": True, "outputs": {"text": "x" * LIMIT}}).encode()


@pytest.fixture
async def api(start_node: StartNode, connect: Connect) -> Api:
    return connect(await start_node(max_body_bytes=LIMIT))


async def open_work(api: Api, endpoint: StepEndpoint, count: int) -> list[Received]:
    return [(await dispatched(api, endpoint))[1] for _ in range(count)]


@by_clients("chunked body")
async def test_a_body_in_chunks(api: Api, endpoint: StepEndpoint, send: Send) -> None:
    """Its length is not announced: the limit holds all the same."""
    [received] = await open_work(api, endpoint, 1)
    answers = await send(
        [
            Call("POST", received.webhook_url, body=RESULT, headers=JSON, chunked=True),
            Call("POST", f"{api.url}/api/v1/flows", body=b'{"goals": ["job"]}', headers=JSON, chunked=True),
        ]
    )
    assert answers[0].ok()["verdict"] == "accepted"
    answers[1].ok(201)


@by_clients("body over the limit, in chunks", but=["urllib.request"])  # it stops at the first failed write
async def test_a_body_in_chunks_over_the_limit(api: Api, endpoint: StepEndpoint, send: Send) -> None:
    [received] = await open_work(api, endpoint, 1)
    [refused] = await send([Call("POST", received.webhook_url, body=TOO_LARGE, headers=JSON, chunked=True)])
    refused.refused(413, "PAYLOAD_TOO_LARGE")


@by_clients("Expect: 100-continue", but=["Node fetch"])  # it refuses to send an expectation
async def test_a_body_after_an_expectation(api: Api, endpoint: StepEndpoint, send: Send) -> None:
    [received] = await open_work(api, endpoint, 1)
    answers = await send(
        [
            Call("POST", received.webhook_url, body=RESULT, headers=JSON, expect=True),
            Call("POST", f"{api.url}/api/v1/flows", body=b'{"goals": ["job"]}', headers=JSON, expect=True),
        ]
    )
    assert answers[0].ok()["verdict"] == "accepted"
    answers[1].ok(201)


TYPES = [
    "application/json; charset=utf-8",
    'application/json;charset="UTF-8"',
    "Application/JSON",
    "application/vnd.api+json",
    "application/cloudevents+json; charset=UTF-8",
    "application/problem+json",
]
OTHER_TYPES = {
    "text/plain": "+json",
    "application/x-www-form-urlencoded": "+json",
    "application/json; charset=iso-8859-1": "UTF-8",
    "application/vnd.api+json; charset=utf-16": "UTF-8",
    "application/jsonp": "+json",
    "+json": "+json",
}


@by_clients("JSON types and charsets")
async def test_types_of_bodies(api: Api, endpoint: StepEndpoint, send: Send) -> None:
    work = await open_work(api, endpoint, len(TYPES) + 1)
    good = [
        Call("POST", received.webhook_url, body=RESULT, headers={"Content-Type": media_type})
        for received, media_type in zip(work, TYPES, strict=False)
    ]
    flows = f"{api.url}/api/v1/flows"
    good_api = [
        Call("POST", flows, body=b'{"goals": ["job"]}', headers={"content-type": media_type}) for media_type in TYPES
    ]
    bad = [
        Call("POST", url, body=b"{}", headers={"Content-Type": media_type})
        for media_type in OTHER_TYPES
        for url in (work[-1].webhook_url, flows)
    ]
    answers = await send([*good, *good_api, *bad])
    assert [each.status for each in answers[: 2 * len(TYPES)]] == [200] * len(TYPES) + [201] * len(TYPES)
    hints = [hint for hint in OTHER_TYPES.values() for _ in range(2)]
    for refused, hint in zip(answers[2 * len(TYPES) :], hints, strict=True):
        assert hint in refused.refused(415, "UNSUPPORTED_MEDIA_TYPE")["message"]


CODINGS = {
    "gzip": gzip.compress,
    "GZIP": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "identity": lambda body: body,
}


@by_clients("gzip and deflate bodies")
async def test_compressed_bodies(api: Api, endpoint: StepEndpoint, send: Send) -> None:
    work = await open_work(api, endpoint, len(CODINGS))
    flows = f"{api.url}/api/v1/flows"
    answers = await send(
        [
            Call(
                "POST",
                received.webhook_url,
                body=CODINGS[coding](RESULT),
                headers={**JSON, "Content-Encoding": coding},
                chunked=coding == "deflate",
            )
            for received, coding in zip(work, CODINGS, strict=True)
        ]
        + [Call("POST", flows, body=gzip.compress(b'{"goals": ["job"]}'), headers={**JSON, "Content-Encoding": "gzip"})]
    )
    assert [each.status for each in answers] == [200] * len(CODINGS) + [201]


@by_clients("compressed bodies that are refused")
async def test_compressed_bodies_that_are_refused(api: Api, endpoint: StepEndpoint, send: Send) -> None:
    """Too large once decompressed, damaged, cut off, of an unknown coding: at the webhook and at the API alike."""
    [received] = await open_work(api, endpoint, 1)
    packed = gzip.compress(RESULT)
    damaged = packed[:12] + bytes([packed[12] ^ 0xFF]) + packed[13:]
    cases = [
        ("gzip", gzip.compress(TOO_LARGE), 413, "PAYLOAD_TOO_LARGE"),
        ("deflate", zlib.compress(TOO_LARGE), 413, "PAYLOAD_TOO_LARGE"),
        ("gzip", damaged, None, None),
        ("gzip", packed[:-6], None, None),
        ("deflate", RESULT, None, None),
        ("br", RESULT, 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("zstd", RESULT, 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("gzip, gzip", gzip.compress(packed), 415, "UNSUPPORTED_MEDIA_TYPE"),
    ]
    for url, status, code in (
        (received.webhook_url, 422, "INVALID_RESULT"),  # a 400 of the webhook would say: already recorded
        (f"{api.url}/api/v1/flows", 400, "BAD_REQUEST"),
    ):
        calls = [
            Call("POST", url, body=body, headers={**JSON, "Content-Encoding": coding}) for coding, body, _, _ in cases
        ]
        for answer, (_, _, other_status, other_code) in zip(await send(calls), cases, strict=True):
            answer.refused(other_status or status, other_code or code)
            if answer.status == 415:
                assert answer.headers["accept-encoding"] == "gzip, deflate, identity"
    assert (await api.work(received.metadata["flow_id"]))["status"] == "active"
