"""All sweeps of a node: what each searches for, and which command it submits for what it finds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from counterfoil.engine.engine import Engine
from counterfoil.engine.flows.clocks import LookAtFlow
from counterfoil.engine.sweeps.requeue import RequeueSearch
from counterfoil.engine.sweeps.retention import RetentionSearch
from counterfoil.engine.sweeps.sweep import Search, Sweep
from counterfoil.engine.wakeups import SweepName
from counterfoil.engine.work.expire import ExpireOverdue, ReclaimOrphan
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.unit_of_work.read_set import Find

NOTHING_FOUND: tuple[ForEach[Any], ...] = ()


def sweeps_of(engine: Engine) -> list[Sweep]:
    context = engine.context
    requeue, retention = RequeueSearch(engine), RetentionSearch(engine)
    return [
        Sweep(
            SweepName.REQUEUE,
            search=requeue.search,
            follow_up=requeue.claimed,
            next_due=requeue.next_due,
        ),
        Sweep(
            SweepName.DEADLINES,
            search=_searched(
                lambda now, limit: ForEach(
                    Find.of("find_overdue", now=now, limit=limit),
                    lambda work_id: ExpireOverdue(work_id, context.retry_rules()),
                )
            ),
            next_due=_due_by(engine, "next_clock"),
        ),
        Sweep(
            SweepName.FLOW_CLOCKS,
            search=_searched(lambda now, limit: ForEach(Find.of("find_due_flows", now=now, limit=limit), LookAtFlow)),
            next_due=_due_by(engine, "next_flow_clock"),
        ),
        Sweep(
            SweepName.ORPHANS,
            search=partial(_orphans, engine),
            next_due=partial(_next_lapse, engine),
        ),
        Sweep(
            SweepName.CANCEL_CALLS,
            search=_searched(engine.cancel_caller.due),
            follow_up=engine.cancel_caller.make,
            next_due=_due_by(engine, "next_call"),
        ),
        Sweep(
            SweepName.LEASE,
            search=partial(_renew_lease, engine),
            next_due=partial(_next_renewal, engine),
        ),
        Sweep(
            SweepName.SCHEDULES,
            search=_searched(engine.schedules.due, when=lambda: _may_start(engine)),
            follow_up=engine.schedules.fired,
            next_due=_due_by(engine, "next_schedule", when=lambda: _may_start(engine)),
        ),
        Sweep(
            SweepName.APPROVALS,
            search=_searched(engine.approvals.expired),
            follow_up=engine.approvals.count_expired,
            next_due=_due_by(engine, "next_approval"),
        ),
        Sweep(
            SweepName.DELIVERIES,
            search=_searched(engine.notifier.due, when=engine.notifier.has_room),
            follow_up=engine.notifier.launch,
            next_due=partial(_next_delivery, engine),
        ),
        *_sweeps_of_effects(engine),
        *_sweeps_of_callbacks_and_hooks(engine),
        Sweep(
            SweepName.RETENTION,
            search=retention.search,
            next_due=retention.next_due,
            pauses=True,
        ),
    ]


def _sweeps_of_effects(engine: Engine) -> list[Sweep]:
    return [
        Sweep(
            SweepName.PROBES,
            search=_searched(engine.prober.due, when=lambda: _may_start(engine)),
            follow_up=engine.prober.ask,
            next_due=_due_by(engine, "next_probe", when=lambda: _may_start(engine)),
        ),
        Sweep(
            SweepName.DEDUP,
            search=_searched(engine.reconciliations.waking),
            next_due=_due_by(engine, "next_waking"),
        ),
        Sweep(
            SweepName.FORGETTING,
            search=_searched(engine.reconciliations.forgettable, engine.reservations.forgettable),
            next_due=_due_by(engine, "next_forgetting"),
        ),
    ]


def _sweeps_of_callbacks_and_hooks(engine: Engine) -> list[Sweep]:
    return [
        Sweep(
            SweepName.CALLBACKS,
            search=_searched(engine.callbacks.old, when=engine.callbacks.has_old),
            next_due=engine.callbacks.next_old,
            pauses=True,
        ),
        Sweep(
            SweepName.HOOKS,
            search=_searched(engine.hooks.waking),
            next_due=_due_by(engine, "next_waking_hook"),
        ),
    ]


def _always() -> bool:
    return True


def _searched(*searches: Callable[[int, int], ForEach[Any]], when: Callable[[], bool] = _always) -> Search:
    """These searches once a round each, while ``when`` holds."""

    async def search(now: int, limit: int) -> AsyncIterator[ForEach[Any]]:
        for commands in searches:
            if when():
                yield commands(now, limit)

    return search


def _due_by(engine: Engine, query: str, when: Callable[[], bool] = _always) -> Callable[[], Awaitable[int | None]]:
    """The due time that a query reads, while ``when`` holds."""

    async def next_due() -> int | None:
        if not when():
            return None
        due: int | None = (await engine.store.read(query))[0][0]
        return due

    return next_due


def _may_start(engine: Engine) -> bool:
    """A start claims what it can send at once: only a node that still sends, and whose lease holds, may do so."""
    return engine.accepting and engine.lease.held


async def _orphans(engine: Engine, now: int, limit: int) -> AsyncIterator[ForEach[Any]]:  # noqa: ARG001
    """Attempts that were being sent by a node that is gone.

    With the embedded store there is one process at a time, so every sender but this one is gone; on a shared store the
    lease of such a node has lapsed. After a start this runs beside the ordinary work, in small batches: however much
    was in flight, the engine is ready at once.
    """
    context = engine.context
    find = Find.of("find_orphaned", owner=context.node_id, limit=limit)
    yield ForEach(find, lambda work_id, owner: ReclaimOrphan(work_id, owner, context.retry_rules()))


async def _next_lapse(engine: Engine) -> int | None:
    """When the first lease of another node lapses, if it is not renewed."""
    left: int | None = (await engine.store.read("next_lapse", owner=engine.context.node_id))[0][0]
    return None if left is None else engine.context.clock() + left


async def _renew_lease(engine: Engine, now: int, limit: int) -> AsyncIterator[ForEach[Any]]:  # noqa: ARG001
    """Finds nothing: the lease is renewed by the store, beside all commands."""
    await engine.membership.renew()
    for commands in NOTHING_FOUND:
        yield commands


async def _next_renewal(engine: Engine) -> int | None:
    keep_every = engine.lease.keep_every_ms
    return None if keep_every is None else engine.context.clock() + keep_every


async def _next_delivery(engine: Engine) -> int | None:
    notifier = engine.notifier
    if notifier.is_full:
        return None  # a delivery that ends wakes the sweep
    due: int | None = (await engine.store.read("next_delivery", busy=notifier.busy()))[0][0]
    return due
