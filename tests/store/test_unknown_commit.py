"""A commit whose answer is lost: the store asks the database for the outcome, and answers every command with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.engine.flows.cancel import Cancel
from counterfoil.engine.probe import Probe
from counterfoil.engine.steps import PutStep
from counterfoil.engine.work.complete import Beat, Complete, Completion
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.postgres.statements import COORDINATION
from counterfoil.store.postgres.store import PostgresStore
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.testing.simulator import StillClock
from tests.eventually import eventually
from tests.journal import ENTRIES
from tests.postgres import free_port
from tests.proxy import CommitFault, Proxy
from tests.store.backends import NewConnection, are_waiting, write
from tests.store.nodes import LEASE_MS, Node, add_item, register, success
from tests.store.records import DEFAULTS, NOW, RETRY, step_version

pytestmark = pytest.mark.postgresql_only

HOLDING: list[CommitFault] = ["answered"]
"""Faults after which the commit holds for certain."""
LOST: list[CommitFault] = ["lost"]
"""Faults after which it does not."""
EITHER: list[CommitFault] = ["forwarded"]


@pytest.fixture
def proxy(store: Store) -> Iterator[Proxy]:
    assert isinstance(store, PostgresStore)
    with Proxy(store.access.dsn) as proxy:
        yield proxy


@pytest.fixture
async def node(store: Store, proxy: Proxy, clock: StillClock) -> AsyncIterator[Node]:
    """A node that reaches the database by way of the proxy; ``store`` is the straight way, to see the truth."""
    await register(store)
    await add_item(store, "work")
    through = PostgresStore(proxy.dsn, clock, DEFAULTS)
    await through.open()
    node = Node("node", through, clock)
    await node.start()
    yield node
    await node.stop()
    await through.close()


def once(proxy: Proxy, fault: CommitFault, *, then_unreachable: bool = False) -> None:
    """Let the next commit meet with a fault, and only that one."""

    def on_commit() -> CommitFault | None:
        proxy.on_commit = lambda: None
        if then_unreachable:
            proxy.target = free_port()
        return fault

    proxy.on_commit = on_commit


async def told(store: Store) -> list[str]:
    return [row[1] for row in await store.read("journal_of_flow", flow_id="work", after=0, limit=99)]


LONG_WAY = Cancel("nobody")
"""A command that needs a whole flow takes its batch along the long way."""
ENDED = ["work_succeeded", "step_completed", "flow_completed"]


@pytest.mark.parametrize("fault", [*HOLDING, *LOST, *EITHER])
async def test_it_is_answered_by_what_the_database_holds(
    store: Store, proxy: Proxy, node: Node, fault: CommitFault
) -> None:
    """Where it holds, as done; where it does not, it is done again: either way once, and no caller notices."""
    once(proxy, fault)
    commands = (success("work"), success("unknown"), LONG_WAY)
    answers = await asyncio.gather(*(node.outcome(command) for command in commands))
    assert answers == ["accepted", "UNKNOWN_RECEIPT", "UNKNOWN_FLOW"]
    assert await told(store) == ENDED
    assert len(node.committed) == 1
    assert proxy.commits in {"answered": (1,), "lost": (2,), "forwarded": (1, 2)}[fault]
    assert await node.outcome(success("work")) == "ALREADY_SUCCEEDED"


@pytest.mark.parametrize("fault", [*HOLDING, *LOST, *EITHER])
async def test_it_is_the_same_on_the_short_way(store: Store, proxy: Proxy, node: Node, fault: CommitFault) -> None:
    """What this node remembers it writes by a single statement, which is its own commit."""
    assert await node.outcome(Beat("work", Heartbeat())) != "UNAVAILABLE"
    before = proxy.commits
    once(proxy, fault)
    assert await node.outcome(success("work")) == "accepted"
    assert await told(store) == ["work_heartbeat", *ENDED]
    assert len(node.committed) == 2
    # Asking after it is a commit as well, for it keeps the statement from coming too late.
    assert proxy.commits - before in {"answered": (2,), "lost": (3,), "forwarded": (2, 3)}[fault]
    assert await node.outcome(success("work")) == "ALREADY_SUCCEEDED"


@pytest.mark.parametrize("fault", [*HOLDING, *LOST])
async def test_while_the_database_cannot_be_asked_nothing_is_told_or_written(
    store: Store, proxy: Proxy, node: Node, fault: CommitFault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counterfoil.store.postgres.writer.DOUBT_SECONDS", 0.3)
    target = proxy.target
    once(proxy, fault, then_unreachable=True)
    assert await node.outcome(success("work", 1)) == "UNAVAILABLE"
    assert await told(store) == (ENDED if fault in HOLDING else [])
    assert await node.outcome(PutStep(step_version("other"))) == "UNAVAILABLE", "nothing before that is known"
    assert node.committed == []
    proxy.target = target
    answer = await eventually(lambda: available(node, success("work", 1)), what="the database")
    assert answer == ("ALREADY_SUCCEEDED" if fault in HOLDING else "accepted")
    assert await told(store) == ENDED
    followed = [event.type for unit in node.committed for event in unit.changes.events]
    assert followed == [EventType(kind) for kind in ENDED], "what held is acted upon, once"


async def available(node: Node, command: Complete) -> str | None:
    answer = await node.outcome(command)
    return None if answer == "UNAVAILABLE" else answer


async def test_only_the_very_entry_counts(store: Store, new_connection: NewConnection) -> None:
    """What another transaction wrote under the same number, after a failover say, is not what is looked for."""
    await write(store, Changes(events=[Event(EventType.WORK_HEARTBEAT, NOW, "flow", "step", "work", 1, {"n": 1})]))
    connection = await new_connection()
    [(seq, *rest)] = await connection.fetch(ENTRIES)
    entry = (*rest, seq)
    for number in (seq, None):
        assert await connection.fetchval(COORDINATION["find_entry"], *rest, number) == 1
    for place, other in enumerate(("other", None, NOW + 1, rest[3].replace('"n":1', '"n":2'), seq + 1)):
        changed = (*entry[:place], other, *entry[place + 1 :])
        assert await connection.fetchval(COORDINATION["find_entry"], *changed) == 0


SLOW_COMMITS = """
    CREATE FUNCTION hesitate() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON journal DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION hesitate()
"""
"""Every commit that tells the journal of something waits as long as the lock 1 is held."""


@pytest.mark.parametrize("end", ["commits", "dies"])
async def test_a_commit_that_is_still_under_way_is_waited_for(
    store: Store, proxy: Proxy, node: Node, new_connection: NewConnection, end: str
) -> None:
    """The connection is gone, but the server is still about to commit: what is not there yet may come, or may not."""
    holding, eye = await new_connection(), await new_connection()
    await eye.execute(SLOW_COMMITS)
    await holding.execute("SELECT pg_advisory_lock(1)")
    once(proxy, "forwarded")
    answering = asyncio.gather(node.outcome(success("work")), node.outcome(LONG_WAY))
    await eventually(lambda: are_waiting(eye, 2), what="the commit, and the question what became of it")
    assert not answering.done()
    if end == "dies":
        committing = "datname = current_database() AND query = 'COMMIT' AND state = 'active'"
        await eye.fetch(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {committing}")
    await holding.execute("SELECT pg_advisory_unlock(1)")
    assert (await answering)[0] == "accepted"
    assert await told(store) == ENDED
    assert proxy.commits == (1 if end == "commits" else 2), "it is done again only if it does not hold"


@pytest.mark.parametrize("fault", [*HOLDING, *LOST])
async def test_what_tells_the_journal_nothing_may_simply_be_done_again(
    store: Store, proxy: Proxy, node: Node, fault: CommitFault
) -> None:
    once(proxy, fault)
    assert await node.outcome(PutStep(step_version("other"))) == "UNAVAILABLE"
    assert await node.outcome(PutStep(step_version("other"))) == ("False" if fault in HOLDING else "True")
    assert len(await store.read("list_steps")) == 2


@pytest.mark.parametrize("fault", [*HOLDING, *LOST])
async def test_a_heartbeat_that_the_journal_leaves_out_may_be_sent_again(
    store: Store, proxy: Proxy, node: Node, fault: CommitFault
) -> None:
    """No entry tells whether it was written, and it does no harm twice: the worker is told to send it again."""
    assert await node.outcome(Beat("work", Heartbeat())) != "UNAVAILABLE"
    proxy.marks.append(b"left out")
    once(proxy, fault)
    left_out = Beat("work", Heartbeat(message="left out"), journaled=False)
    assert await node.outcome(left_out) == "UNAVAILABLE"
    assert await node.outcome(left_out) != "UNAVAILABLE"
    assert await told(store) == ["work_heartbeat"]
    assert await node.outcome(success("work")) == "accepted"


async def test_a_connection_that_breaks_before_the_commit_is_not_noticed(
    store: Store, proxy: Proxy, node: Node
) -> None:
    cuts: list[int] = []

    class CutOff(Complete):
        def decide(self, unit: UnitOfWork, now: int) -> Completion:
            if not cuts:
                cuts.append(proxy.cut())
            return super().decide(unit, now)

    assert await node.outcome(CutOff("work", StepResult(success=True), RETRY)) == "accepted"
    assert cuts[0] >= 1
    assert await told(store) == ENDED
    assert len(node.committed) == 1


async def test_connections_that_broke_while_unused_are_not_noticed(store: Store, proxy: Proxy, node: Node) -> None:
    await node.store.read("last_seq")
    proxy.cut()
    assert await node.store.read("last_seq") == [(0,)]
    assert await node.outcome(success("work")) == "accepted"
    assert await told(store) == ENDED


async def test_without_a_database_everything_is_unavailable_and_then_goes_on(
    store: Store, proxy: Proxy, node: Node
) -> None:
    proxy.refuse()
    for _ in range(3):
        assert await node.outcome(success("work")) == "UNAVAILABLE"
        assert await node.outcome(Probe()) == "UNAVAILABLE"
        with pytest.raises(StoreFailure):
            await node.store.read("last_seq")
        with pytest.raises(StoreFailure):
            await node.store.renew("node", LEASE_MS)
    proxy.admit()
    assert await eventually(lambda: available(node, success("work")), what="the database") == "accepted"
    assert await told(store) == ENDED
