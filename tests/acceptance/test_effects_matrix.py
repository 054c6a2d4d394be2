"""Effect policies x causes of uncertainty x results recorded or not: by real engines, faults, kills and restarts.

All cells that share a crash run in one engine at once. Counted at the endpoint: what was sent how often, and with which
key; asked of the engine: what the item became, and what it shows of each attempt.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from counterfoil.testing import StepEndpoint
from tests.acceptance.conftest import ClientOf, NewEngine
from tests.acceptance.effect_cells import (
    ACKNOWLEDGED,
    ANSWERED,
    CALLBACKS,
    LOST_FIRST,
    NODE_LOST,
    REFUSED,
    TAKEN,
    UNSENT,
    Cell,
    Matrix,
    cells,
    doctor_is_content,
    errors_logged,
)
from tests.acceptance.processes import EngineProcess
from tests.eventually import eventually
from tests.integration.several_nodes import metric
from tests.wire import Api

LATE = 'counterfoil_dispatches_total{outcome="late"}'


@pytest.fixture
async def matrix(endpoint: StepEndpoint, session: aiohttp.ClientSession) -> AsyncIterator[Matrix]:
    """A matrix without cells; its client has no engine yet."""
    made = Matrix(Api(session, ""), endpoint)
    yield made
    made.close()


async def finish(matrix: Matrix, engine: EngineProcess) -> None:
    """A restart changes nothing, late outcomes settle what is held, and nothing more was sent."""
    await matrix.check()
    await engine.kill()
    doctor_is_content(engine)
    await engine.start()
    await matrix.check()
    sent = len(matrix.endpoint.all_requests())
    await matrix.settle_late()
    assert len(matrix.endpoint.all_requests()) == sent
    assert await engine.stop() == 0
    doctor_is_content(engine)
    assert errors_logged(engine) == []


@pytest.mark.timeout(120)
async def test_faults_of_the_network_the_endpoint_and_the_worker(
    new_engine: NewEngine, client_of: ClientOf, matrix: Matrix
) -> None:
    """Recorded cells begin first: when the timeouts of the others were noticed, theirs have passed as well."""
    engine = new_engine()
    await engine.start()
    matrix.api = client_of(engine)
    await matrix.begin(cells((*ANSWERED, *CALLBACKS), recorded=True))
    await matrix.begin([*cells((*ANSWERED, *CALLBACKS)), *cells(ANSWERED, "sync")])
    refused = [cell for cell in matrix.cells if cell.fault is REFUSED]
    for cell in refused:
        await matrix.api.until_event(cell.flow_id, "work_not_completed")
    await matrix.refusing.open(matrix.endpoint)
    await matrix.settled()
    await finish(matrix, engine)


def crash_cells() -> list[Cell]:
    """Everything that a node can leave behind, under every policy."""
    return [
        *cells([NODE_LOST], recorded=True),
        *cells([NODE_LOST, UNSENT, TAKEN, ACKNOWLEDGED]),
        *cells([NODE_LOST, UNSENT], "sync"),
    ]


async def test_a_node_killed_between_the_intent_and_the_answer(
    new_engine: NewEngine, client_of: ClientOf, matrix: Matrix
) -> None:
    engine = new_engine(lease_ms="1000")
    await engine.start()
    matrix.api = client_of(engine)
    await matrix.begin(crash_cells())
    await matrix.uncertain(matrix.cells)
    await engine.kill()
    doctor_is_content(engine)
    await matrix.unheard.open(matrix.endpoint)
    await engine.start()
    await matrix.settled()
    await finish(matrix, engine)


@pytest.mark.postgresql_only
@pytest.mark.parametrize("loss", ["killed", "paused"])
async def test_a_node_that_loses_its_lease(
    new_engine: NewEngine, client_of: ClientOf, matrix: Matrix, tmp_path: Path, loss: str
) -> None:
    """Another node takes over. A node that was only paused comes back when its attempts are decided."""
    lost, other = (new_engine(tmp_path / name, lease_ms="3000") for name in ("lost", "other"))
    await lost.start()
    matrix.api = client_of(lost)
    await matrix.begin([*crash_cells(), *cells([LOST_FIRST], recorded=True)])
    await matrix.uncertain(matrix.cells)
    await other.start()
    matrix.api = client_of(other)
    if loss == "killed":
        await lost.kill()
    else:
        lost.signal(signal.SIGSTOP)
    await matrix.report_before_the_loss_is_noticed()
    await matrix.unheard.open(matrix.endpoint)
    await matrix.settled()
    await matrix.check()
    if loss == "paused":
        lost.signal(signal.SIGCONT)
        matrix.released.set()
        in_hand = sum(cell.fault is not ACKNOWLEDGED for cell in matrix.cells)
        await eventually(lambda: is_late(client_of(lost), in_hand), what="the late answers of the node that was paused")
        assert await lost.stop() == 0
        assert errors_logged(lost) == []
    await finish(matrix, other)


async def is_late(api: Api, count: int) -> bool:
    return await metric(api, LATE) == count
