"""Commands of hooks. Each is decided anew in its transaction: the first change wins."""

from __future__ import annotations

from dataclasses import dataclass

from counterfoil.domain.flows.settle import settle
from counterfoil.domain.hooks.delivering import Delivered, Incoming, deliver
from counterfoil.domain.hooks.ownership import register_owner
from counterfoil.domain.hooks.tokens import Token
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork


@dataclass(slots=True)
class Deliver:
    """``POST /api/v1/hooks/{token}``."""

    token: Token
    incoming: Incoming

    def needs(self, needs: ReadSet) -> None:
        needs.hook_tokens.add(self.token.token_id)

    def decide(self, unit: UnitOfWork, now: int) -> Delivered:
        return deliver(unit, self.token, self.incoming, now)


@dataclass(slots=True)
class RegisterWaiting:
    """Register a hook that had to wait for its token, and owns it by now."""

    token_id: str
    hook_id: str
    work_id: str

    def needs(self, needs: ReadSet) -> None:
        needs.hook_tokens.add(self.token_id)
        needs.hooks.add(self.hook_id)
        needs.work.add(self.work_id)

    def decide(self, unit: UnitOfWork, now: int) -> bool:
        owned = unit.find_hook_token(self.token_id)
        if owned is None or owned.hook_id != self.hook_id or owned.wake_at is None:
            return False
        register_owner(unit, owned, now)
        settle(unit, owned.flow_id, now)
        return True
