from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from standardwebhooks import Webhook

from counterfoil.client import Backoff, InvalidDispatch, Receipt, Reporter, ReportRefused, ReportUndelivered
from counterfoil.client.reports import LONGEST_ERROR
from tests.unit.canned_engine import CannedEngine, Reply, error

TOKEN = "wk_1.c3VwZXJzZWNyZXQ"
WEBHOOK = f"/webhook/f-1/resize/{TOKEN}"
ACCEPTED = Reply(200, {"verdict": "accepted", "status": "succeeded"})


@pytest.fixture
async def engine() -> AsyncIterator[CannedEngine]:
    async with CannedEngine() as running:
        yield running


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


def dispatch(url: str, **changes: Any) -> dict[str, Any]:
    metadata = {
        "flow_id": "f-1",
        "step_id": "resize",
        "receipt_token": TOKEN,
        "webhook_url": f"{url}{WEBHOOK}",
        "heartbeat_url": f"{url}{WEBHOOK}/heartbeat",
        "attempt": 2,
        "max_attempts": 6,
        "idempotency_key": "key-1",
        "deadline_at": "2026-11-16T14:26:10.123Z",
        "tenant": "acme",
    }
    return {"arguments": {"width": 640}, "metadata": {**metadata, **changes}}


class Naps:
    """Stands for the clock: remembers how long each wait would have been."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


@pytest.fixture
def naps() -> Naps:
    return Naps()


@pytest.fixture
def reporter(engine: CannedEngine, session: aiohttp.ClientSession, naps: Naps) -> Reporter:
    return Reporter(session, Receipt.from_request(dispatch(engine.url)), backoff=Backoff(tries=4), sleep=naps)


def test_a_receipt_holds_what_the_endpoint_was_sent() -> None:
    receipt = Receipt.from_request(dispatch("http://e"))
    assert (receipt.flow_id, receipt.step_id, receipt.attempt, receipt.max_attempts) == ("f-1", "resize", 2, 6)
    assert receipt.idempotency_key == "key-1"
    assert receipt.arguments == {"width": 640}
    assert receipt.webhook_url == f"http://e{WEBHOOK}"
    assert receipt.metadata["tenant"] == "acme"


def test_a_call_that_undoes_has_what_the_step_gave() -> None:
    undoing = {**dispatch("http://e", compensating=True), "outputs": {"payment": 7}}
    assert Receipt.from_request(undoing).outputs == {"payment": 7}
    assert Receipt.from_request({**undoing, "outputs": {}}).outputs == {}
    assert Receipt.from_request({**dispatch("http://e"), "outputs": {"payment": 7}}).outputs is None


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"no json", "not JSON"),
        (b"[1]", "no metadata"),
        (b'{"metadata": {"flow_id": "f"}}', "no step_id"),
        ({"metadata": {"flow_id": "f", "step_id": "s", "attempt": "x", "idempotency_key": "k"}}, "right type"),
    ],
)
def test_what_is_no_dispatch_is_refused(body: Any, complaint: str) -> None:
    with pytest.raises(InvalidDispatch, match=complaint):
        Receipt.from_request(body)


def test_no_repr_shows_the_token(reporter: Reporter) -> None:
    for text in (repr(reporter), repr(reporter.receipt), str(reporter.receipt), f"{reporter.receipt}"):
        assert TOKEN not in text
        assert "f-1" in text


async def test_a_success_carries_outputs_and_attempt(engine: CannedEngine, reporter: Reporter) -> None:
    engine.reply(f"POST {WEBHOOK}", ACCEPTED)
    verdict = await reporter.succeed({"file": "small.png"})
    assert (verdict.outcome, verdict.status, verdict.recorded, verdict.deliveries) == ("accepted", "succeeded", True, 1)
    assert engine.asked[0].body == {"success": True, "outputs": {"file": "small.png"}, "attempt": 2}


async def test_a_failure_is_cut_to_what_the_engine_takes(engine: CannedEngine, reporter: Reporter) -> None:
    engine.reply(f"POST {WEBHOOK}", Reply(200, {"verdict": "accepted", "status": "failed"}))
    assert (await reporter.fail("x" * 100_000)).status == "failed"
    assert engine.asked[0].body == {"success": False, "error": "x" * LONGEST_ERROR, "attempt": 2}


async def test_work_is_given_back_with_a_time(engine: CannedEngine, reporter: Reporter) -> None:
    engine.reply(f"POST {WEBHOOK}", Reply(200, {"verdict": "stale", "status": "active"}))
    assert (await reporter.not_completed("busy", retry_after=30)).outcome == "stale"
    assert engine.asked[0].body == {
        "success": False,
        "error": "busy",
        "retriable": True,
        "retry_after": 30,
        "attempt": 2,
    }


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Reply(200, {"verdict": "duplicate", "status": "succeeded"}), "duplicate"),
        (error(400, "ALREADY_SUCCEEDED", same_result=True, status="succeeded"), "duplicate"),
        (error(400, "ALREADY_FAILED", same_result=True, status="failed"), "duplicate"),
        (error(400, "CONFLICTING_RESULT", same_result=False, status="succeeded"), "refused"),
        (error(400, "WORK_CANCELLED", status="cancelled"), "refused"),
        (error(400, "WORK_NOT_ACTIVE", status="pending"), "refused"),
        (error(404, "UNKNOWN_RECEIPT"), "refused"),
        (error(413, "PAYLOAD_TOO_LARGE"), "refused"),
        (error(422, "INVALID_RESULT"), "refused"),
        (Reply(307, None, {"Location": "http://elsewhere/"}), "refused"),
    ],
)
async def test_what_is_final_is_not_tried_again(
    engine: CannedEngine, reporter: Reporter, naps: Naps, reply: Reply, outcome: str
) -> None:
    engine.reply(f"POST {WEBHOOK}", reply)
    verdict = await reporter.succeed()
    assert verdict.outcome == outcome
    assert verdict.recorded is (outcome == "duplicate")
    if reply.status != 200:
        assert verdict.code == (reply.body["error"]["code"] if reply.body else "HTTP_307")
    assert len(engine.asked) == 1
    assert naps.taken == []


async def test_faults_are_tried_again_with_growing_pauses(engine: CannedEngine, reporter: Reporter, naps: Naps) -> None:
    engine.reply(f"POST {WEBHOOK}", Reply(500, b"<html>"), Reply(cut=True), Reply(429), ACCEPTED)
    verdict = await reporter.succeed()
    assert (verdict.outcome, verdict.deliveries) == ("accepted", 4)
    assert [0.25 <= naps.taken[0] <= 0.5, 0.5 <= naps.taken[1] <= 1, 1 <= naps.taken[2] <= 2] == [True] * 3
    assert len({str(asked.body) for asked in engine.asked}) == 1


async def test_retry_after_is_waited_for(engine: CannedEngine, reporter: Reporter, naps: Naps) -> None:
    date = {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}
    engine.reply(
        f"POST {WEBHOOK}",
        error(503, "UNAVAILABLE", headers={"Retry-After": "17"}),
        error(503, "UNAVAILABLE", headers=date),
        error(503, "UNAVAILABLE", headers={"Retry-After": "soon"}),
        ACCEPTED,
    )
    await reporter.succeed()
    assert naps.taken[0] == 17
    assert naps.taken[1] == Backoff().retry_after_limit
    assert naps.taken[2] <= 2


async def test_a_result_that_was_recorded_before_the_answer_got_lost_is_a_duplicate(
    engine: CannedEngine, reporter: Reporter
) -> None:
    engine.reply(f"POST {WEBHOOK}", Reply(cut=True), error(400, "ALREADY_SUCCEEDED", same_result=True))
    verdict = await reporter.succeed()
    assert verdict.recorded
    assert verdict.deliveries == 2


@pytest.mark.parametrize("reply", [Reply(503), Reply(cut=True)])
async def test_giving_up_is_an_error_that_does_not_show_the_token(
    engine: CannedEngine, reporter: Reporter, reply: Reply, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    engine.reply(f"POST {WEBHOOK}", reply)
    with pytest.raises(ReportUndelivered, match="gave up after 4 deliveries") as caught:
        await reporter.succeed()
    assert len(engine.asked) == 4
    assert TOKEN not in str(caught.value)
    assert TOKEN not in caplog.text
    assert "f-1" in caplog.text


async def test_an_address_that_is_none_does_not_show_the_token(
    session: aiohttp.ClientSession, naps: Naps, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    receipt = Receipt.from_request(dispatch("", webhook_url=f"http://[broken/{TOKEN}"))
    with pytest.raises(ReportUndelivered) as caught:
        await Reporter(session, receipt, backoff=Backoff(tries=1), sleep=naps).succeed()
    assert TOKEN not in f"{caught.value} {caught.value.__cause__} {caught.value.__context__} {caplog.text}"


@pytest.mark.parametrize(
    ("reply", "stop"),
    [
        (Reply(200, {"deadline_at": "2026-11-16T14:26:10.123Z", "cancel_requested": False}), False),
        (Reply(200, {"deadline_at": None, "cancel_requested": True}), True),
        (error(400, "ALREADY_SUCCEEDED"), True),
        (error(404, "UNKNOWN_RECEIPT"), True),
    ],
)
async def test_a_heartbeat_tells_whether_to_stop(
    engine: CannedEngine, reporter: Reporter, reply: Reply, stop: bool
) -> None:
    engine.reply(f"POST {WEBHOOK}/heartbeat", reply)
    assert await reporter.heartbeat(0.4, "almost half") is stop
    assert engine.asked[0].body == {"progress": 0.4, "message": "almost half"}


async def test_a_heartbeat_may_say_nothing_but_that_it_lives(engine: CannedEngine, reporter: Reporter) -> None:
    engine.reply(f"POST {WEBHOOK}/heartbeat", Reply(200, {"cancel_requested": False}))
    await reporter.heartbeat()
    assert engine.asked[0].body == {}


async def test_a_wrong_heartbeat_is_an_error(engine: CannedEngine, reporter: Reporter) -> None:
    engine.reply(f"POST {WEBHOOK}/heartbeat", error(422, "INVALID_RESULT", "progress: must be at most 1"))
    with pytest.raises(ReportRefused, match="INVALID_RESULT: progress"):
        await reporter.heartbeat(7)


async def test_reports_are_signed_on_request(engine: CannedEngine, session: aiohttp.ClientSession) -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    engine.reply(f"POST {WEBHOOK}", ACCEPTED)
    receipt = Receipt.from_request(dispatch(engine.url))
    await Reporter(session, receipt, signing_secret=secret).succeed({"a": 1})
    sent = {name.lower(): value for name, value in engine.asked[0].headers.items()}
    assert Webhook(secret).verify('{"success":true,"outputs":{"a":1},"attempt":2}', sent)


async def test_a_sync_step_has_nothing_to_report_to(session: aiohttp.ClientSession) -> None:
    receipt = Receipt.from_request(dispatch("", webhook_url=None, heartbeat_url=None))
    with pytest.raises(InvalidDispatch, match="sync step"):
        await Reporter(session, receipt).succeed()
    assert await Reporter(session, receipt).heartbeat() is False
