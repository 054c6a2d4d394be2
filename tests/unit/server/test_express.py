"""Which requests the express lane takes, however they are cut into pieces, and what becomes of the others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.server.fast_path.express import HELD_BYTES
from tests.unit.server.lane import PATH, Lane, Seen, framing, request, seen

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
COMPLETION = Seen("POST", PATH, b"{}", express=True)
ORDINARY = Seen("POST", PATH, b"{}")

CLIENTS = {
    "requests": [
        "User-Agent: python-requests/2.34.2",
        "Accept-Encoding: gzip, deflate",
        "Accept: */*",
        "Connection: keep-alive",
    ],
    "httpx": [
        "Accept: */*",
        "Accept-Encoding: gzip, deflate",
        "Connection: keep-alive",
        "User-Agent: python-httpx/0.28.1",
    ],
    "aiohttp": ["Accept: */*", "Accept-Encoding: gzip, deflate", "User-Agent: Python/3.11 aiohttp/3.14.5"],
    "Node": [
        "connection: keep-alive",
        "content-type: application/json",
        "accept: */*",
        "accept-language: *",
        "sec-fetch-mode: cors",
        "user-agent: node",
        "accept-encoding: gzip, deflate",
    ],
    "Go": ["User-Agent: Go-http-client/1.1", "Accept-Encoding: gzip"],
    "a charset": ["Content-Type: application/json; charset=utf-8"],
    "a quoted charset": ['Content-Type: application/json;charset="UTF-8"'],
    "another JSON type": ["Content-Type: application/cloudevents+json; charset=utf-8"],
    "an upper-case option": ["Connection: Keep-Alive"],
}
OTHERS = {
    "closing": ["Connection: close"],
    "two options": ["Connection: keep-alive, close"],
    "an upgrade": ["Connection: keep-alive, Upgrade", "Upgrade: h2c"],
    "another charset": ["Content-Type: application/json; charset=latin-1"],
    "another type": ["Content-Type: text/plain"],
    "an expectation": ["Expect: 100-continue"],
    "a coding": ["Content-Encoding: gzip"],
    "an unchanged coding": ["Content-Encoding: identity"],
}


@pytest.mark.parametrize("fields", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.parametrize("before", [b"", GET], ids=["first", "behind another request"])
async def test_what_clients_send_goes_by_the_lane(fields: list[str], before: bytes) -> None:
    """In one piece and in two, as the first request of a connection and behind those that aiohttp has parsed."""
    lane = Lane()
    if before:
        lane.receive(before)
        assert lane.handle()
    head, body = request(b"{}", *fields)
    for pieces in ((head + body,), (head, body), (head, body[:1], body[1:]), (head + body,)):
        lane.receive(*pieces)
        assert lane.answer(), pieces
    assert lane.seen[-4:] == [COMPLETION] * 4
    assert lane.bodies_begun == 2
    assert [answer.partition(b"\r\n")[0] for answer in lane.answers] == [b"HTTP/1.1 200 OK"] * 4
    assert {name.lower() for name in lane.headers[0]()} >= {field.partition(":")[0].lower() for field in fields}


@pytest.mark.parametrize("fields", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("before", [b"", GET], ids=["first", "behind another request"])
async def test_what_is_unusual_is_passed_on(fields: list[str], before: bytes) -> None:
    head, body = request(b"{}", *fields)
    for pieces in ((head + body,), (head, body)):
        lane = Lane()
        lane.receive(before)
        lane.finish()
        lane.receive(*pieces)
        assert lane.finish()[-1] == ORDINARY
        assert lane.bodies_begun == 0


@pytest.mark.parametrize("before", [b"", GET], ids=["first", "behind another request"])
async def test_a_body_is_waited_for_only_where_it_will_be_taken(before: bytes) -> None:
    """Unknown receipts and long bodies are passed on at once: they are answered before their body arrives."""
    unknown = request(b"{}", path="/webhook/flow/step/bad")
    longer = request(b" " * (HELD_BYTES + 1))
    over_the_limit = request(b"{}", length=200_000)
    for head, body in (unknown, longer, over_the_limit):
        lane = Lane()
        lane.receive(before)
        lane.finish()
        lane.receive(head)
        assert not lane.parser.awaits_body
        assert not lane.is_idle(), "passed on before its body has arrived"
        lane.receive(body)
        assert [each for each in lane.finish() if each.express] == []


@pytest.mark.parametrize("before", [b"", GET], ids=["first", "behind another request"])
async def test_a_body_that_is_refused_is_passed_on_whole(before: bytes) -> None:
    lane = Lane()
    lane.receive(before)
    lane.finish()
    head, body = request(b"!not a result")
    lane.receive(head, body[:3], body[3:])
    assert lane.finish()[-1] == Seen("POST", PATH, body)
    lane.receive(*request())
    assert lane.finish()[-1] == COMPLETION


@pytest.mark.parametrize("before", [b"", GET], ids=["first", "behind another request"])
async def test_what_follows_in_the_piece_that_ends_a_body(before: bytes) -> None:
    lane = Lane()
    lane.receive(before)
    lane.finish()
    head, body = request()
    lane.receive(head, body + GET + head, body)
    found = [(each.method, each.body) for each in lane.finish()]
    assert found[-3:] == [("POST", b"{}"), ("GET", b""), ("POST", b"{}")]


@pytest.mark.parametrize("before", [b"", GET], ids=["first", "behind another request"])
@pytest.mark.parametrize("arrived", [b"", b"{"])
async def test_a_body_that_does_not_arrive_is_no_longer_waited_for(before: bytes, arrived: bytes) -> None:
    """The request is passed on as it is, and no other one is kept on this connection."""
    lane = Lane()
    lane.receive(before)
    lane.finish()
    head, body = request()
    lane.receive(head, arrived)
    assert lane.parser.awaits_body
    assert lane.is_idle()
    lane.give_up()
    assert not lane.is_idle()
    lane.receive(body[len(arrived) :])
    assert lane.finish()[-1] == ORDINARY
    lane.receive(head, body)
    assert lane.bodies_begun == 1
    assert lane.finish()[-1] == ORDINARY


# ------------------------------------------------------------------------------------------------ framing

WHOLE = b"".join(request())
BODIES = (b"{}", b"!", b"!" + b"x" * 300, b'{"success": true}', GET, WHOLE, b"")
FIELDS = (
    *CLIENTS.values(),
    OTHERS["closing"],
    OTHERS["another type"],
    OTHERS["a coding"],
    ["Transfer-Encoding: chunked"],
    ["Content-Length: 2", "X-Note: 1", "content-length: 3"],
    [],
)
PATHS = (PATH, PATH, PATH, f"{PATH}?a=1", "/webhook/flow/step/bad", "/webhook/flow/step", "/other")
CHUNKS = b"2\r\n{}\r\n0\r\n\r\n"
CHUNKED = b"".join(request(CHUNKS, "Transfer-Encoding: chunked")).replace(b"Content-Length: 12\r\n", b"")
PLAIN = st.builds(
    lambda body, fields: list(request(body, *fields)),
    st.sampled_from([b"{}", b'{"success": true}', b"!"]),
    st.sampled_from([[], CLIENTS["requests"]]),
)
FRAGMENTS = st.one_of(
    PLAIN,
    PLAIN,
    st.builds(
        lambda body, fields, path: list(request(body, *fields, path=path)),
        st.sampled_from(BODIES),
        st.sampled_from(FIELDS),
        st.sampled_from(PATHS),
    ),
    st.sampled_from(
        [
            [GET],
            [CHUNKED],
            [b"GET / HTTP/1.1\r\nno header\r\n\r\n"],
            [b"GET / HTTP/1.1\r\nHost: ", WHOLE],
            [b"POST /other HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", b"0\r\n\r\n"],
        ]
    ),
)


@st.composite
def received(draw: st.DrawFn) -> list[bytes]:
    """Requests cut where clients cut them, between head and body, or anywhere; some pieces arrive together."""
    fragments = [piece for request in draw(st.lists(FRAGMENTS, min_size=1, max_size=6)) for piece in request if piece]
    pieces: list[bytes] = []
    for fragment in fragments:
        place = draw(st.sampled_from([0, 0, 0, 1, len(fragment) - 1]))
        for piece in (fragment[:place], fragment[place:]):
            if pieces and draw(st.sampled_from([True, False, False])):
                pieces[-1] += piece
            elif piece:
                pieces.append(piece)
    return pieces


@settings(max_examples=1000)
@given(pieces=received(), steps=st.lists(st.sampled_from(["receive", "handle", "answer", "both"]), max_size=60))
async def test_requests_begin_where_they_begin_for_aiohttp_alone(pieces: list[bytes], steps: list[str]) -> None:
    """However requests are cut, and whenever they are handled: the same requests, in the same order."""
    alone = framing()
    found: list[tuple[Any, Any]] = []
    for piece in pieces:
        found += alone.feed_data(piece)[0]
    lane = Lane()
    for step in steps:
        if step == "receive" and pieces:
            lane.receive(pieces.pop(0))
        elif step == "both":
            lane.finish()
        elif step == "handle":
            lane.handle()
        else:
            lane.answer()
    lane.receive(*pieces)
    understood = [Seen(each.method, each.path, each.body) for each in lane.finish()]
    whole = [seen(message, payload) for message, payload in found if payload.is_eof()]
    assert understood == whole
