"""How events change hooks. A status changes only through the transition table."""

from __future__ import annotations

from collections.abc import Callable

from counterfoil.domain.hooks.tokens import hook_id
from counterfoil.domain.journal.event_types import Event, EventType
from counterfoil.domain.records import Hook, Work
from counterfoil.domain.states import HookStatus, check_hook_move

_STATUS_OF: dict[EventType, HookStatus] = {
    EventType.HOOK_EXPECTED: HookStatus.EXPECTED,
    EventType.HOOK_QUEUED: HookStatus.QUEUED,
    EventType.HOOK_REGISTERED: HookStatus.WAITING,
    EventType.WORK_SUCCEEDED: HookStatus.ENDED,
    EventType.WORK_FAILED: HookStatus.ENDED,
    EventType.WORK_CANCELLED: HookStatus.ENDED,
}


def hook_id_of(event: Event) -> str:
    """The hook that an event of a hook is about."""
    return hook_id(event.flow_id, event.step_id or "", event.data["item"], event.data.get("run", 0))


def hook_id_of_item(work: Work, redrives: int, find: Callable[[str], Hook | None]) -> str:
    """The hook of an item in the present run of its step: one of its own.

    A hook that has been expected since the start of the flow, and was never opened, is that of the first run that opens
    it: so what it has received is not lost when the flow fails before, and is redriven.
    """
    first = hook_id(work.flow_id, work.step_id, work.item, 0)
    hook = find(first) if redrives else None
    if hook is not None and (hook.status is HookStatus.EXPECTED or hook.work_id == work.work_id):
        return first
    return hook_id(work.flow_id, work.step_id, work.item, redrives)


def hook_from(event: Event) -> Hook:
    """The hook that an event creates, as the event leaves it."""
    data = event.data
    registered = event.type is EventType.HOOK_REGISTERED
    return Hook(
        hook_id=hook_id_of(event),
        flow_id=event.flow_id,
        step_id=event.step_id or "",
        item=data["item"],
        status=_STATUS_OF[event.type],
        token_id=data["token_id"],
        token=data.get("token"),
        collect=data["collect"],
        created_at=event.at,
        work_id=event.work_id,
        registered_at=event.at if registered else None,
        deadline_at=data.get("deadline_at"),
    )


def evolve_hook(hook: Hook, event: Event) -> None:
    """Apply an event to a hook: its own, or the end of its work item."""
    data = event.data
    status = _STATUS_OF.get(event.type)
    if status is not None:
        check_hook_move(hook.status, status)
        hook.status = status
    if event.type is EventType.HOOK_RECEIVED:
        hook.received = data["received"]
        hook.size += data["size"]
        hook.enough = data["enough"]
    elif event.type in (EventType.HOOK_QUEUED, EventType.HOOK_REGISTERED):
        hook.work_id = event.work_id
        hook.deadline_at = data["deadline_at"]
        if event.type is EventType.HOOK_REGISTERED:
            hook.registered_at = event.at
