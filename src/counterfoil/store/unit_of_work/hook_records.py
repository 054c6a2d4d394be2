"""The records of hooks, as a batch sees and changes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeVar

from counterfoil.domain.records import Hook, HookDelivery, HookPayload, HookToken
from counterfoil.store.kinds.hooks import HOOK_DELIVERIES, HOOK_PAYLOADS, HOOK_TOKENS, HOOKS
from counterfoil.store.kinds.kind import BETWEEN, Kind, flow_of
from counterfoil.store.unit_of_work.read_set import Find, missing
from counterfoil.store.unit_of_work.records import Records

Key = TypeVar("Key")
R = TypeVar("R")

MOST_EXPECTED = 16
"""Of so many hooks with one token, whose steps have not started, one takes the payload."""


class HookRecords(ABC):
    """The part of a unit of work that is about hooks."""

    @abstractmethod
    def records(self, kind: Kind[Key, R]) -> Records[Key, R]:
        """The records of a kind."""

    @abstractmethod
    def found(self, find: Find) -> list[tuple[Any, ...]]:
        """The rows of a search."""

    @abstractmethod
    def begins_here(self, flow_id: str) -> bool:
        """Whether a flow begins in this batch: then nothing of it is in the store."""

    def find_hook(self, hook_id: str) -> Hook | None:
        hooks = self.records(HOOKS)
        if hook_id not in hooks and self.begins_here(flow_of(hook_id)):
            return None
        return hooks.get(hook_id)

    def draft_hook(self, hook_id: str) -> Hook:
        return self.records(HOOKS).draft(hook_id)

    def create_hook(self, hook: Hook) -> None:
        self.records(HOOKS).put(hook.hook_id, hook)

    def find_hook_token(self, token_id: str) -> HookToken | None:
        return self.records(HOOK_TOKENS).get(token_id)

    def put_hook_token(self, token: HookToken) -> None:
        self.records(HOOK_TOKENS).put(token.token_id, token)

    def forget_hook_token(self, token_id: str) -> None:
        self.records(HOOK_TOKENS).put(token_id, None)

    def find_hook_delivery(self, delivery_key: str) -> HookDelivery | None:
        return self.records(HOOK_DELIVERIES).get(delivery_key)

    def put_hook_delivery(self, delivery: HookDelivery) -> None:
        self.records(HOOK_DELIVERIES).put(delivery.delivery_key, delivery)

    def keep_payload(self, hook: Hook, payload: Any) -> None:
        payload_id = _payload_id(hook, hook.received)
        self.records(HOOK_PAYLOADS).put(payload_id, HookPayload(payload_id, hook.flow_id, payload))

    def hook_payloads(self, hook: Hook) -> list[Any]:
        records = self.records(HOOK_PAYLOADS)
        wanted = [_payload_id(hook, number) for number in range(hook.received)]
        missing(HOOK_PAYLOADS.load_name, (payload_id for payload_id in wanted if payload_id not in records))
        return [records.existing(payload_id).payload for payload_id in wanted]

    def expected_hooks(self, token_id: str) -> list[str]:
        find = Find.of("find_expected_hooks", token_id=token_id, limit=MOST_EXPECTED)
        return [row[0] for row in self.found(find)]


def _payload_id(hook: Hook, number: int) -> str:
    return f"{hook.hook_id}{BETWEEN}{number}"
