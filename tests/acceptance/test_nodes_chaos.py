"""Three nodes on one PostgreSQL, killed and restarted under load: every answer that a client got stays true.

Every second a node is killed (kill -9) or paused for longer than its lease, and now and then the database restarts or
crashes. ``CHAOS_CYCLES`` says how many seconds (6 by default), ``TEST_SEED`` repeats a run as far as timing allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from counterfoil.testing import StepEndpoint
from tests.acceptance.chaos import Chaos, load
from tests.acceptance.conftest import QUICK
from tests.acceptance.fleet import Fleet
from tests.acceptance.follower import following
from tests.acceptance.ledger import compare
from tests.acceptance.ownership import open_work, read_ownership
from tests.acceptance.processes import EngineProcess, run_command
from tests.databases import NewCluster
from tests.eventually import elapsed
from tests.postgres import Cluster
from tests.seeds import announce

CYCLES = int(os.environ.get("CHAOS_CYCLES", "6"))
NODES = 3
CUSTOMERS = 24
LEASE_MS = 1_200
DATABASE = "chaos"
SECONDS_TO_THE_END = 60.0
CYCLES_PER_RESTART = 4
"""The database restarts in every fourth cycle, and a short run still sees it twice."""
PAUSES_PER_OVERTAKEN = 50
"""One attempt in fifty pauses may arrive behind its successor; usually none does.

A sender looks at its lease, then writes to the socket. If it is stopped between the two, and goes on when its lease has
lapsed and another node has sent the next attempt, its own still leaves. No sender can close that window by itself: only
the receiver can tell, by ``metadata.attempt``, which counts up and so is the fencing token of endpoints that need one.
More must not be allowed: senders that never looked at their lease would be seen only once in a dozen pauses.
"""


@pytest.mark.chaos
@pytest.mark.postgresql_only
@pytest.mark.timeout(150 + 6 * CYCLES)
async def test_no_node_is_needed(new_cluster: NewCluster, endpoint: StepEndpoint, tmp_path: Path) -> None:
    seed = announce(CHAOS_CYCLES=CYCLES)
    cluster = new_cluster(fsync=True)
    await cluster.create_database(DATABASE)
    nodes = [new_node(tmp_path / f"node-{number}", cluster) for number in range(1, NODES + 1)]
    fleet = Fleet(nodes, cluster, LEASE_MS, random.Random(seed + 1))
    async with load(endpoint, seed) as chaos, explained(fleet, chaos, cluster), fleet.running():
        chaos.urls = [node.url for node in nodes]
        await chaos.register()
        async with following(chaos.session, chaos.urls, seed + 2) as follower:
            chaos.open(CUSTOMERS)
            await storm(fleet, chaos, cluster)
            await fleet.recovered(SECONDS_TO_THE_END)
            fleet.note("the storm is over")
            await chaos.close(SECONDS_TO_THE_END)
            await chaos.wake_the_patient()
            await chaos.idle(SECONDS_TO_THE_END)
            fleet.note("every client has had its answer")
            await compare(chaos.ledger, chaos.call, SECONDS_TO_THE_END)
            await follower.check(cluster, DATABASE, SECONDS_TO_THE_END)
        await fleet.stop()
        fleet.note("all nodes have stopped")
        await check_doctor(cluster)
        await check_owners(cluster, chaos, fleet)
        assert fleet.bugs() == []
    tell(f"{fleet.summary()}; {chaos.ledger.summary()}; overtaken: {len(chaos.ledger.overtaken)}; nothing lost")


def new_node(data: Path, cluster: Cluster) -> EngineProcess:
    """A node with a directory and a port of its own. The base URL is a name for all of them, as a balancer's is."""
    settings = {
        **QUICK,
        "store": cluster.dsn(DATABASE),
        "lease_ms": str(LEASE_MS),
        "webhook_base_url": "http://any-node.test",
        "log_level": "warning",
    }
    return EngineProcess(data, settings)


def tell(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201 (pytest shows it with a failure, and make chaos at once)


@contextlib.asynccontextmanager
async def explained(fleet: Fleet, chaos: Chaos, cluster: Cluster) -> AsyncIterator[None]:
    """Whatever fails inside fails with the story of the run."""
    try:
        yield
    except BaseException:
        ledger = chaos.ledger
        tell(fleet.story())
        tell(f"{fleet.summary()}; {ledger.summary()}")
        tell("\n".join(["Open:", *await open_work(cluster, DATABASE)]))
        tell("\n".join(["Faults:", *ledger.faults, "Overtaken:", *map(str, ledger.overtaken), "Bugs:", *fleet.bugs()]))
        raise


async def storm(fleet: Fleet, chaos: Chaos, cluster: Cluster) -> None:
    """A strike a second. In the middle the doctor looks at the database in use: any snapshot is clean."""
    async with asyncio.timeout(SECONDS_TO_THE_END * CYCLES), asyncio.TaskGroup() as group:
        for cycle in range(CYCLES):
            group.create_task(chaos.start(f"patient-{cycle}", ["patient"]))
            await fleet.strike()
            if cycle == CYCLES // 2:
                await check_doctor(cluster)
            elif cycle % CYCLES_PER_RESTART == 1:
                await fleet.restart_database("fast" if cycle % (2 * CYCLES_PER_RESTART) == 1 else "immediate")
            await elapsed(1.0)


async def check_doctor(cluster: Cluster) -> None:
    code, output, errors = await run_command("doctor", "--store", cluster.dsn(DATABASE))
    assert code == 0, output + errors


async def check_owners(cluster: Cluster, chaos: Chaos, fleet: Fleet) -> None:
    """No item had two owners at a time: in the database, and as far as that can be, at the endpoints."""
    ownership = await read_ownership(cluster, DATABASE)
    assert ownership.faults() == []
    for key, attempts in chaos.ledger.attempts.items():
        assert max(attempts) <= ownership.items[key].attempt, f"{key} was sent without an intent: {attempts}"
    overtaken = chaos.ledger.overtaken
    for key, seen in overtaken:
        tell("\n".join([seen, *ownership.events[key]]))
    assert len(overtaken) <= fleet.counts["pauses"] // PAUSES_PER_OVERTAKEN, overtaken
