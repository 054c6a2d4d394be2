"""What a flow must do, said a second time and as plainly as possible: the model that the engine is compared with.

It shares no code with the engine. Times are milliseconds; nothing here is random, since the steps have no jitter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

INIT_BACKOFF_MS = 1_000
MAX_BACKOFF_MS = 5_000
ACK_TIMEOUT_MS = 2_000
DEADLINE_MS = 60_000
SYNC_GRACE_MS = 5_000
LONGEST_RETRY_AFTER_MS = 100_000

PROBE_CLAIM_MS = 15_000
"""How long a node that asks a ``status_url`` keeps the others from asking."""

OPEN = ("pending", "held", "active", "not_completed")
HELD = ("reconcile", "unsafe_once")
UNKNOWN_ERRORS = ("UNKNOWN_OUTCOME", "DEADLINE_EXCEEDED", "INTERRUPTED", "OUTCOME_UNKNOWN", "UNSAFE_ONCE_INCOMPLETE")


@dataclass(frozen=True)
class Rules:
    """How a step is defined, as far as it matters here."""

    kind: Literal["async", "sync"] = "async"
    max_retries: int = 1
    backoff_type: Literal["fixed", "linear", "exponential"] = "fixed"
    heartbeat_timeout_ms: int | None = None
    tolerates_repeats: bool = False
    queued: bool = False
    """The step has a limit over all flows, so only the sweep sends its work."""
    typed: bool = False
    """The step declares one output, ``value``, which must be a string."""
    cancel_url: bool = False
    policy: Literal["pure", "idempotent", "dedupe", "reconcile", "unsafe_once"] = "idempotent"
    """``unsafe_once``: with an approval before the first attempt."""
    status_url: bool = False

    @property
    def holds(self) -> bool:
        """Whether an attempt with an unknown outcome is never repeated by the engine itself."""
        return self.policy in HELD

    @property
    def patience_ms(self) -> int:
        """How long the silence of a worker is borne."""
        return min(DEADLINE_MS, self.heartbeat_timeout_ms or DEADLINE_MS)


@dataclass(frozen=True)
class Report:
    """What a worker says, or an endpoint in its answer."""

    success: bool
    outputs: dict[str, Any] | None = None
    error: str | None = None
    retriable: bool = False
    retry_after: float | None = None
    attempt: int | None = None

    def said(self) -> tuple[bool, dict[str, Any], str | None]:
        return self.success, self.outputs or {}, self.error

    def body(self) -> dict[str, Any]:
        shown = {
            "success": self.success,
            "outputs": self.outputs,
            "error": self.error,
            "retriable": self.retriable,
            "retry_after": self.retry_after,
            "attempt": self.attempt,
        }
        return {name: value for name, value in shown.items() if value is not None}


@dataclass
class Probe:
    """When the ``status_url`` is asked about an attempt, and how often it was."""

    attempt: int
    due_at: int
    probes: int = 0


@dataclass
class Item:
    """One work item: its state, and what the engine must show of it."""

    step_id: str
    rules: Rules
    due_at: int | None
    status: str = "pending"
    attempt: int = 0
    sending: int | None = None
    """The attempt whose answer is still awaited, by an engine that may be gone by now."""
    sender: int = 0
    """Which process sent the last attempt; they are numbered as they were started."""
    deadline_at: int | None = None
    progress: float | None = None
    message: str | None = None
    said: tuple[bool, dict[str, Any], str | None] | None = None
    error: str | None = None
    recorded_at: int | None = None
    cancel_calls: int = 0
    hold: str | None = None
    """Why it waits in the reconciliation queue; one that is cancelled stays there."""
    maybe_held: bool = False
    """It was cancelled by a sweep that was about to hold it: which came first is for the engine to say."""
    probe: Probe | None = None
    approved: bool = False
    granted: int = 0
    """Attempts that an operator asked for."""

    @property
    def open(self) -> bool:
        return self.status in OPEN

    @property
    def outputs(self) -> dict[str, Any] | None:
        return None if self.said is None else self.said[1]

    def claim(self, now: int, process: int) -> bool:
        """Send the next attempt if it is due, and approved where it must be."""
        if self.status not in ("pending", "not_completed") or self.due_at is None or self.due_at > now:
            return False
        if self.rules.policy == "unsafe_once" and self.attempt == 0 and not self.approved:
            self.status, self.due_at = "held", None
            return False
        self.approved, self.probe = False, None
        self.status = "active"
        self.attempt += 1
        self.sending = self.attempt
        self.sender = process
        self.error = None
        if self.rules.kind == "async":
            self.due_at = self.deadline_at = now + self.rules.patience_ms
        else:
            self.due_at = now + ACK_TIMEOUT_MS + SYNC_GRACE_MS
        return True

    def acknowledge(self) -> None:
        self.sending = None

    def end(self, status: str, now: int, error: str | None = None) -> None:
        assert self.open
        self.status, self.error, self.recorded_at = status, error, now
        self.deadline_at = self.sending = self.probe = self.due_at = None
        if status != "cancelled":
            self.hold = None

    def give_back(self, error: str, now: int, retry_after_ms: float = 0, cause: str | None = None) -> None:
        """The attempt ended without an outcome: wait for the next one, be held or asked about, or fail."""
        held = cause is not None and self.rules.holds
        if held or (cause == "deadline_passed" and self.rules.status_url):
            self.status, self.error, self.due_at = "not_completed", error, None
            self.deadline_at = self.sending = None
            if held:
                self.hold = self.rules.policy
                self.error = "OUTCOME_UNKNOWN" if self.hold == "reconcile" else "UNSAFE_ONCE_INCOMPLETE"
            self.probe = Probe(self.attempt, now) if self.rules.status_url else None
            return
        self.plan(error, now, retry_after_ms)

    def plan(self, error: str | None, now: int, retry_after_ms: float = 0) -> None:
        """Plan the next attempt, or fail without one."""
        counted = self.attempt - (self.granted if self.attempt > 1 else 0)
        if self.rules.max_retries != -1 and counted > self.rules.max_retries:
            self.end("failed", now, "RETRIES_EXHAUSTED")
            return
        self.due_at = now + max(self.backoff(self.attempt), round(min(retry_after_ms, LONGEST_RETRY_AFTER_MS)))
        self.status, self.error = "not_completed", error
        self.deadline_at = self.sending = self.probe = self.hold = None

    def backoff(self, number: int) -> int:
        factor: int = {"fixed": 1, "linear": number, "exponential": 2 ** (number - 1)}[self.rules.backoff_type]
        return min(INIT_BACKOFF_MS * factor, MAX_BACKOFF_MS)

    def resume(self, now: int) -> None:
        """A worker has the attempt after all."""
        self.status, self.error, self.hold, self.sending = "active", None, None, None
        self.due_at = self.deadline_at = None
        self.go_on(now)

    def go_on(self, now: int) -> None:
        """An attempt that runs gets more time, never less."""
        if self.rules.kind == "async":
            self.deadline_at = max(self.deadline_at or 0, now + self.rules.patience_ms)
            self.due_at = max(self.due_at or 0, self.deadline_at)
        else:
            self.due_at = max(self.due_at or 0, now + ACK_TIMEOUT_MS + SYNC_GRACE_MS)

    # Operators, reviewers and status_url ----------------------------------------------------------------------------

    def review(self, verdict: str, now: int) -> None:
        assert self.status == "held"
        if verdict == "approve":
            self.status, self.due_at, self.approved = "pending", now, True
        else:
            self.end("failed", now, "APPROVAL_REJECTED")

    def settle(self, outcome: str, outputs: dict[str, Any] | None, error: str | None, now: int) -> str:
        """What an operator says of an item in the queue; the code of the refusal, or the state after it."""
        if self.hold is None:
            return "NOT_WAITING_FOR_RECONCILIATION"
        if outcome == "applied" and self.rules.typed and not isinstance((outputs or {}).get("value"), str):
            return "INVALID_INPUT"
        hold, self.hold = self.hold, None
        if not self.open:
            return self.status
        self.probe = None
        if outcome != "not_applied":
            self.conclude(Report(outcome == "applied", outputs, error), now)
        elif hold == "reconcile":
            self.granted, self.due_at = self.granted + 1, now
        else:
            self.granted, self.status, self.due_at = self.granted + 1, "held", None
        return self.status

    @property
    def undecided(self) -> bool:
        """Whether the ``status_url`` can say anything about the last attempt."""
        waits = self.status == "not_completed" and self.due_at is None
        return self.probe is not None and self.probe.attempt == self.attempt and (self.status == "active" or waits)

    def claim_probe(self, now: int) -> bool:
        """Whether the ``status_url`` is asked now."""
        if self.probe is None or self.probe.due_at > now:
            return False
        if not self.undecided:
            self.probe = None
            return False
        self.probe.due_at = now + PROBE_CLAIM_MS
        return True

    def take_answer(self, state: str, report: Report | None, now: int) -> None:
        if self.probe is None or not self.undecided:
            return
        self.probe.probes += 1
        self.probe.due_at = now + self.backoff(self.probe.probes)
        if report is not None:
            if report.retriable:
                self.give_back_by(report, now)
            else:
                self.conclude(report, now)
        elif state == "running":
            if self.status == "not_completed":
                self.resume(now)
            else:
                self.go_on(now)
        elif state == "not_found":
            self.plan("NOT_APPLIED", now)
        elif self.status == "not_completed" and self.hold is None:
            self.plan(self.error, now)

    # Workers --------------------------------------------------------------------------------------------------------

    def report(self, report: Report, now: int) -> str:
        """The verdict, or the code of the refusal."""
        if not self.open:
            return self.repeat(report)
        if self.attempt == 0:
            return "WORK_NOT_ACTIVE"
        if report.success or not report.retriable:
            self.conclude(report, now)
            return "accepted"
        pause = round((report.retry_after or 0) * 1000)
        if self.status == "active":
            if report.attempt is not None and report.attempt < self.attempt:
                return "stale"
            self.give_back_by(report, now)
            return "accepted"
        if self.hold is not None or (self.status == "not_completed" and self.due_at is None):
            self.give_back_by(report, now)
            return "accepted"
        if self.error == "NOT_COMPLETED" or self.due_at is None:
            return "duplicate"
        self.due_at = max(self.due_at, now + min(pause, LONGEST_RETRY_AFTER_MS))
        self.error = "NOT_COMPLETED"
        return "accepted"

    def repeat(self, report: Report) -> str:
        """What is said of a report on work that has ended."""
        if self.status == "cancelled":
            return "WORK_CANCELLED"
        if self.said != report.said():
            return "CONFLICTING_RESULT"
        return "duplicate" if self.rules.tolerates_repeats else f"ALREADY_{self.status.upper()}"

    def give_back_by(self, report: Report, now: int) -> None:
        """The worker reports the attempt as not completed; if it was the last one, this is the result."""
        self.plan("NOT_COMPLETED", now, (report.retry_after or 0) * 1000)
        if self.status == "failed":
            self.said = report.said()

    def conclude(self, report: Report, now: int) -> None:
        """A final result; outputs of the wrong type make a failure of it."""
        wrong = self.rules.typed and not isinstance((report.outputs or {}).get("value"), str)
        if not report.success:
            self.end("failed", now, "STEP_FAILED")
        elif wrong:
            self.end("failed", now, "INVALID_OUTPUT")
        else:
            self.end("succeeded", now)
        self.said = report.said()

    def beat(self, progress: float | None, message: str | None, now: int) -> str:
        """What a heartbeat does; the code of the refusal, or ``taken`` or ``cancelled``."""
        if self.status == "cancelled":
            return "cancelled"
        if not self.open:
            return f"ALREADY_{self.status.upper()}"
        if self.attempt == 0:
            return "WORK_NOT_ACTIVE"
        self.progress = self.progress if progress is None else progress
        self.message = self.message if message is None else message
        if self.status == "not_completed" and self.error in UNKNOWN_ERRORS and self.rules.kind == "async":
            self.resume(now)
            self.probe = None
        elif self.status == "active" and self.deadline_at is not None:
            self.sending = None  # it has the attempt
            self.due_at = self.deadline_at = max(self.deadline_at, now + self.rules.patience_ms)
        return "taken"

    def cancel(self, now: int) -> None:
        if self.rules.cancel_url and self.attempt:
            self.cancel_calls += 1
        self.end("cancelled", now)


@dataclass
class FlowModel:
    """One flow whose steps are all goals: it fails with the first of them, and completes with the last."""

    items: dict[str, Item]
    status: str = "active"
    outputs: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    _counted: set[str] = field(default_factory=set)

    def settle(self, now: int) -> None:
        """What follows for the flow from a change of one of its items."""
        if self.status != "active":
            return
        for step_id, item in self.items.items():
            if item.status == "failed":
                self.error = item.error
                self.finish("failed", now)
                return
            if item.status == "succeeded" and step_id not in self._counted:
                self._counted.add(step_id)
                given = item.outputs or {}
                shown = {name: given[name] for name in given if name == "value" or not item.rules.typed}
                self.outputs = {**shown, **self.outputs}
        if all(item.status == "succeeded" for item in self.items.values()):
            self.status = "completed"

    def finish(self, status: str, now: int) -> None:
        """End early: what is open is cancelled."""
        for item in self.items.values():
            if item.open:
                item.cancel(now)
        self.status = status
