"""The engine: the use cases of each concept behind one object, and its life from start to stop.

One direction: a command is submitted, decided and committed; what was committed (not what was asked) is then sent,
scheduled and shown, by the after-commit handlers. Crash anywhere and the database alone says what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from counterfoil.checking.checker import ValueChecker
from counterfoil.engine.approvals.service import Approvals
from counterfoil.engine.callbacks.service import Callbacks
from counterfoil.engine.cluster.lease import Lease
from counterfoil.engine.cluster.membership import Membership
from counterfoil.engine.cluster.peers import Peers
from counterfoil.engine.context import EngineContext
from counterfoil.engine.effects.probes import Prober
from counterfoil.engine.effects.reservations import Reservations
from counterfoil.engine.effects.service import Reconciliations
from counterfoil.engine.flows.service import Flows
from counterfoil.engine.gate.workflows import Workflows
from counterfoil.engine.hooks.service import Hooks
from counterfoil.engine.operations import Operations
from counterfoil.engine.policies.service import Policies
from counterfoil.engine.probe import Readiness
from counterfoil.engine.queries.control_queries import ControlQueries
from counterfoil.engine.queries.effect_queries import EffectQueries
from counterfoil.engine.queries.feed import Feed
from counterfoil.engine.queries.hook_queries import HookQueries
from counterfoil.engine.queries.queries import Queries
from counterfoil.engine.queries.results import Results
from counterfoil.engine.schedules import Schedules
from counterfoil.engine.steps import Steps
from counterfoil.engine.subscriptions.deliveries import Notifier
from counterfoil.engine.subscriptions.subscribers import Subscribers
from counterfoil.engine.sweeps.progress import SweepProgress
from counterfoil.engine.wakeups import Wakeups
from counterfoil.engine.work.cancel_calls import CancelCaller
from counterfoil.engine.work.capacity import Slots
from counterfoil.engine.work.dispatch import Dispatcher
from counterfoil.engine.work.reports import Reports
from counterfoil.observability.metrics import Metrics
from counterfoil.store.group_commit.commit import GroupCommit, StoreFailure
from counterfoil.store.protocol import Store
from counterfoil.transport.relay import Relays


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Made by ``assemble``; ``start`` and ``stop`` frame its life."""

    # Use cases
    steps: Steps
    flows: Flows
    reports: Reports
    workflows: Workflows
    approvals: Approvals
    callbacks: Callbacks
    reconciliations: Reconciliations
    hooks: Hooks
    reservations: Reservations
    policies: Policies
    schedules: Schedules
    subscribers: Subscribers
    operations: Operations
    queries: Queries
    control_queries: ControlQueries
    effect_queries: EffectQueries
    hook_queries: HookQueries
    relays: Relays
    feed: Feed
    results: Results
    # What runs by itself
    commit: GroupCommit
    checker: ValueChecker
    dispatcher: Dispatcher
    cancel_caller: CancelCaller
    prober: Prober
    notifier: Notifier
    lease: Lease
    peers: Peers
    membership: Membership
    wakeups: Wakeups
    sweep_progress: SweepProgress
    readiness: Readiness
    # What all of them share
    context: EngineContext
    store: Store
    metrics: Metrics
    slots: Slots

    @property
    def accepting(self) -> bool:
        return self.context.accepting

    def start(self) -> None:
        self.commit.start()
        self.context.accepting = True

    def end_waiting(self) -> None:
        """End streams and long polls by themselves: the engine is stopping."""
        self.relays.end()
        self.feed.close()
        self.results.close()

    async def stop(self, grace_seconds: float) -> int:
        """Finish attempts in flight within the limit; returns how many had to be left behind."""
        self.context.accepting = False
        self.dispatcher.stop()
        self.end_waiting()
        keeping = asyncio.create_task(self.lease.keep_on(), name="lease")  # attempts in flight stay this node's
        try:
            left, _ = await asyncio.gather(self.dispatcher.drain(grace_seconds), self.notifier.drain(grace_seconds))
            await self.callbacks.recorder.close()
            await self.commit.close()
            self.checker.close()
            await self.readiness.close()
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        await self.peers.finish()
        with contextlib.suppress(StoreFailure):  # then it lapses by itself
            await self.lease.leave()
        return left
