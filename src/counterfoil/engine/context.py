"""What every use case is given: the clock, the id maker, the dice, the node's name and the rules of the house."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from uuid_utils import uuid7

from counterfoil.domain.receipts import Receipts
from counterfoil.domain.steps import WorkDefaults
from counterfoil.domain.time import Clock
from counterfoil.domain.work import RetryRules


def system_clock() -> int:
    return time.time_ns() // 1_000_000


def new_id() -> str:
    """A name that is unique everywhere, and sorts by when it was made."""
    return uuid7().hex


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

    def retry_rules(self) -> RetryRules:
        """Drawn before the decision, so that the decision itself has no dice in it."""
        return RetryRules(draw=self.draw(), retry_after_limit_ms=self.retry_after_limit_ms)
