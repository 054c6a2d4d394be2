"""The attempts of a work item, read from its journal."""

from __future__ import annotations

from typing import Any

from counterfoil.domain.jsontext import parse_json
from counterfoil.domain.time import optional_rfc3339, rfc3339
from counterfoil.domain.work.decisions import REPORTED_VIA
from counterfoil.store.protocol import Row
from counterfoil.wire.work import AttemptDocument

_ENDS = frozenset({"work_not_completed", "work_succeeded", "work_failed", "work_cancelled"})
_STARTS = frozenset({"work_dispatched", "work_granted"})
_DELIVERIES = {"answered": "delivered"}
"""What the journal calls otherwise than the API."""


class Attempts:
    """Reads the events of one work item in their order."""

    def __init__(self) -> None:
        self.documents: list[AttemptDocument] = []
        self.dedup_of: str | None = None
        """The item whose result was reused."""
        self.probed = False
        """Whether the outcome was found out by ``status_url``."""
        self._planned_at: int | None = None
        self._approved_at: int | None = None
        self._unsent = 0

    def read(self, event_type: str, at: int, facts: dict[str, Any]) -> None:
        """Take one event into account."""
        if event_type == "work_created":
            self._planned_at = at
        elif event_type == "approval_approved":
            self._approved_at = at
        elif event_type == "work_reconciled" and facts["outcome"] == "not_applied":
            self._planned_at = at
        if event_type in _STARTS:
            self._start(at)
        elif self.documents:
            self._follow(self.documents[-1], event_type, at, facts)
        if event_type in _ENDS:
            self.dedup_of = facts.get("dedup_of")
            self.probed = facts.get("via") == "probe"

    def _start(self, at: int) -> None:
        self.documents.append(
            {
                "attempt": len(self.documents) + 1 - self._unsent,
                "planned_at": rfc3339(at if self._planned_at is None else self._planned_at),
                "approved_at": optional_rfc3339(self._approved_at),
                "started_at": rfc3339(at),
                "sent_at": rfc3339(at),
                "acknowledged_at": None,
                "finished_at": None,
                "ended_at": None,
                "outcome": "waiting",
                "delivery": None,
                "cause": None,
                "error": None,
                "next_attempt_at": None,
            }
        )
        self._approved_at = None

    def _follow(self, attempt: AttemptDocument, event_type: str, at: int, facts: dict[str, Any]) -> None:
        if event_type == "work_acknowledged" or (event_type == "work_heartbeat" and facts.get("taken")):
            attempt["acknowledged_at"] = rfc3339(at)
            attempt["delivery"] = "delivered"
        elif event_type == "work_resumed":
            attempt["delivery"] = "delivered"
            attempt["outcome"] = "waiting"
            attempt["finished_at"] = attempt["ended_at"] = attempt["error"] = attempt["cause"] = None
        elif event_type == "work_probed":
            if facts["state"] == "done":
                attempt["delivery"] = "delivered"
            elif facts["state"] == "not_found" and attempt["delivery"] == "unknown":
                attempt["delivery"] = "not_delivered"
        elif event_type == "work_postponed":
            if facts.get("via") in REPORTED_VIA:
                attempt["delivery"] = "delivered"
            if attempt["next_attempt_at"] is None:  # until now it was undecided whether another one follows
                self._planned_at = at
            attempt["error"] = facts["error"]
            attempt["next_attempt_at"] = optional_rfc3339(facts["next_attempt_at"])
        elif event_type in _ENDS:
            self._end(attempt, event_type, at, facts)

    def _end(self, attempt: AttemptDocument, event_type: str, at: int, facts: dict[str, Any]) -> None:
        delivery = facts.get("delivery")
        attempt["finished_at"] = attempt["ended_at"] = rfc3339(at)
        attempt["outcome"] = event_type.removeprefix("work_")
        if event_type == "work_succeeded" or facts.get("via") in REPORTED_VIA:
            attempt["delivery"] = "delivered"  # a result proves it
        elif delivery is not None:
            attempt["delivery"] = _DELIVERIES.get(delivery, delivery)
        attempt["cause"] = facts.get("cause")
        attempt["error"] = facts.get("error")
        attempt["next_attempt_at"] = optional_rfc3339(facts.get("next_attempt_at"))
        self._unsent += bool(facts.get("unsent"))
        self._planned_at = at


def read_attempts(events: list[Row]) -> Attempts:
    """The attempts of a work item, from all its events in their order."""
    attempts = Attempts()
    for _, event_type, at, _, _, _, _, data in events:
        attempts.read(event_type, at, parse_json(data))
    return attempts
