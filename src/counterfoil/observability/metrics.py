"""Prometheus metrics of one engine.

Each ``Metrics`` has its own registry, so that several engines in one process (or test) do not mix. The methods are
called from hot paths, so they count in plain numbers, which are formatted only when the metrics are read. Labels come
from closed sets (states, codes, sweeps) or from the registered steps, never from the input of a caller.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from counterfoil.domain.effects.policies import UNKNOWN_HOLDS
from counterfoil.domain.effects.reservations import IRREVERSIBLE
from counterfoil.domain.states import OPEN_WORK, Decision
from counterfoil.version import __version__

# From an immediate response to a person who takes two days.
_CALLBACK_BUCKETS = (0.005, 0.025, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400, 172800)
_COMMIT_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class _Counts(Collector):
    """A counter with one label, in plain integers: the hot path runs on one thread and needs no lock."""

    def __init__(
        self, registry: CollectorRegistry, name: str, help_text: str, label: str, known: Iterable[str]
    ) -> None:
        self._name = f"counterfoil_{name}"
        self._help = help_text
        self._label = label
        self.counts: dict[str, float] = dict.fromkeys(known, 0)
        """By value. The hottest paths add to a known one without a call."""
        registry.register(self)

    def add(self, value: str, count: float = 1) -> None:
        self.counts[value] = self.counts.get(value, 0) + count

    def collect(self) -> Iterable[Metric]:
        """One sample for each value of the label."""
        family = CounterMetricFamily(self._name, self._help, labels=[self._label])
        for value, count in self.counts.items():
            family.add_metric([value], count)
        return [family]


class _Spread(Collector):
    """A histogram in plain integers, for the same reason."""

    def __init__(self, registry: CollectorRegistry, name: str, help_text: str, bounds: Sequence[float]) -> None:
        self._name = f"counterfoil_{name}"
        self._help = help_text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterable[Metric]:
        """The buckets, each with the count of all values up to its bound."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        return [HistogramMetricFamily(self._name, self._help, buckets=buckets, sum_value=self._sum)]


class _OldestWaiting(Collector):
    """The age of the oldest waiting item of each step: replaced as a whole, so that no old step remains."""

    def __init__(self) -> None:
        self.seconds: Mapping[str, float] = {}

    def collect(self) -> Iterable[Metric]:
        """One sample for each step, from the current figures."""
        family = GaugeMetricFamily(
            "counterfoil_oldest_waiting_seconds", "Age of the oldest waiting work item, by step.", labels=["step"]
        )
        for step, seconds in self.seconds.items():
            family.add_metric([step], seconds)
        return [family]


class _ControlCounts:
    """What the gate, reviewers, subscribers and schedules did, and what starts with a run key were answered."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.gates = _Counts(
            registry,
            "gate_answers_total",
            "Answered gate calls, by decision and whether it was fresh or cached.",
            "outcome",
            (f"{decision}_{source}" for decision in Decision for source in ("fresh", "cached")),
        )
        self.approvals = _Counts(
            registry,
            "approval_reviews_total",
            "Reviews and expiries of approvals, by outcome; pending: more approvals are needed.",
            "outcome",
            ("approved", "rejected", "expired", "pending"),
        )
        self.deliveries = _Counts(
            registry,
            "deliveries_total",
            "Calls to subscribers, by outcome.",
            "outcome",
            ("delivered", "retried", "given_up"),
        )
        self.schedules = _Counts(
            registry,
            "schedule_firings_total",
            "Firings of schedules, by outcome.",
            "outcome",
            ("started", "refused", "skipped", "reused"),
        )
        self.run_keys = Counter(
            "counterfoil_run_key_conflicts_total",
            "Flow starts whose run key another flow owned, by on_conflict and outcome.",
            ["on_conflict", "outcome"],
            registry=registry,
        )


class _EffectMetrics:
    """What is measured of unknown outcomes and of results that are shared."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.settled = _Counts(
            registry,
            "reconciled_total",
            "Unknown outcomes that were settled through the API, by outcome.",
            "outcome",
            ("applied", "not_applied", "failed"),
        )
        self.probes = _Counts(
            registry,
            "probes_total",
            "Calls to the status_url of steps, by state.",
            "state",
            ("running", "done", "not_found", "unknown", "error"),
        )
        self.dedup_hits = Counter(
            "counterfoil_dedup_hits_total", "Work items that reused the result of another one.", registry=registry
        )
        self.requests = _Counts(
            registry,
            "effect_requests_total",
            "Reservations that tools asked for, by verdict: granted, renewed, dedup_hit, or the error code.",
            "verdict",
            ("granted", "renewed", "dedup_hit"),
        )
        self.outcomes = _Counts(
            registry,
            "effect_outcomes_total",
            "Reservations that were completed or settled, by state; free: the key may be reserved again.",
            "state",
            ("complete-success", "complete-failed", "free"),
        )
        pending = Gauge(
            "counterfoil_pending_effects",
            "Reservations that tools have not completed, by whether their time to live is over.",
            ["state"],
            registry=registry,
        )
        self._pending = pending.labels("live"), pending.labels("lapsed")
        unsettled = Gauge(
            "counterfoil_reconciliations",
            "Work items and lapsed irreversible reservations that wait for reconciliation, by hold.",
            ["hold"],
            registry=registry,
        )
        self._unsettled = {hold: unsettled.labels(hold) for hold in sorted({*UNKNOWN_HOLDS, IRREVERSIBLE})}
        self._oldest_unsettled = Gauge(
            "counterfoil_oldest_reconciliation_seconds",
            "Age of what has waited longest for reconciliation; 0: nothing waits.",
            registry=registry,
        )
        self._oldest_lapsed = Gauge(
            "counterfoil_oldest_lapsed_effect_seconds",
            "Age of the irreversible reservation that lapsed first and is not settled; 0: there is none.",
            registry=registry,
        )

    def set_pending(self, live: int, lapsed: int) -> None:
        for gauge, count in zip(self._pending, (live, lapsed), strict=True):
            gauge.set(count)

    def set_unsettled(self, by_hold: Mapping[str, tuple[int, float]]) -> None:
        """By hold, how many items wait and the age of the oldest; a hold that is not given has none."""
        for hold, gauge in self._unsettled.items():
            gauge.set(by_hold.get(hold, (0, 0.0))[0])
        self._oldest_unsettled.set(max((age for _, age in by_hold.values()), default=0.0))
        self._oldest_lapsed.set(by_hold.get(IRREVERSIBLE, (0, 0.0))[1])


class _HookMetrics:
    """What is measured of hooks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.deliveries = _Counts(
            registry,
            "hook_deliveries_total",
            "Payloads for hooks, by verdict: delivered, buffered, duplicate, or the error code.",
            "verdict",
            ("delivered", "buffered", "duplicate"),
        )
        self.waiting = Gauge("counterfoil_hooks_waiting", "Hooks that wait for a payload.", registry=registry)


class _CallbackMetrics:
    """What is measured of the callback inbox."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.recorded = Counter(
            "counterfoil_callbacks_recorded_total",
            "Callbacks written to the inbox; accepted ones are only in the journal.",
            registry=registry,
        )
        self.dropped = _Counts(
            registry,
            "callbacks_dropped_total",
            "Callbacks left out of the inbox, by reason: over the rate of unknown receipts, "
            "repeated for one work item, or the buffer was full.",
            "reason",
            ("unknown_receipt", "repeated", "buffer_full"),
        )


class Metrics:
    """The counters and measurements of the engine, under the names that dashboards rely on."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._dispatches = _Counts(registry, "dispatches_total", "Calls to step endpoints, by outcome.", "outcome", ())
        self._completions = _Counts(
            registry,
            "completions_total",
            "Worker reports, by verdict: accepted, stale, duplicate, or the error code.",
            "verdict",
            ("accepted", "stale", "duplicate"),
        )
        self.completion_requests = _Counts(
            registry,
            "completion_requests_total",
            "Requests to the completion webhook, by path through the server: fast (the express lane) or ordinary.",
            "path",
            ("fast", "ordinary"),
        ).counts
        """The server adds to it, by path."""
        self._sweeps = _Counts(registry, "sweeps_total", "Sweep runs, by sweep.", "sweep", ())
        self._swept = _Counts(registry, "swept_items_total", "Items handled by the sweeps, by sweep.", "sweep", ())
        self._cancel_calls = _Counts(
            registry, "cancel_calls_total", "Calls to the cancel_url of steps, by outcome.", "outcome", ()
        )
        self._control = _ControlCounts(registry)
        self._effects = _EffectMetrics(registry)
        self._hooks = _HookMetrics(registry)
        self._callbacks = _CallbackMetrics(registry)
        self._connections = _Counts(
            registry,
            "connections_ended_total",
            "Client connections closed by the engine, by reason: timed out, evicted to make room, or refused.",
            "reason",
            ("header_timeout", "body_timeout", "keepalive_timeout", "write_timeout", "evicted", "refused"),
        )
        self._open_connections = Gauge("counterfoil_connections", "Open client connections.", registry=registry)
        self._store_failures = Counter(
            "counterfoil_store_failures_total", "Failed commits of the store.", registry=registry
        )
        self._callback = _Spread(
            registry, "callback_seconds", "Time from dispatch to the accepted result.", _CALLBACK_BUCKETS
        )
        self._batch_size = _Spread(registry, "batch_size", "Number of commands in a commit.", _BATCH_BUCKETS)
        self._commit = _Spread(registry, "commit_seconds", "Duration of a commit.", _COMMIT_BUCKETS)
        self._backlog = Gauge("counterfoil_backlog", "Commands waiting for a commit.", registry=registry)
        self._waiting_polls = Gauge("counterfoil_waiting_polls", "Long polls waiting for a result.", registry=registry)
        work = Gauge("counterfoil_work_items", "Open work items, by state.", ["state"], registry=registry)
        self._work = {status.value: work.labels(status.value) for status in OPEN_WORK}
        self._oldest = _OldestWaiting()
        registry.register(self._oldest)
        ProcessCollector(registry=registry)
        _tell_build(registry)

    def completed(self, verdict: str, count: int = 1) -> None:
        """A worker's report was answered: ``accepted``, ``stale``, ``duplicate``, or the code of an error."""
        self._completions.add(verdict.lower(), count)

    def accepted(self, seconds: float | None) -> None:
        """A worker's report was accepted, so long after its attempt was sent."""
        self._completions.counts["accepted"] += 1
        if seconds is not None:
            self.callback_took(seconds)

    def dispatched(self, outcome: str) -> None:
        self._dispatches.add(outcome)

    def callback_took(self, seconds: float) -> None:
        self._callback.observe(max(seconds, 0.0))  # the wall clock may have been set back

    def committed(self, batch_size: int, seconds: float) -> None:
        self._batch_size.observe(batch_size)
        self._commit.observe(seconds)

    def swept(self, name: str, items: int) -> None:
        """Count a run of a sweep and the number of items that it handled, which may be 0."""
        self._sweeps.add(name)
        self._swept.add(name, items)

    def store_failed(self) -> None:
        self._store_failures.inc()

    def cancel_called(self, outcome: str) -> None:
        self._cancel_calls.add(outcome)

    def delivered(self, outcome: str) -> None:
        """A subscriber was called."""
        self._control.deliveries.add(outcome)

    def schedule_fired(self, outcome: str, ticks: int = 1) -> None:
        self._control.schedules.add(outcome, ticks)

    def run_key_conflict(self, on_conflict: str, outcome: str) -> None:
        """A start was answered whose run key another flow owned, or whose owner it superseded."""
        self._control.run_keys.labels(on_conflict, outcome).inc()

    def gated(self, decision: str, source: str) -> None:
        """A call of the gate was answered."""
        self._control.gates.add(f"{decision}_{source}")

    def reviewed(self, status: str) -> None:
        """An approval was reviewed or has expired; ``pending``: more approvals are needed."""
        self._control.approvals.add(status)

    def reconciled(self, outcome: str) -> None:
        self._effects.settled.add(outcome)

    def probed(self, state: str) -> None:
        self._effects.probes.add(state)

    def dedup_hit(self, count: int = 1) -> None:
        self._effects.dedup_hits.inc(count)

    def effect_requested(self, verdict: str) -> None:
        """A tool asked for a reservation: ``granted``, ``renewed``, ``dedup_hit``, or the code of an error."""
        self._effects.requests.add(verdict.lower())

    def effect_ended(self, state: str) -> None:
        """A reservation was completed or settled."""
        self._effects.outcomes.add(state)

    def set_pending_effects(self, live: int, lapsed: int) -> None:
        """How many reservations are pending, within their time to live and past it."""
        self._effects.set_pending(live, lapsed)

    def callbacks_recorded(self, count: int) -> None:
        self._callbacks.recorded.inc(count)

    def callback_dropped(self, reason: str) -> None:
        """A callback was left out of the inbox."""
        self._callbacks.dropped.add(reason)

    def set_reconciliations(self, by_hold: Mapping[str, tuple[int, float]]) -> None:
        """By hold, how many items wait and the age of the oldest; a hold that is not given has none."""
        self._effects.set_unsettled(by_hold)

    def hook_delivery(self, verdict: str) -> None:
        """A payload for a hook was answered."""
        self._hooks.deliveries.add(verdict.lower())

    def set_hooks_waiting(self, count: int) -> None:
        self._hooks.waiting.set(count)

    def connection_ended(self, reason: str) -> None:
        """The engine itself closed a connection."""
        self._connections.add(reason)

    def set_connections(self, count: int) -> None:
        self._open_connections.set(count)

    def set_backlog(self, commands: int) -> None:
        self._backlog.set(commands)

    def set_waiting_polls(self, count: int) -> None:
        self._waiting_polls.set(count)

    def set_work_by_state(self, counts: Mapping[str, int]) -> None:
        """Set all states at once; a state that is not given has no items."""
        for state, gauge in self._work.items():
            gauge.set(counts.get(state, 0))

    def set_oldest_waiting(self, seconds: Mapping[str, float]) -> None:
        """Set the age of the oldest waiting item for all steps at once; a step that is not given has none."""
        self._oldest.seconds = dict(seconds)

    def render(self) -> tuple[bytes, str]:
        """The metrics in text form, and their content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


def _tell_build(registry: CollectorRegistry) -> None:
    build = Gauge("counterfoil_build_info", "Version information; always 1.", ["version", "python"], registry=registry)
    build.labels(__version__, platform.python_version()).set(1)
