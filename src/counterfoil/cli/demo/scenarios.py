"""The steps of the demo: how the worker of each misbehaves, and how its flows must end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

WORK: dict[str, Any] = {
    "max_retries": 5,
    "backoff_type": "exponential",
    "init_backoff_ms": 150,
    "max_backoff_ms": 1_000,
    "jitter": True,
    "ack_timeout_ms": 5_000,
    "deadline_ms": 10_000,
    "heartbeat_timeout_ms": None,
    "parallelism": None,
}
SLOW_SECONDS = 2.4
SLOW_DEADLINE_MS = 1_500


@dataclass(frozen=True, slots=True)
class Scenario:
    """One step of the demo. ``retried``: every flow of it needs more than one attempt.

    The story has at most 24 characters, so that the tables fit a terminal of 80 columns. ``more``: further fields of
    the step definition.
    """

    step_id: str
    story: str
    kind: Literal["async", "sync"] = "async"
    expected: Literal["completed", "failed"] = "completed"
    retried: bool = False
    work: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def definition(self, worker_url: str) -> dict[str, Any]:
        """The step as it is registered."""
        return {
            "kind": self.kind,
            "name": self.story,
            "endpoint": f"{worker_url}/{self.step_id}",
            "work": {**WORK, **self.work},
            "labels": {"demo": "true"},
            **self.more,
        }


CHARGE = Scenario(
    "charge",
    "unsafe_once, worker dies",
    kind="sync",
    more={"effect": {"policy": "unsafe_once"}, "control": {"approval": {"reason": "it charges a card"}}},
)
SCENARIOS = (
    Scenario("steady", "completes after a delay"),
    Scenario("flaky", "503 once or twice", retried=True),
    Scenario("gives-back", "not_completed at first", retried=True),
    Scenario("slow", "heartbeats past deadline", work={"deadline_ms": SLOW_DEADLINE_MS}),
    Scenario("twice", "duplicates and conflicts"),
    Scenario("early", "reports before answering"),
    Scenario("sync", "result in the response", kind="sync"),
    Scenario("hopeless", "fails permanently", expected="failed"),
    Scenario("silent", "no callback at first", retried=True, work={"deadline_ms": 1_200}),
    CHARGE,
)


def round_of(number: int) -> int:
    """How many flows of the same step were started before the flow with this number."""
    return (number - 1) // len(SCENARIOS)


def answer_of(number: int) -> dict[str, Any]:
    """The correct outputs of a flow."""
    return {"answer": number * number}
