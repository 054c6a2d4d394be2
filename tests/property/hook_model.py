"""What hooks must do, as a plain model: lists and dictionaries, without a database, transactions or events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class HookSpec:
    """A hook step of the run."""

    on_conflict: str
    collect: int
    on_timeout: str
    late: bool
    """Whether another step comes first."""

    @property
    def step_id(self) -> str:
        return f"{self.on_conflict}.{self.collect}.{self.on_timeout}.{'late' if self.late else 'first'}"


@dataclass(eq=False)
class ModelHook:
    """One run of the hook step of a flow."""

    flow_id: str
    spec: HookSpec
    token: str
    status: str
    deadline: int | None = None
    payloads: list[Any] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    """Delivery ids."""
    stopped: bool = False
    """Whether its flow has failed before its step started."""
    outcome: str | None = None
    """The error code of the item, ``succeeded`` or ``cancelled``."""

    @property
    def enough(self) -> bool:
        return len(self.payloads) >= self.spec.collect

    @property
    def takes(self) -> bool:
        """Whether it takes another payload."""
        return not (self.enough or self.stopped)

    @property
    def outputs(self) -> dict[str, Any] | None:
        """What the work item shows."""
        if self.outcome == "succeeded":
            if self.spec.collect > 1:
                return {"payloads": self.payloads}
            return self.payloads[0] if self.payloads else {}
        if self.outcome == "HOOK_SUPERSEDED" and self.payloads:
            return {"payloads": self.payloads}
        if self.outcome == "HOOK_TIMEOUT" and self.payloads:
            return {"payloads": self.payloads} if self.spec.collect > 1 else {}
        return None


class HookModel:
    """All tokens, and the hooks that own them, wait for them, or are expected."""

    def __init__(self) -> None:
        self.hooks: dict[str, ModelHook] = {}
        """By flow: the last run of its hook step."""
        self.owner: dict[str, ModelHook] = {}
        self.queue: dict[str, list[ModelHook]] = {}
        self.expected: dict[str, list[ModelHook]] = {}
        self.last_taken: dict[tuple[str, str], str] = {}

    def start(self, flow_id: str, spec: HookSpec, token: str, now: int, *, expects: bool) -> None:
        hook = self.hooks[flow_id] = ModelHook(flow_id, spec, token, "none")
        if not spec.late:
            self.open(flow_id, now)
        elif expects:
            hook.status = "expected"
            self.expected.setdefault(token, []).append(hook)

    def open(self, flow_id: str, now: int) -> None:
        """The hook step starts."""
        hook = self.hooks[flow_id]
        owner = self.owner.get(hook.token)
        hook.deadline = now + 10_000
        if hook in self.expected.get(hook.token, ()):
            self.expected[hook.token].remove(hook)
        if owner is None:
            self.owner[hook.token] = hook
            self._register(hook)
        elif hook.spec.on_conflict == "supersede":
            self.owner[hook.token] = hook
            self._end(owner, "HOOK_SUPERSEDED")
            self._register(hook)
        elif hook.spec.on_conflict == "wait":
            hook.status = "queued"
            self.queue.setdefault(hook.token, []).append(hook)
        else:
            self._end(hook, "HOOK_CONFLICT")

    def _register(self, hook: ModelHook) -> None:
        hook.status = "waiting"
        if hook.enough:
            self._end(hook, "succeeded")

    def _end(self, hook: ModelHook, outcome: str) -> None:
        hook.status, hook.outcome = "ended", outcome
        queue = self.queue.get(hook.token, [])
        if hook in queue:
            queue.remove(hook)
        if hook in self.expected.get(hook.token, ()):
            self.expected[hook.token].remove(hook)
        if self.owner.get(hook.token) is hook:
            del self.owner[hook.token]
            if queue:
                self.owner[hook.token] = queue.pop(0)

    def register_owners(self, token: str | None = None) -> None:
        """Hooks that own their token since another one ended are registered."""
        again = True
        while again:
            again = False
            for hook in list(self.owner.values()):
                if hook.status == "queued" and token in (None, hook.token):
                    self._register(hook)
                    again = True

    def deliver(self, token: str, payload: Any, delivery_id: str | None) -> dict[str, Any] | str:
        """The answer, or the code of the refusal."""
        self.register_owners(token)
        owner = self.owner.get(token)
        takers: list[ModelHook] = [owner] if owner is not None else self.expected.get(token, [])
        for hook in takers:
            buffered = hook is not owner
            if delivery_id in hook.taken and not hook.stopped:
                return _answer(hook, duplicate=True, buffered=buffered)
            if not hook.takes:
                continue
            if hook.spec.collect == 1 and not isinstance(payload, dict):
                return "INVALID_PAYLOAD"
            hook.payloads.append(payload)
            if delivery_id is not None:
                hook.taken.add(delivery_id)
                self.last_taken[token, delivery_id] = hook.flow_id
            if len(hook.payloads) == hook.spec.collect and not buffered:
                self._end(hook, "succeeded")
            return _answer(hook, duplicate=False, buffered=buffered)
        flow_id = None if delivery_id is None else self.last_taken.get((token, delivery_id))
        return "HOOK_NOT_FOUND" if flow_id is None else _answer(self.hooks[flow_id], duplicate=True, buffered=False)

    def cancel(self, flow_id: str) -> None:
        self._end(self.hooks[flow_id], "cancelled")

    def expire(self, now: int) -> None:
        for hook in list(self.hooks.values()):
            if hook.status in ("queued", "waiting") and hook.deadline is not None and hook.deadline <= now:
                self._end(hook, "succeeded" if hook.spec.on_timeout == "complete" else "HOOK_TIMEOUT")

    def redrive(self, flow_id: str, now: int) -> None:
        before = self.hooks[flow_id]
        if before.stopped:
            before.stopped = False
            return
        self.hooks[flow_id] = ModelHook(flow_id, before.spec, before.token, "none")
        self.open(flow_id, now)


def _answer(hook: ModelHook, *, duplicate: bool, buffered: bool) -> dict[str, Any]:
    answer = {"flow_id": hook.flow_id, "step_id": hook.spec.step_id, "delivered": True, "duplicate": duplicate}
    return {**answer, "buffered": True} if buffered else answer
