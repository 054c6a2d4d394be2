"""How the engine is put together: each part is given its collaborators when it is made."""

from __future__ import annotations

from dataclasses import dataclass

from counterfoil.checking.checker import ValueChecker
from counterfoil.engine.after_commit.dedup_hits import DedupHits
from counterfoil.engine.after_commit.due_times import DueTimes
from counterfoil.engine.after_commit.flow_ends import FlowEnds
from counterfoil.engine.after_commit.journal_log import log_events
from counterfoil.engine.after_commit.streams import Streams
from counterfoil.engine.after_commit.work_due import WorkDue
from counterfoil.engine.approvals.service import Approvals
from counterfoil.engine.callbacks.recorder import CallbackRecorder
from counterfoil.engine.callbacks.service import Callbacks
from counterfoil.engine.cluster.lease import Lease
from counterfoil.engine.cluster.membership import Membership
from counterfoil.engine.cluster.peers import Peers
from counterfoil.engine.context import EngineContext
from counterfoil.engine.effects.probes import Prober
from counterfoil.engine.effects.reservations import Reservations
from counterfoil.engine.effects.service import Reconciliations
from counterfoil.engine.engine import Engine
from counterfoil.engine.flows.service import Flows
from counterfoil.engine.gate.workflows import Workflows
from counterfoil.engine.hooks.service import Hooks
from counterfoil.engine.operations import Operations
from counterfoil.engine.policies.service import Policies
from counterfoil.engine.probe import Readiness
from counterfoil.engine.queries.callback_queries import CallbackQueries
from counterfoil.engine.queries.control_queries import ControlQueries
from counterfoil.engine.queries.effect_queries import EffectQueries
from counterfoil.engine.queries.feed import Feed
from counterfoil.engine.queries.hook_queries import HookQueries
from counterfoil.engine.queries.queries import Queries
from counterfoil.engine.queries.results import Results
from counterfoil.engine.schedules import Schedules
from counterfoil.engine.steps import Steps
from counterfoil.engine.subscriptions.deliveries import Notifier
from counterfoil.engine.subscriptions.messages import MessageSigner, Transport
from counterfoil.engine.subscriptions.subscribers import Subscribers
from counterfoil.engine.sweeps.progress import SweepProgress
from counterfoil.engine.wakeups import Wakeups
from counterfoil.engine.work.cancel_calls import CancelCaller
from counterfoil.engine.work.capacity import Slots
from counterfoil.engine.work.dispatch import Dispatcher
from counterfoil.engine.work.reports import MessageVerifier, Reports
from counterfoil.engine.work.sending_room import SendingRoom
from counterfoil.observability.metrics import Metrics
from counterfoil.store.group_commit.batch_sizes import BatchSizer
from counterfoil.store.group_commit.commit import AfterCommit, GroupCommit
from counterfoil.store.protocol import Store
from counterfoil.transport.exhaustion import Shortage
from counterfoil.transport.relay import Relays


@dataclass(frozen=True)
class Limits:
    """How much at once."""

    backlog: int = 20_000
    batch: int = 512
    dispatches: int = 256
    dispatches_per_host: int = 64
    lease_ms: int | None = None
    """Lease duration: in-flight attempts of a node that stops renewing are reclaimed after this.

    None: there is no lease, because the node is the only one.
    """
    value_check_ms: int = 500
    """Processor time for the check of one value."""
    value_checks: int = 256
    """Commands that wait for such a check."""


def assemble(
    store: Store,
    context: EngineContext,
    transport: Transport,
    metrics: Metrics,
    signer: MessageSigner | None = None,
    verifier: MessageVerifier | None = None,
    limits: Limits | None = None,
    relays: Relays | None = None,
) -> Engine:
    """Make an engine on an opened store."""
    limits = limits or Limits()
    feed, wakeups, shortage, sizer = Feed(), Wakeups(), Shortage("dispatch"), BatchSizer(store.batches)
    slots = Slots(limits.dispatches, limits.dispatches_per_host)
    room = SendingRoom(slots, wakeups)
    lease = Lease(store, context, limits.lease_ms)
    results = Results(store, lambda: not lease.others)
    peers = Peers(store, context, lease, feed, results, wakeups, room, sizer)
    dispatcher = Dispatcher(context, transport, signer, metrics, slots, lease, shortage, wakeups)
    checker = ValueChecker(limits.value_check_ms, limits.value_checks)
    handlers = _handlers(dispatcher, wakeups, room, peers, feed, results, metrics)
    commit = _group_commit(store, context, metrics, limits, sizer, dispatcher, handlers, checker)
    queries, control_queries = Queries(store, context, results), ControlQueries(store, context)
    effect_queries, hook_queries = EffectQueries(store, context), HookQueries(store, context)
    reservations = Reservations(store, context, commit, metrics)
    readiness, sweep_progress = Readiness(commit, store, lambda: context.node_id, shortage), SweepProgress()
    operations = Operations(
        *(context, commit, queries, effect_queries, hook_queries, reservations),
        *(results, metrics, readiness, lease, sweep_progress),
    )
    return Engine(
        steps=Steps(context, commit, queries, can_verify=verifier is not None),
        flows=Flows(context, commit, queries, metrics),
        reports=Reports(context, commit, metrics, verifier),
        workflows=Workflows(context, commit, control_queries, metrics),
        approvals=Approvals(commit, control_queries, metrics),
        callbacks=Callbacks(context, CallbackRecorder(context, store, commit, metrics), CallbackQueries(store)),
        reconciliations=Reconciliations(context, commit, effect_queries, metrics),
        hooks=Hooks(commit, metrics),
        reservations=reservations,
        policies=Policies(context, commit, control_queries),
        schedules=Schedules(context, commit, metrics),
        subscribers=Subscribers(store, context, commit),
        operations=operations,
        queries=queries,
        control_queries=control_queries,
        effect_queries=effect_queries,
        hook_queries=hook_queries,
        relays=relays or Relays(context.new_id, 0),
        feed=feed,
        results=results,
        commit=commit,
        checker=checker,
        dispatcher=dispatcher,
        cancel_caller=CancelCaller(context, commit, transport, signer, metrics, shortage),
        prober=Prober(context, commit, transport, signer, metrics),
        notifier=Notifier(context, commit, transport, metrics, shortage, wakeups),
        lease=lease,
        peers=peers,
        membership=Membership(lease, peers, feed, results, wakeups, room, sizer),
        wakeups=wakeups,
        sweep_progress=sweep_progress,
        readiness=readiness,
        context=context,
        store=store,
        metrics=metrics,
        slots=slots,
    )


def _group_commit(
    store: Store,
    context: EngineContext,
    metrics: Metrics,
    limits: Limits,
    sizer: BatchSizer,
    dispatcher: Dispatcher,
    handlers: list[AfterCommit],
    checker: ValueChecker,
) -> GroupCommit:
    return GroupCommit(
        store,
        context.clock,
        metrics,
        context.known,
        backlog_limit=limits.backlog,
        batch_limit=limits.batch,
        batches=store.batches,
        sizer=sizer,
        prepare=dispatcher.prepare,
        after_commit=handlers,
        checker=checker,
    )


def _handlers(
    dispatcher: Dispatcher,
    wakeups: Wakeups,
    room: SendingRoom,
    peers: Peers,
    feed: Feed,
    results: Results,
    metrics: Metrics,
) -> list[AfterCommit]:
    """What follows from a commit, in this order."""
    return [
        dispatcher.after_commit,
        log_events,
        DueTimes(wakeups).after_commit,
        WorkDue(wakeups, room, peers).after_commit,
        Streams(feed).after_commit,
        FlowEnds(results, peers).after_commit,
        DedupHits(metrics).after_commit,
    ]
