"""The demo's steps: what each one's worker does wrong, and how its flows must end all the same."""

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
    """One step of the demo. ``retried``: every flow of it needs more than one attempt."""

    step_id: str
    story: str
    kind: Literal["async", "sync"] = "async"
    expected: Literal["completed", "failed"] = "completed"
    retried: bool = False
    work: dict[str, Any] = field(default_factory=dict)

    def definition(self, worker_url: str) -> dict[str, Any]:
        """The step as it is registered."""
        return {
            "kind": self.kind,
            "name": self.story,
            "endpoint": f"{worker_url}/{self.step_id}",
            "work": {**WORK, **self.work},
            "labels": {"demo": "true"},
        }


SCENARIOS = (
    Scenario("steady", "answers a moment later"),
    Scenario("flaky", "503 at first, sometimes twice", retried=True),
    Scenario("gives-back", "hands it back, then does it", retried=True),
    Scenario("slow", "heartbeats past its deadline", work={"deadline_ms": SLOW_DEADLINE_MS}),
    Scenario("twice", "repeats, even contradicts"),
    Scenario("early", "posts before it answers 200"),
    Scenario("sync", "answers in the response", kind="sync"),
    Scenario("hopeless", "fails for good, as intended", expected="failed"),
    Scenario("silent", "no callback the first time", retried=True, work={"deadline_ms": 1_200}),
)


def answer_of(number: int) -> dict[str, Any]:
    """The one right result of a flow: what its outputs must be in the end."""
    return {"answer": number * number}
