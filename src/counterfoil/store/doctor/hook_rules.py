"""The doctor's rules for hooks: each lives and ends with its work item, and each token has one owner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from counterfoil.domain.records import Hook, Work
from counterfoil.domain.states import HookStatus, WorkStatus

_OPEN = (HookStatus.QUEUED, HookStatus.WAITING)


def shown_hook(hook_id: str) -> str:
    """The id of a hook in one line."""
    return hook_id.replace("\n", "/")


def hook_problems(hooks: Mapping[str, Hook], work: Mapping[str, Work]) -> Iterator[tuple[str, str]]:
    """Hook and problem: a hook is open exactly as long as its work item is active."""
    for hook_id, hook in hooks.items():
        item = work.get(hook.work_id or "")
        if hook.status in _OPEN and (item is None or item.status is not WorkStatus.ACTIVE):
            yield shown_hook(hook_id), f"is {hook.status}, but its work item is not active"
        if hook.status is HookStatus.ENDED and item is not None and item.status is WorkStatus.ACTIVE:
            yield shown_hook(hook_id), "has ended, but its work item is active"
        if hook.received > hook.collect:
            yield shown_hook(hook_id), f"has {hook.received} payloads, but collects {hook.collect}"


def token_findings(rows: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Subject and problem of each row of ``doctor_hook_tokens``."""
    for subject, problem in rows:
        yield shown_hook(subject), _TOKEN_PROBLEMS[problem]


_TOKEN_PROBLEMS = {
    "owner": "owns a token, but is not open",
    "two": "waits for payloads with a token that it does not own",
    "lost": "waits for its token, but is not in the queue of the token",
    "queue": "is in the queue of a token, but does not wait for it",
}
