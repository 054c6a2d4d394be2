"""Streams and long polls on one node of what others commit: at once by word of mouth, and without it by looking."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from counterfoil.testing import Answer, StepEndpoint
from tests.eventually import elapsed, eventually
from tests.integration.scenario import PATH, STEP, dispatched
from tests.integration.several_nodes import (
    ONLY_BY_WORD,
    PROMPT_SECONDS,
    Connection,
    database_of,
    deafen,
    hand,
    hand_in_server,
    listeners,
    on,
    start_many,
    start_nodes,
    succeed,
)
from tests.journal import ENTRIES, events_of
from tests.running import Connect, Node, StartNode
from tests.sse import EventStream, ServerSent, event_stream
from tests.wire import Api

pytestmark = pytest.mark.postgresql_only

SLOW_COMMIT = 4_711
"""An advisory lock: while it is held, no commit adds to the journal of the flow ``slow``."""


def flow_stream(api: Api, flow_id: str, after: str | None = "0") -> contextlib.AbstractAsyncContextManager[EventStream]:
    return event_stream(api.session, f"{api.url}/api/v1/flows/{flow_id}/stream", after)


def stream_of_all(api: Api, after: str | None = None) -> contextlib.AbstractAsyncContextManager[EventStream]:
    return event_stream(api.session, f"{api.url}/api/v1/stream", after)


# ------------------------------------------------------------------------------------------------ at once


async def test_a_flows_stream_shows_at_once_what_another_node_commits(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    a, b, c = map(connect, await start_nodes(start_node, 3, **ONLY_BY_WORD))
    flow_id, received = await dispatched(a, endpoint)
    async with flow_stream(b, flow_id) as stream:
        seen = await stream.until("work_acknowledged")
        for number, api in enumerate((a, c, a, c)):
            (await api.post(on(api, received, "/heartbeat"), {"progress": number / 4})).ok()
            seen.append(await stream.next(within=PROMPT_SECONDS))
            assert (seen[-1].event, seen[-1].data["data"]["progress"]) == ("work_heartbeat", number / 4)
        await succeed(c, received)
        seen += await stream.until("flow_completed", within=PROMPT_SECONDS)
        with pytest.raises(EOFError):
            await stream.next(within=PROMPT_SECONDS)
    assert [sent.data["seq"] for sent in seen] == [event["seq"] for event in await a.events(flow_id)]


async def test_the_stream_of_all_shows_at_once_what_another_node_commits(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    a, b = map(connect, await start_nodes(start_node, 2, **ONLY_BY_WORD))
    await a.put_step(STEP, endpoint.url(PATH))
    async with stream_of_all(b) as stream:
        for number in range(3):
            flow_id = await a.start(STEP)
            seen = await stream.until("work_acknowledged", within=PROMPT_SECONDS)
            assert {sent.data["flow_id"] for sent in seen} == {flow_id}
            await succeed(a, await endpoint.received(PATH, number + 1))
            seen += await stream.until("flow_completed", within=PROMPT_SECONDS)
            assert [sent.data["seq"] for sent in seen] == [event["seq"] for event in await b.events(flow_id)]


async def test_many_flows_at_once_are_all_told(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    """More of them, and with longer names, than fit into one message: all that wait for any of them are woken."""
    a, b = map(connect, await start_nodes(start_node, 2, **ONLY_BY_WORD))
    release = asyncio.Event()
    endpoint.answer(PATH, Answer(body={"success": True}, until=release))
    await a.put_step(STEP, endpoint.url(PATH), kind="sync")
    names = [f"{number:03}-{'x' * 190}" for number in range(60)] + [f"short-{number}" for number in range(200)]
    await asyncio.gather(*(a.start(STEP, flow_id=name) for name in names))
    waiting = [asyncio.create_task(b.final(name, wait="30")) for name in names]
    await endpoint.received(PATH, 64)
    release.set()
    results = await asyncio.wait_for(asyncio.gather(*waiting), 3 * PROMPT_SECONDS)
    assert {result["status"] for result in results} == {"completed"}


# ------------------------------------------------------------------------------------------------ in order


async def test_nothing_is_missing_or_doubled_while_three_nodes_write(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """Two readers on two nodes, one of which comes and goes, see the whole journal in the order of its numbers."""
    nodes = await start_nodes(start_node, 3)
    apis = [connect(node) for node in nodes]
    endpoint.answer(PATH, Answer(body={"success": True}))
    await apis[0].put_step(STEP, endpoint.url(PATH), kind="sync")
    flows: list[str] = []
    done = asyncio.Event()

    async def steady() -> list[int]:
        seqs, ended = list[int](), set[str]()
        async with stream_of_all(apis[1], "0") as stream:
            while not (done.is_set() and ended.issuperset(flows)):
                sent = await stream.next(within=30)
                seqs.append(int(sent.id))
                if sent.event == "flow_completed":
                    ended.add(sent.data["flow_id"])
        return seqs

    async def restless() -> list[int]:
        seqs, ended, last = list[int](), set[str](), "0"
        turn = 0
        while not (done.is_set() and ended.issuperset(flows)):
            turn += 1
            async with stream_of_all(apis[turn % 3], last) as stream:
                for _ in range(25):
                    sent: ServerSent = await stream.next(within=30)
                    seqs.append(int(sent.id))
                    last = sent.id
                    if sent.event == "flow_completed":
                        ended.add(sent.data["flow_id"])
                    if done.is_set() and ended.issuperset(flows):
                        break
        return seqs

    readers = [asyncio.create_task(steady()), asyncio.create_task(restless())]
    for _ in range(6):
        for started in await asyncio.gather(*(start_many(api, STEP, 15) for api in apis)):
            flows += started
    done.set()
    async with hand(nodes[0]) as connection:
        seen = await asyncio.gather(*readers)
        journal = [event["seq"] for event in events_of(await connection.fetch(ENTRIES))]
    assert seen == [journal, journal]


async def test_what_commits_later_under_a_smaller_number_is_not_passed_over(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """One node draws its numbers first and commits last, in a transaction that is the younger of the two."""
    nodes = await start_nodes(start_node, 3)
    a, b, c = map(connect, nodes)
    await a.put_step(STEP, endpoint.url(PATH))
    for name in ("slow", "quick"):
        await a.start(STEP, flow_id=name)
        await a.until_acknowledged(name)
    slow, quick = endpoint.requests(PATH)
    async with slow_commits(nodes[0]) as commit_gate, hand(nodes[1]) as row_gate, stream_of_all(c) as stream:
        await row_gate.execute("BEGIN; SELECT 1 FROM flows WHERE flow_id = 'quick' FOR UPDATE")
        second = asyncio.create_task(succeed(b, quick))
        await eventually(lambda: waits(nodes[1], "tuple", "transactionid"), what="the older one, which must wait")
        first = asyncio.create_task(succeed(a, slow))
        await eventually(lambda: waits(nodes[0], "advisory"), what="the younger one, which cannot commit")
        await row_gate.execute("ROLLBACK")
        await second
        assert not first.done()
        with pytest.raises(TimeoutError):
            await stream.next(within=0.5)
        await commit_gate.execute("SELECT pg_advisory_unlock_all()")
        await first
        seen = await stream.until("flow_completed") + await stream.until("flow_completed")
    assert [sent.data["flow_id"] for sent in seen if sent.event == "flow_completed"] == ["slow", "quick"]
    numbers = [event["seq"] for name in ("slow", "quick") for event in (await a.events(name))[-3:]]
    assert [int(sent.id) for sent in seen] == numbers


async def test_what_stands_behind_a_number_that_is_never_used_is_not_held_up(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """A transaction that drew it is rolled back: no commit tells of that, so the stream looks again by itself."""
    node = await start_node(**ONLY_BY_WORD)
    api = connect(node)
    flow_id, received = await dispatched(api, endpoint)
    seen = (await api.events(flow_id))[-1]["seq"]
    async with hand(node) as connection, stream_of_all(api, str(seen)) as stream:
        await connection.execute(
            "BEGIN; SELECT pg_current_xact_id(), nextval(pg_get_serial_sequence('journal', 'seq'))"
        )
        await succeed(api, received)
        with pytest.raises(TimeoutError):
            await stream.next(within=0.5)
        await connection.execute("ROLLBACK")
        await stream.until("flow_completed", within=PROMPT_SECONDS)


@contextlib.asynccontextmanager
async def slow_commits(node: Node) -> AsyncIterator[Connection]:
    """Hold up what is told of the flow ``slow``, at its commit, until the connection gives its lock back."""
    async with hand(node) as connection:
        await connection.execute(f"""
            SELECT pg_advisory_lock({SLOW_COMMIT});
            CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_advisory_xact_lock({SLOW_COMMIT}); RETURN NULL; END $$;
            CREATE CONSTRAINT TRIGGER hold_up AFTER INSERT ON journal DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW WHEN (NEW.flow_id = 'slow') EXECUTE FUNCTION hold_up();
        """)
        yield connection


async def waits(node: Node, *kinds: str) -> bool:
    """Whether a transaction waits for a lock of one of these kinds."""
    async with hand(node) as connection:
        return bool(
            await connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
                "AND wait_event = ANY($1::text[])",
                kinds,
            )
        )


# ------------------------------------------------------------------------------------------------ without word


async def test_without_a_word_it_is_seen_by_looking(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """A node that hears nothing shows everything all the same, to streams and to polls that wait for a result."""
    nodes = await start_nodes(start_node, 2)
    a, b = map(connect, nodes)
    deafen(nodes[1])
    flow_id, received = await dispatched(a, endpoint)
    async with flow_stream(b, flow_id) as stream, stream_of_all(b) as everything:
        await stream.until("work_acknowledged")
        waiting = asyncio.create_task(b.final(flow_id, wait="30"))
        (await a.post(on(a, received, "/heartbeat"), {})).ok()
        assert [(await each.next(within=PROMPT_SECONDS)).event for each in (stream, everything)] == [
            "work_heartbeat",
            "work_heartbeat",
        ]
        await succeed(a, received)
        assert (await asyncio.wait_for(waiting, PROMPT_SECONDS))["status"] == "completed"
        for each in (stream, everything):
            await each.until("flow_completed", within=PROMPT_SECONDS)


async def test_what_a_node_did_before_it_left_is_seen(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """Though no word of it came, and though no other node is left when the nodes are counted again."""
    gone, stays = await start_nodes(start_node, 2)
    a, b = connect(gone), connect(stays)
    deafen(stays)
    flow_id, received = await dispatched(a, endpoint)
    async with flow_stream(b, flow_id) as stream:
        await stream.until("work_acknowledged")
        await succeed(a, received)
        await gone.stop()
        await stream.until("flow_completed", within=PROMPT_SECONDS)


async def test_a_lost_listener_comes_back(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    """While it is away the node sees by looking; once it is back it hears again."""
    hears, speaks = await start_nodes(start_node, 2)
    a, b = connect(hears), connect(speaks)
    flow_id, received = await dispatched(b, endpoint)
    heard = overheard(hears)
    async with flow_stream(a, flow_id) as stream, hand_in_server(hears) as server:
        await stream.until("work_acknowledged")
        async with no_more_connections(server, hears):
            for pid in await listeners(server, hears):
                await server.execute("SELECT pg_terminate_backend($1)", pid)
            await eventually(lambda: _count(server, hears, 0), what="the end of the listeners")
            heard.clear()
            (await b.post(on(b, received, "/heartbeat"), {})).ok()
            assert (await stream.next(within=PROMPT_SECONDS)).event == "work_heartbeat"
            assert heard == []
        await eventually(lambda: _count(server, hears, 2), what="both listeners again")
        (await b.post(on(b, received, "/heartbeat"), {})).ok()
        assert (await stream.next(within=PROMPT_SECONDS)).event == "work_heartbeat"
        await eventually(lambda: any(flow_id in message for message in heard), what="word of it")


def overheard(node: Node) -> list[str]:
    """What a node hears, besides hearing it."""
    heard: list[str] = []
    engine = node.engine.engine

    def both(message: str) -> None:
        heard.append(message)
        engine.peers._heard(message)

    engine.store.listen(both)
    return heard


async def _count(server: Connection, node: Node, count: int) -> bool:
    return len(await listeners(server, node)) == count


@contextlib.asynccontextmanager
async def no_more_connections(server: Connection, node: Node) -> AsyncIterator[None]:
    """The server accepts no more connections to the database of a node; those that are open stay."""
    await server.execute(f'ALTER DATABASE "{database_of(node)}" ALLOW_CONNECTIONS false')
    try:
        yield
    finally:
        await server.execute(f'ALTER DATABASE "{database_of(node)}" ALLOW_CONNECTIONS true')


async def test_word_from_strangers_does_no_harm(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """Another program may use the same channel, for whatever purpose."""
    nodes = await start_nodes(start_node, 2, **ONLY_BY_WORD)
    a, b = map(connect, nodes)
    flow_id, received = await dispatched(a, endpoint)
    async with hand(nodes[0]) as connection, flow_stream(b, flow_id) as stream:
        await stream.until("work_acknowledged")
        for text in ("", "hello", "[]", "null", "{}", '{"from": 1, "flows": 7, "steps": [], "due": 0}', '"\\u0000"'):
            await connection.execute("SELECT pg_notify('counterfoil', $1)", text)
        await elapsed(0.2)
        (await a.post(on(a, received, "/heartbeat"), {})).ok()
        assert (await stream.next(within=PROMPT_SECONDS)).event == "work_heartbeat"
