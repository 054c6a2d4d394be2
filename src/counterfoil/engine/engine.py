"""The engine: every use case behind one object, and what follows from each commit.

One direction: a command is submitted, decided and committed; what was committed (not what was asked) is then sent,
scheduled and shown. Crash anywhere and the database alone says what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from counterfoil.checking.checker import ValueChecker
from counterfoil.domain.errors import CounterfoilError, InvalidSignature, InvalidStep, Unavailable, UnknownReceipt
from counterfoil.domain.flows.requests import RedriveRequest, StartFlow
from counterfoil.domain.journal.events import EventType
from counterfoil.domain.records import StepVersion, step_of
from counterfoil.domain.schedules import ScheduleDefinition
from counterfoil.domain.states import ApprovalStatus, WorkStatus
from counterfoil.domain.steps.definitions import StepDefinition
from counterfoil.domain.work.decisions import Verdict
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.engine.announce import announce
from counterfoil.engine.approvals.warnings import warn_of_approval
from counterfoil.engine.cluster.lease import Lease
from counterfoil.engine.cluster.peers import Peers
from counterfoil.engine.context import EngineContext
from counterfoil.engine.flows.cancel import Cancel
from counterfoil.engine.flows.redrive import RedriveFlow, RedriveWork, redrive_matching
from counterfoil.engine.flows.start import Preview, Start
from counterfoil.engine.policies.control import Control
from counterfoil.engine.probe import Readiness
from counterfoil.engine.queries.control_queries import ControlQueries
from counterfoil.engine.queries.documents import Document
from counterfoil.engine.queries.feed import Feed
from counterfoil.engine.queries.queries import Queries
from counterfoil.engine.schedules import Schedules
from counterfoil.engine.steps import DeleteStep, PutStep
from counterfoil.engine.subscriptions.deliveries import Notifier
from counterfoil.engine.subscriptions.messages import MessageSigner, Transport
from counterfoil.engine.subscriptions.subscribers import Subscribers
from counterfoil.engine.wakeups import SweepName, Wakeups
from counterfoil.engine.work.cancel_calls import CancelCaller
from counterfoil.engine.work.capacity import Slots
from counterfoil.engine.work.complete import Beat, Complete, Completion, HeartbeatAnswer
from counterfoil.engine.work.dispatch import Dispatcher
from counterfoil.engine.work.heartbeats import HeartbeatPace
from counterfoil.observability.metrics import Metrics
from counterfoil.store.group_commit.commit import GroupCommit, StoreFailure
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.transport.exhaustion import Shortage


class MessageVerifier(Protocol):
    """Checks the signature of what is received, as Standard Webhooks has it."""

    def verify(self, headers: Mapping[str, str], body: bytes, now_ms: int) -> None: ...


@dataclass(frozen=True)
class Limits:
    """How much at once."""

    backlog: int = 20_000
    batch: int = 512
    dispatches: int = 256
    dispatches_per_host: int = 64
    lease_ms: int | None = None
    """How long a silent node keeps what it is sending; None: it is the only one."""
    value_check_ms: int = 500
    """Processor time for the check of one value."""
    value_checks: int = 256
    """Commands that wait for such a check."""


class Engine:
    """Made by the composition root; ``start`` and ``stop`` frame its life."""

    def __init__(
        self,
        store: Store,
        context: EngineContext,
        transport: Transport,
        metrics: Metrics,
        signer: MessageSigner | None = None,
        verifier: MessageVerifier | None = None,
        limits: Limits | None = None,
    ) -> None:
        limits = limits or Limits()
        self.store = store
        self.context = context
        self.metrics = metrics
        self.accepting = False
        self.feed = Feed()
        self.wakeups = Wakeups()
        self.queries = Queries(store, context, self.feed)
        self.commit = GroupCommit(
            store,
            context.clock,
            metrics,
            context.known,
            backlog_limit=limits.backlog,
            batch_limit=limits.batch,
            batches=store.batches,
        )
        self.slots = Slots(limits.dispatches, limits.dispatches_per_host)
        self.lease = Lease(store, context, limits.lease_ms)
        self.peers = Peers(store, context, self.lease, self.feed)
        self.peers.room_for = self._make_room
        self.peers.met = lambda: self.commit.sizer.expect_others(1)
        self.peers.due = lambda: self.wakeups.now(SweepName.REQUEUE)
        self.shortage = Shortage("dispatch")
        self.dispatcher = Dispatcher(
            context, self.commit, transport, signer, metrics, self.slots, self.lease, self.shortage
        )
        self.cancel_caller = CancelCaller(context, self.commit, transport, signer, metrics, self.shortage)
        self.schedules = Schedules(context, self.commit, metrics)
        self.control = Control(context, self.commit, ControlQueries(store, context), metrics)
        self.subscribers = Subscribers(store, context, self.commit)
        self.notifier = Notifier(context, self.commit, transport, metrics, self.shortage)
        self.notifier.freed = lambda: self.wakeups.now(SweepName.DELIVERIES)
        self.dispatcher.freed = lambda: self.wakeups.now(SweepName.REQUEUE)
        self.commit.prepare = self.dispatcher.prepare
        self.commit.committed = self._committed
        self.checker = ValueChecker(limits.value_check_ms, limits.value_checks)
        self.commit.checker = self.checker
        self._verifier = verifier
        self._heartbeat_pace = HeartbeatPace()
        self._readiness = Readiness(self.commit, store, lambda: context.node_id, self.shortage)
        self._sweeps: Callable[[], Document] = dict

    def start(self) -> None:
        self.commit.start()
        self.accepting = True

    async def stop(self, grace_seconds: float) -> int:
        """Finish what is under way within the limit; returns how many attempts had to be left behind."""
        self.accepting = False
        self.dispatcher.stop()
        self.feed.close()
        keeping = asyncio.create_task(self.lease.keep_on(), name="lease")  # what is under way stays its own
        try:
            left, _ = await asyncio.gather(self.dispatcher.drain(grace_seconds), self.notifier.drain(grace_seconds))
            await self.commit.close()
            self.checker.close()
            await self._readiness.close()
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        await self.peers.finish()
        with contextlib.suppress(StoreFailure):  # then it lapses by itself
            await self.lease.leave()
        return left

    # Steps and flows ---------------------------------------------------------------------------------------------

    async def put_step(self, step_id: str, definition: StepDefinition) -> tuple[Document, bool]:
        """Register a step; returns it and whether it is new."""
        if definition.require_signature and self._verifier is None:
            place = {"place": "require_signature", "message": "the engine has no signing secret to check with"}
            raise InvalidStep(errors=[place])
        version = StepVersion.of(step_id, definition, self.context.defaults)
        created = await self.commit.submit(PutStep(version))
        document, terms = await self.queries.step(step_id), definition.control.approval
        return warn_of_approval(document, terms, self.context.reviewers, kind="step_id", name=step_id), created

    async def delete_step(self, step_id: str) -> None:
        await self.commit.submit(DeleteStep(step_id))

    async def start_flow(self, request: StartFlow, started_by: str | None = None) -> Document:
        return await self.commit.submit(Start(request, self.context, started_by))

    async def plan_flow(self, request: StartFlow) -> Document:
        return await self.commit.submit(Preview(request, self.context))

    async def cancel_flow(self, flow_id: str, *, compensate: bool = False) -> Document:
        await self.commit.submit(Cancel(flow_id, compensate))
        return await self.queries.flow(flow_id)

    async def redrive_flow(self, flow_id: str) -> Document:
        return await self.commit.submit(RedriveFlow(flow_id))

    async def redrive_work(self, work_id: str) -> Document:
        return await self.commit.submit(RedriveWork(work_id))

    async def redrive_matching(self, request: RedriveRequest) -> Document:
        return await redrive_matching(self.commit, self.queries, request)

    async def put_schedule(self, schedule_id: str, definition: ScheduleDefinition) -> tuple[Document, bool]:
        """Make a schedule, or change it; returns it and whether it is new."""
        return await self.schedules.put(schedule_id, definition)

    async def delete_schedule(self, schedule_id: str) -> None:
        await self.schedules.delete(schedule_id)

    # Receipts ----------------------------------------------------------------------------------------------------

    def work_of(self, flow_id: str, step_id: str, token: str) -> str:
        """The work item of a receipt; anything forged, mistyped or of another flow or step is unknown."""
        work_id = self.context.receipts.work_id_of(flow_id, step_id, token)
        if work_id is None:
            raise UnknownReceipt
        return work_id

    def verify(self, headers: Mapping[str, str], body: bytes, now: int) -> None:
        """Raise InvalidSignature unless the body carries a good signature."""
        if self._verifier is None:
            raise InvalidSignature("the engine has no signing secret, so no signature can be checked")
        self._verifier.verify(headers, body, now)

    async def complete(
        self, work_id: str, result: StepResult, verify: Callable[[int], None] | None = None
    ) -> Completion:
        """Record a report; ``verify`` checks its signature where the step wants one."""
        if not self.accepting:
            raise Unavailable("the engine is stopping; retry later")
        try:
            completion = await self.commit.submit(
                Complete(work_id, result, self.context.retry_rules_for(result), verify)
            )
        except CounterfoilError as error:
            self._count(error)
            raise
        self._count(completion)
        return completion

    def take_completion(
        self,
        work_id: str,
        result: StepResult,
        verify: Callable[[int], None],
        resolve: Callable[[Completion | CounterfoilError], None],
    ) -> bool:
        """The same without a coroutine to wait in: ``resolve`` is told after the commit. False: there is no room."""

        def resolved(answer: Completion | CounterfoilError) -> None:
            self._count(answer)
            resolve(answer)

        return self.commit.enqueue(Complete(work_id, result, self.context.retry_rules_for(result), verify), resolved)

    def _count(self, answer: Completion | CounterfoilError) -> None:
        if isinstance(answer, CounterfoilError):
            self.metrics.completed(answer.code)
            return
        self.metrics.completed(answer.verdict)
        if answer.verdict is Verdict.ACCEPTED and answer.recorded_at is not None and answer.sent_at is not None:
            self.metrics.callback_took((answer.recorded_at - answer.sent_at) / 1000)

    async def heartbeat(
        self, work_id: str, heartbeat: Heartbeat, verify: Callable[[int], None] | None = None
    ) -> HeartbeatAnswer:
        """Record a sign of life; ``verify`` as in ``complete``."""
        if not self.accepting:
            raise Unavailable("the engine is stopping; retry later")
        journaled = self._heartbeat_pace.journals(work_id, self.context.clock())
        return await self.commit.submit(Beat(work_id, heartbeat, verify, journaled=journaled))

    # Operations --------------------------------------------------------------------------------------------------

    def watch_sweeps(self, sweeps: Callable[[], Document]) -> None:
        """``sweeps`` tells how the sweeps are, and raises Unavailable when they are not alive."""
        self._sweeps = sweeps

    async def health(self) -> Document:
        """Whether the engine can do its work, reading and writing; raises Unavailable when it cannot."""
        await self._readiness.check()
        seq = await self.queries.last_seq()
        sweeps = self._sweeps()
        health: Document = {"store": {"last_seq": seq, "backlog": self.commit.backlog}, "sweeps": sweeps}
        if self.lease.keep_every_ms is not None:
            health["node"] = {
                "id": self.context.node_id,
                "lease_held": self.lease.held,
                "other_nodes": self.lease.others,
            }
        return health

    async def refresh_metrics(self) -> None:
        """Bring the gauges up to date that are read off the store."""
        self.metrics.set_work_by_state(await self.queries.open_work_by_state())
        self.metrics.set_oldest_waiting(await self.queries.oldest_waiting_seconds())
        self.metrics.set_backlog(self.commit.backlog)

    # What follows from a commit ----------------------------------------------------------------------------------

    def _committed(self, unit: UnitOfWork) -> None:
        changes = unit.changes
        if not changes.any():
            return
        kinds = changes.kinds()
        if EventType.WORK_DISPATCHED in kinds:
            self.dispatcher.committed(unit)
        announce(changes.events, kinds)
        self._plan_wakeups(changes)
        self._plan_messages(changes)
        due_here = self._plan_sending(changes)
        active, items = WorkStatus.ACTIVE, changes.work.values()
        came_back = {(item.step_id, item.version) for item in items if item.sent_at and item.status is not active}
        back = {step_id for step_id, version in came_back if unit.is_limited(version)}
        back.update(changes.current)  # another definition may allow more
        self._make_room(back, changes.current)
        if self.feed.has_readers:
            self.feed.ring(changes.touched())
        if self.lease.others:
            self.peers.tell(changes.touched(), back, due=due_here)

    def _plan_sending(self, changes: Changes) -> bool:
        """Have the sweeps look when committed work is due; whether some is by now, and found no place here."""
        slots, at = self.slots, self.wakeups.at
        due_here = False
        for work in changes.work.values():
            if work.due_at is None:
                continue
            if work.status is WorkStatus.ACTIVE:
                at(SweepName.DEADLINES, work.due_at)
            else:
                if work.due_at <= changes.at:
                    slots.waiting.add(work.lane)
                    slots.wake_for(work.step_id, work.version)
                    due_here = True
                at(SweepName.REQUEUE, work.due_at)
        return due_here

    def _plan_wakeups(self, changes: Changes) -> None:
        """The same for everything else that is due at some time."""
        at = self.wakeups.at
        for flow in changes.flows.values():
            if flow.deadline_at is not None:
                at(SweepName.FLOW_CLOCKS, flow.deadline_at)
        for step in changes.steps.values():
            if step.due_at is not None:
                at(SweepName.FLOW_CLOCKS, step.due_at)
        for approval in changes.approvals.values():
            if approval.status is ApprovalStatus.PENDING:
                at(SweepName.APPROVALS, approval.expires_at)
        for schedule in changes.schedules.values():
            if schedule is not None and schedule.next_at is not None:
                at(SweepName.SCHEDULES, schedule.next_at)

    def _plan_messages(self, changes: Changes) -> None:
        """The same for what workers and subscribers are to be told."""
        for call in changes.calls.values():
            if call is not None:
                self.wakeups.at(SweepName.CANCEL_CALLS, call.due_at)
        for delivery in changes.deliveries.values():
            if delivery is not None and delivery.due_at is not None:
                self.wakeups.at(SweepName.DELIVERIES, delivery.due_at)

    def _make_room(self, steps: Iterable[str], defined: Iterable[str] | None = None) -> None:
        """Something of these steps has come back: those that had as much out as they may can send again.

        ``defined``: the steps that have another definition, and so another rate; None: perhaps all of them.
        """
        slots, freed = self.slots, frozenset(steps)
        full = slots.full & freed
        slots.full -= full
        rested = slots.forget_rests(freed if defined is None else defined)
        # What is due may have been passed over, because another node had it in hand, without a look at the limit.
        if full or rested or (freed and any(step_of(lane) in freed for lane in slots.waiting)):
            self.wakeups.now(SweepName.REQUEUE)

    async def keep_lease(self) -> None:
        """Renew the lease, and look around: what other nodes committed shows here at the latest now.

        Whether or not word of it came, and though they may have left since.
        """
        lease = self.lease
        if lease.keep_every_ms is None:
            return
        had_others, lapsed = lease.others, not lease.held
        await lease.keep()
        self.commit.sizer.expect_others(lease.others)
        if lease.others and not had_others:
            self.peers.greet()
        self._make_room((*self.slots.full, *self.slots.resting))
        if had_others or lease.others:
            self.feed.ring_all()
        if lapsed:
            self.wakeups.now(SweepName.REQUEUE)
