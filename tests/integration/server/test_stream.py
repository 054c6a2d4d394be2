"""Section 3: the live streams, and that Last-Event-ID replays without gaps."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from counterfoil.engine.work import heartbeats as heartbeats_in_journal
from counterfoil.server import sse
from counterfoil.testing import Answer, StepEndpoint
from tests.eventually import elapsed, eventually
from tests.integration.scenario import PATH, STEP, dispatched
from tests.running import Node
from tests.sse import ServerSent, event_stream
from tests.store_reads import noted_reads
from tests.wire import Api, moment

pytestmark = pytest.mark.both_paths


async def test_a_flows_stream_is_its_journal(api: Api, endpoint: StepEndpoint) -> None:
    """What has happened comes first (asked for with Last-Event-ID 0), then what happens, in order and once."""
    flow_id, received = await dispatched(api, endpoint)
    async with event_stream(api.session, f"{api.url}/api/v1/flows/{flow_id}/stream", "0") as stream:
        first = await stream.until("work_acknowledged")
        await api.succeed(received, a=1)
        seen = first + await stream.until("flow_completed")
    journal = await api.events(flow_id)
    assert [(sent.event, sent.data["seq"]) for sent in seen] == [(event["type"], event["seq"]) for event in journal]
    for sent, event in zip(seen, journal, strict=True):
        assert sent.id == str(event["seq"])
        assert {name: sent.data[name] for name in ("type", "flow_id", "step_id", "work_id", "attempt", "data")} == {
            name: event[name] for name in ("type", "flow_id", "step_id", "work_id", "attempt", "data")
        }
        moment(sent.data["at"])
        assert received.token not in str(sent.data)


async def test_events_come_when_they_happen(api: Api, endpoint: StepEndpoint) -> None:
    """Not at the next tick of anything: a heartbeat is seen well within a second."""
    flow_id, received = await dispatched(api, endpoint)
    journal = await api.events(flow_id)
    async with event_stream(api.session, f"{api.url}/api/v1/flows/{flow_id}/stream", str(journal[-1]["seq"])) as stream:
        for progress in (0.1, 0.2, 0.3):
            (await api.post(received.metadata["heartbeat_url"], {"progress": progress})).ok()
            sent = await stream.next(within=1)
            assert (sent.event, sent.data["data"]["progress"]) == ("work_heartbeat", progress)


async def test_last_event_id_takes_up_where_it_was_left(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    url = f"{api.url}/api/v1/flows/{flow_id}/stream"
    async with event_stream(api.session, url, "0") as stream:
        seen = [await stream.next(), await stream.next()]
    (await api.post(received.metadata["heartbeat_url"], {})).ok()
    await api.succeed(received)
    async with event_stream(api.session, url, seen[-1].id) as stream:
        seen += await stream.until("flow_completed")
    assert [sent.data["seq"] for sent in seen] == [event["seq"] for event in await api.events(flow_id)]


@pytest.mark.parametrize("scope", ["flow", "all"])
async def test_no_gap_while_events_keep_coming(
    node: Node, api: Api, endpoint: StepEndpoint, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that reconnects again and again, under load, sees every event exactly once."""
    monkeypatch.setattr(heartbeats_in_journal, "BURST", 1000)
    flow_id, received = await dispatched(api, endpoint)
    url = f"{node.url}/api/v1/flows/{flow_id}/stream" if scope == "flow" else f"{node.url}/api/v1/stream"
    heartbeats = 150

    async def load() -> None:
        for number in range(heartbeats):
            (await api.post(received.metadata["heartbeat_url"], {"progress": number / heartbeats})).ok()
        await api.succeed(received)

    loading = asyncio.ensure_future(load())
    last, seen = "0", list[ServerSent]()
    async with aiohttp.ClientSession() as session:
        while not seen or seen[-1].event != "flow_completed":
            async with event_stream(session, url, last) as stream:
                for _ in range(7):
                    seen.append(await stream.next())
                    last = seen[-1].id
                    if seen[-1].event == "flow_completed":
                        break
    await loading
    assert [sent.data["seq"] for sent in seen] == [event["seq"] for event in await api.events(flow_id)]
    assert sum(sent.event == "work_heartbeat" for sent in seen) == heartbeats


async def test_the_stream_of_everything_shows_every_flow(api: Api, endpoint: StepEndpoint) -> None:
    endpoint.answer(PATH, Answer(body={"success": True}))
    await api.put_step(STEP, endpoint.url(PATH), kind="sync")
    async with event_stream(api.session, f"{api.url}/api/v1/stream", "0") as stream:
        flows = {await api.start(STEP) for _ in range(10)}
        done: set[str] = set()
        seqs = []
        while done != flows:
            sent = await stream.next()
            seqs.append(int(sent.id))
            if sent.event == "flow_completed":
                done.add(sent.data["flow_id"])
    assert seqs == sorted(set(seqs))


async def test_a_stream_shows_its_own_flow_only(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    async with event_stream(api.session, f"{api.url}/api/v1/flows/{flow_id}/stream", "0") as stream:
        _, other = await dispatched(api, endpoint)
        await api.succeed(other)
        await api.succeed(received)
        seen = await stream.until("flow_completed")
    assert {sent.data["flow_id"] for sent in seen} == {flow_id}


async def test_many_readers_that_go_away_do_no_harm(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    url = f"{api.url}/api/v1/flows/{flow_id}/stream"

    async def look() -> str:
        async with event_stream(api.session, url, "0") as stream:
            return (await stream.next()).event

    assert set(await asyncio.gather(*(look() for _ in range(30)))) == {"flow_started"}
    await api.succeed(received)
    assert (await api.final(flow_id))["status"] == "completed"
    await eventually(lambda: _healthy(api))


async def _healthy(api: Api) -> bool:
    return (await api.get("/readyz")).status == 200


@pytest.mark.either_store
@pytest.mark.parametrize("last", ["nonsense", "-1", "1.5", "9" * 40])
async def test_a_wrong_last_event_id(api: Api, endpoint: StepEndpoint, last: str) -> None:
    flow_id, _ = await dispatched(api, endpoint)
    headers = {"Last-Event-ID": last}
    reply = await api.request("GET", f"/api/v1/flows/{flow_id}/stream", headers=headers)
    reply.refused(422, "INVALID_INPUT")


# ------------------------------------------------------------------------------------------------ what it costs

JOURNAL_READS = {"journal_of_flow", "journal_after", "get_flow_result", "last_seq"}


@pytest.mark.parametrize("scope", ["flow", "all"])
async def test_a_stream_reads_when_there_is_something_to_show(
    node: Node, api: Api, endpoint: StepEndpoint, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each commit that brings it events; not for heartbeats that the journal leaves out, nor in silence."""
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.05)
    flow_id, received = await dispatched(api, endpoint)
    seen = str((await api.events(flow_id))[-1]["seq"])
    url = f"{node.url}/api/v1/flows/{flow_id}/stream" if scope == "flow" else f"{node.url}/api/v1/stream"
    with noted_reads(node.engine.engine.store) as reads:
        async with event_stream(api.session, url, seen) as stream:
            (await api.post(received.metadata["heartbeat_url"], {"progress": 0.1})).ok()
            assert (await stream.next()).event == "work_heartbeat"
            monkeypatch.setattr(heartbeats_in_journal, "BURST", 0)
            await elapsed(0.3)  # the first read may have shown it already, before the bell was heard
            before = [read for read in reads if read in JOURNAL_READS]
            for _ in range(5):
                (await api.post(received.metadata["heartbeat_url"], {"progress": 0.1})).ok()
            await elapsed(0.3)
            assert [read for read in reads if read in JOURNAL_READS] == before
            await api.succeed(received)
            await stream.until("flow_completed")
            if scope == "flow":
                with pytest.raises(EOFError):
                    await stream.next()
    after = [read for read in reads if read in JOURNAL_READS][len(before) :]
    assert after == ["journal_of_flow" if scope == "flow" else "journal_after"]
    events = await api.events(flow_id)
    assert sum(event["type"] == "work_heartbeat" for event in events) == 1


async def test_a_stream_goes_on_with_a_flow_that_was_redriven(api: Api, endpoint: StepEndpoint) -> None:
    """The journal alone says whether the flow is over: it had ended once when the stream began."""
    flow_id, received = await dispatched(api, endpoint)
    (await api.complete(received, {"success": False, "error": "broken"})).ok()
    (await api.post(f"/api/v1/flows/{flow_id}/redrive")).ok()
    again = await endpoint.received(PATH, 2)
    async with event_stream(api.session, f"{api.url}/api/v1/flows/{flow_id}/stream", "0") as stream:
        seen = await stream.until("flow_redriven") + await stream.until("work_dispatched")
        assert "flow_failed" in {sent.event for sent in seen}
        await api.succeed(again)
        seen += await stream.until("flow_completed")
        with pytest.raises(EOFError):
            await stream.next()
    assert [sent.data["seq"] for sent in seen] == [event["seq"] for event in await api.events(flow_id)]


async def test_the_stream_of_a_flow_that_has_ended_ends(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    await api.succeed(received)
    last = str((await api.events(flow_id))[-1]["seq"])
    for seen in ("0", last):
        async with event_stream(api.session, f"{api.url}/api/v1/flows/{flow_id}/stream", seen) as stream:
            if seen == "0":
                await stream.until("flow_completed")
            with pytest.raises(EOFError):
                await stream.next()
