"""What the endpoints know of effects: an account of every request on the simulated network, kept without the engine.

Each request may have had an effect, unless something proves that it had none: a refused connection, an answer by which
the endpoint did not take the work, the word of the worker, or that of the ``status_url``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

Policy = Literal["pure", "idempotent", "dedupe", "reconcile", "unsafe_once"]
HELD = ("reconcile", "unsafe_once")
FINAL = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class Spec:
    """How a step is defined, as far as it matters here."""

    policy: Policy = "idempotent"
    scope: Literal["flow", "global"] = "flow"
    kind: Literal["async", "sync"] = "async"
    status_url: bool = False
    max_retries: int = 1
    approval: bool = False
    parallelism: int | None = None

    @property
    def shares(self) -> bool:
        """Whether items with the same key share one result."""
        return self.policy == "dedupe" or self.scope == "global"

    @property
    def approved_first(self) -> bool:
        return self.approval or self.policy == "unsafe_once"


@dataclass
class Account:
    """One work item as the endpoints, the reviewers and the operators know it."""

    work_id: str
    step_id: str
    spec: Spec
    key: str | None = None
    attempts: dict[int, bool] = field(default_factory=dict)
    """Each attempt that was sent, and whether it may have had an effect."""
    approvals: int = 0
    not_applied: int = 0

    @property
    def effects(self) -> int:
        """Attempts that may have had an effect."""
        return sum(self.attempts.values())

    def sent(self, attempt: int, key: str) -> None:
        assert attempt not in self.attempts, "an attempt is sent at most once"
        assert self.key in (None, key), "the key is the same in every attempt"
        self.key = key
        self.attempts[attempt] = True

    def proves_none(self, attempt: int | None = None) -> None:
        """This attempt, or the last one, had no effect."""
        attempt = max(self.attempts, default=None) if attempt is None else attempt
        if attempt in self.attempts:
            self.attempts[attempt] = False

    def check(self) -> None:
        policy = self.spec.policy
        if policy == "unsafe_once":
            assert self.effects <= self.approvals, "unsafe_once: two attempts that may have had an effect, one approval"
        elif policy == "reconcile":
            assert self.effects <= 1 + self.not_applied, "reconcile: re-sent by the engine itself"
        if self.spec.approved_first and self.attempts:
            assert self.approvals, "sent without the approval of its step"
        assert len(self.attempts) <= 1 + self.spec.max_retries + self.not_applied, (
            "more attempts than its retries allow"
        )


class Ledger:
    """All work items, and what was recorded under each key that items share."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.recorded: dict[tuple[str, str], str] = {}
        """By step and key, the item whose result is recorded: no other may be sent, unless a person asks for it."""
        self.final: dict[str, Any] = {}

    def of(self, work_id: str, step_id: str, spec: Spec) -> Account:
        return self.accounts.setdefault(work_id, Account(work_id, step_id, spec))

    def check_items(self, items: list[dict[str, Any]], specs: dict[str, Spec]) -> None:
        """Compare all work items, as the API shows them, with the account."""
        owners: Counter[tuple[str, str]] = Counter()
        for work in items:
            spec, place = specs[work["step_id"]], (work["step_id"], work["idempotency_key"])
            account = self.of(work["work_id"], work["step_id"], spec)
            account.check()
            assert account.key in (None, work["idempotency_key"])
            if work["status"] in FINAL:
                seen = (work["status"], work["outputs"], work["error"], work["recorded_at"])
                assert self.final.setdefault(work["work_id"], seen) == seen, "the first outcome never changes"
            else:
                self._check_open(work, account)
            in_hand = work["status"] == "active" or work["hold"] in HELD
            if spec.shares and in_hand and work["status"] != "cancelled":
                owners[place] += 1
        assert all(count == 1 for count in owners.values()), "two items with one key in flight"

    def _check_open(self, work: dict[str, Any], account: Account) -> None:
        status, hold = work["status"], work["hold"]
        if status == "not_completed" and account.spec.policy in HELD:
            unknown = account.attempts and account.attempts[max(account.attempts)]
            waits = work["next_attempt_at"] is None
            assert (hold in HELD) is waits, "neither planned nor in the queue"
            if unknown and not waits:
                assert account.not_applied, "an attempt with an unknown outcome is planned again"
        if hold == "dedup":
            assert (status, work["attempt"]) == ("pending", 0)
