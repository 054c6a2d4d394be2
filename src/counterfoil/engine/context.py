"""What every use case is given: the clock, id generator, random source, node id and engine limits."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from counterfoil.domain.approvals.terms import Reviewers
from counterfoil.domain.callbacks.inbox import CallbackRules
from counterfoil.domain.callbacks.secrets import Secrets
from counterfoil.domain.errors import InvalidResult
from counterfoil.domain.flows.view import FlowRules
from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.domain.time import Clock
from counterfoil.domain.work.decisions import RetryRules
from counterfoil.domain.work.receipts import Receipts
from counterfoil.domain.work.results import StepResult
from counterfoil.store.cache.definitions import DefinitionCache
from counterfoil.store.unit_of_work.unit import new_id


def system_clock() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Retention:
    """How long ended flows, and their payloads, are kept; None: forever."""

    flows_ms: int | None = None
    payloads_ms: int | None = None


@dataclass
class EngineContext:
    """Injected, so that tests can move the clock and know the ids."""

    receipts: Receipts
    defaults: WorkDefaults = field(default_factory=WorkDefaults)
    retry_after_limit_ms: int = 3_600_000
    clock: Clock = system_clock
    new_id: Callable[[], str] = new_id
    draw: Callable[[], float] = random.random
    node_id: str = field(default_factory=new_id)
    webhook_base_url: str = ""
    accepting: bool = False
    """Whether this node takes new work: from its start until it begins to stop."""
    page_bytes: int = 4 * 1024 * 1024
    """About how many bytes of text one page of a list has."""
    retention: Retention = field(default_factory=Retention)
    rules: FlowRules = field(default_factory=FlowRules)
    reviewers: Reviewers = field(default_factory=Reviewers)
    secrets: Secrets = field(default_factory=Secrets)
    """The secrets of vendors, by which their callbacks are checked."""
    callbacks: CallbackRules = field(default_factory=CallbackRules)
    known: DefinitionCache = field(init=False)
    """Definitions, plans and the register, as far as this node has loaded them."""

    def __post_init__(self) -> None:
        self._without_jitter = RetryRules(0.0, self.retry_after_limit_ms)
        self.known = DefinitionCache(defaults=self.defaults)

    def retry_rules(self) -> RetryRules:
        """The jitter is drawn before the decision, so that the decision itself is deterministic."""
        return RetryRules(self.draw(), self.retry_after_limit_ms)

    def retry_rules_for(self, result: StepResult | InvalidResult) -> RetryRules:
        """The same for a report: only a failure is tried again, so for anything else no jitter is drawn."""
        is_failure = isinstance(result, StepResult) and not result.success
        return self.retry_rules() if is_failure else self._without_jitter
