"""What Hypothesis may choose from: steps, reports, answers of endpoints, moves of the clock; and what each is."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from counterfoil.domain.effects.reconciling import Settlement
from counterfoil.domain.steps.definitions import StepDefinition, WorkDefaults
from counterfoil.domain.work.replies import Reply
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import answered, connection_refused, timed_out
from tests.property.model import ACK_TIMEOUT_MS, DEADLINE_MS, INIT_BACKOFF_MS, MAX_BACKOFF_MS, Report, Rules

CANCEL_URL = "http://worker/cancel"
STATUS_URL = "http://worker/status/"
DEFAULTS = WorkDefaults(
    init_backoff_ms=INIT_BACKOFF_MS,
    max_backoff_ms=MAX_BACKOFF_MS,
    jitter=False,
    ack_timeout_ms=ACK_TIMEOUT_MS,
    deadline_ms=DEADLINE_MS,
)

RULES = st.builds(
    Rules,
    kind=st.sampled_from(["async", "async", "async", "sync"]),
    max_retries=st.sampled_from([2, 3, 1, 0, -1]),
    backoff_type=st.sampled_from(["fixed", "linear", "exponential"]),
    heartbeat_timeout_ms=st.sampled_from([None, None, 10_000, 90_000]),
    tolerates_repeats=st.booleans(),
    queued=st.sampled_from([False, False, True]),
    typed=st.booleans(),
    cancel_url=st.booleans(),
    policy=st.sampled_from(["idempotent", "pure", "dedupe", "reconcile", "reconcile", "unsafe_once"]),
    status_url=st.booleans(),
)
HELD_RULES = st.builds(
    Rules,
    kind=st.sampled_from(["async", "async", "async", "sync"]),
    max_retries=st.sampled_from([2, 1, 0, 3]),
    backoff_type=st.sampled_from(["fixed", "exponential"]),
    heartbeat_timeout_ms=st.sampled_from([None, 10_000]),
    typed=st.booleans(),
    cancel_url=st.booleans(),
    policy=st.sampled_from(["reconcile", "unsafe_once", "reconcile", "unsafe_once", "idempotent"]),
    status_url=st.sampled_from([True, True, False]),
)
"""Steps whose outcomes people or a ``status_url`` settle."""
ITEM = st.integers(0, 1)
FINAL_REPORTS = st.sampled_from(
    [
        Report(True, {"value": "a"}),
        Report(True, {"value": "b", "more": [1, 2.5]}),
        Report(True, {"value": "a"}, error="ignored, but said"),
        Report(True),
        Report(False, error="broken"),
        Report(False, error="broken", outputs={"value": "half"}),
        Report(False),
    ]
)
NOT_COMPLETED_REPORTS = st.builds(
    Report,
    success=st.just(False),
    error=st.sampled_from([None, "not now"]),
    retriable=st.just(True),
    retry_after=st.sampled_from([None, 0, 2.5, 30, 100_000]),
    attempt=st.sampled_from([None, 1, 2, 3]),
)
REPORTS = st.one_of(NOT_COMPLETED_REPORTS, NOT_COMPLETED_REPORTS, FINAL_REPORTS)
ANSWERS = st.sampled_from(
    [
        *["ack", "ack", "ack", "ack_success", "odd", "failed", "400", "302"],
        *["retriable", "old_retriable", "503", "429", "refused", "timeout", "500", "408", "timeout"] * 2,
    ]
)
MOVES = st.sampled_from([0, 1, INIT_BACKOFF_MS, 2_000, 7_000, 10_000, DEADLINE_MS, 100_000])
PROGRESS = st.one_of(st.none(), st.sampled_from([0, 1, 0.1 + 0.2]), st.floats(0, 1))
SWEEPS = st.permutations(list(SweepName))

REPLIES: dict[str, Reply] = {
    "ack": answered(),
    "ack_success": answered(202, {"success": True, "outputs": {"value": "answered"}}),
    "odd": answered(200, b"thank you"),
    "failed": answered(200, {"success": False, "error": "no"}),
    "retriable": answered(200, {"success": False, "error": "busy", "retriable": True, "retry_after": 3}),
    "old_retriable": answered(200, {"success": False, "retriable": True, "attempt": 1}),
    "503": answered(503),
    "429": answered(429, retry_after_ms=4_000),
    "500": answered(500),
    "408": answered(408),
    "400": answered(400),
    "302": answered(302),
    "refused": connection_refused(),
    "timeout": timed_out(),
}
SAID: dict[str, Report] = {
    "ack_success": Report(True, {"value": "answered"}),
    "failed": Report(False, error="no"),
    "retriable": Report(False, error="busy", retriable=True, retry_after=3),
    "old_retriable": Report(False, retriable=True),
}
GIVEN_BACK = {
    "503": ("ENDPOINT_UNAVAILABLE", 0, None),
    "429": ("ENDPOINT_UNAVAILABLE", 4_000, None),
    "refused": ("NOT_DELIVERED", 0, None),
    "timeout": ("UNKNOWN_OUTCOME", 0, "ack_timeout"),
    "500": ("ENDPOINT_UNAVAILABLE", 0, "server_error"),
    "408": ("ENDPOINT_UNAVAILABLE", 0, "server_error"),
}
"""What is told of an attempt, how long to wait at least, and why it may have had an effect."""
PROBES: dict[str, Reply] = {
    "running": answered(200, {"state": "running"}),
    "done": answered(200, {"state": "done", "result": {"success": True, "outputs": {"value": "probed"}}}),
    "failed": answered(200, {"state": "done", "result": {"success": False, "error": "no"}}),
    "retriable": answered(200, {"state": "done", "result": {"success": False, "retriable": True, "retry_after": 3}}),
    "not_found": answered(200, {"state": "not_found"}),
    "unknown": answered(200, {"state": "unknown"}),
    "error": answered(404, {"state": "not_found"}),
}
PROBED: dict[str, Report] = {
    "done": Report(True, {"value": "probed"}),
    "failed": Report(False, error="no"),
    "retriable": Report(False, retriable=True, retry_after=3),
}
SETTLEMENTS = st.sampled_from(
    [
        Settlement(outcome="not_applied"),
        Settlement(outcome="not_applied"),
        Settlement(outcome="applied", outputs={"value": "found"}),
        Settlement(outcome="applied", outputs={"value": 1}),
        Settlement(outcome="failed", error="settled by hand"),
    ]
)
REJECTED = {"400": "ENDPOINT_REJECTED", "302": "ENDPOINT_REDIRECT"}


def definition_of(rules: Rules, step_id: str) -> StepDefinition:
    work: dict[str, Any] = {"max_retries": rules.max_retries, "backoff_type": rules.backoff_type}
    if rules.heartbeat_timeout_ms is not None:
        work["heartbeat_timeout_ms"] = rules.heartbeat_timeout_ms
    if rules.queued:
        work["parallelism"] = 1
    return StepDefinition.model_validate(
        {
            "kind": rules.kind,
            "endpoint": f"http://worker/{step_id}",
            "attributes": {"value": {"role": "output", "type": "string"}} if rules.typed else {},
            "work": work,
            "duplicate_status": 200 if rules.tolerates_repeats else 400,
            "cancel_url": CANCEL_URL if rules.cancel_url else None,
            "status_url": STATUS_URL + step_id if rules.status_url else None,
            "effect": {"policy": rules.policy},
            "control": {"approval": {}} if rules.policy == "unsafe_once" else {},
        }
    )
