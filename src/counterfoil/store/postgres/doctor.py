"""The doctor on PostgreSQL: reads one snapshot of a database that may be in use, and changes nothing."""

from __future__ import annotations

import asyncio
import threading

from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.store.doctor.examination import (
    CHUNK,
    Examination,
    FlowRows,
    lost_events,
    owned_tokens,
    shared_keys,
    wrong_version,
)
from counterfoil.store.doctor.rules import Finding
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.postgres.connection import FAULTS, Access, Connection, Connector, explain
from counterfoil.store.postgres.migrations import SCHEMA_VERSION, found_version
from counterfoil.store.postgres.statements import COORDINATION, QUERIES


def examine(dsn: str, defaults: WorkDefaults | None = None) -> list[Finding]:
    """Every finding; raises StoreFailure when there is no database to look at. Runs in a thread and loop of its own."""
    found: list[Finding] = []
    failures: list[Exception] = []

    def visit() -> None:
        try:
            found.extend(asyncio.run(_visit(Access(dsn, 0), defaults or WorkDefaults())))
        except Exception as failure:  # noqa: BLE001 (raised again below, in the caller's thread)
            failures.append(failure)

    thread = threading.Thread(target=visit, name="doctor")
    thread.start()
    thread.join()
    for failure in failures:
        raise failure
    return found


async def _visit(access: Access, defaults: WorkDefaults) -> list[Finding]:
    connection = await Connector(access).connect()
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            return await _examine(connection, access, defaults)
    except FAULTS as error:
        raise StoreFailure(f"{access.shown}: {explain(error)}") from error
    finally:
        await connection.close()


async def _examine(connection: Connection, access: Access, defaults: WorkDefaults) -> list[Finding]:
    version = await found_version(connection)
    if version == 0:
        raise StoreFailure(f"{access.shown}: there is no counterfoil database here")
    if version != SCHEMA_VERSION:
        return [wrong_version(version, SCHEMA_VERSION)]
    findings: list[Finding] = []
    examination = Examination(defaults)
    examination.add_versions(await connection.fetch(QUERIES["doctor_versions"]))
    after = 0
    while rows := await connection.fetch(QUERIES["doctor_flows"], after, CHUNK):
        after = rows[-1][0]
        findings += examination.check(await _rows(connection, [row[1] for row in rows]))
    findings += examination.unreadable
    findings += lost_events(await connection.fetch(QUERIES["doctor_lost_events"]))
    findings += shared_keys(await connection.fetch(QUERIES["doctor_keys"]))
    findings += owned_tokens(await connection.fetch(QUERIES["doctor_hook_tokens"]))
    for (flow_id,) in await connection.fetch(COORDINATION["doctor_open_flows"]):
        findings.append(Finding("open", flow_id, "the table of open flows differs from the flow"))
    for flow_id, work_id in await connection.fetch(COORDINATION["doctor_open_work"]):
        message = f"the table of open work differs from the item, of flow {flow_id}"
        findings.append(Finding("open", work_id, message))
    return findings


async def _rows(connection: Connection, flow_ids: list[str]) -> FlowRows:
    work_ids = [row[0] for row in await connection.fetch(QUERIES["doctor_work"], flow_ids)]
    return FlowRows(
        flows=await connection.fetch(QUERIES["load_flows"], flow_ids),
        steps=await connection.fetch(QUERIES["doctor_steps"], flow_ids),
        work=await connection.fetch(QUERIES["load_work"], work_ids),
        entries=await connection.fetch(QUERIES["doctor_journal"], flow_ids),
        gates=await connection.fetch(QUERIES["doctor_gates"], flow_ids),
        approvals=await connection.fetch(QUERIES["doctor_approvals"], flow_ids),
        reconciliations=await connection.fetch(QUERIES["doctor_reconciliations"], flow_ids),
        hooks=await connection.fetch(QUERIES["doctor_hooks"], flow_ids),
        pruned=[row[0] for row in await connection.fetch(QUERIES["doctor_pruned"], flow_ids)],
    )
