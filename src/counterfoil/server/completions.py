"""Completions between the webhook's route and the fast path: what both take and answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Protocol

from counterfoil.domain.errors import CounterfoilError
from counterfoil.engine.work.complete import Completion

Resolve = Callable[[Completion | CounterfoilError], None]
Headers = Callable[[], Mapping[str, str]]


class CompletionIntake(Protocol):
    """Takes completions from the fast path, in two steps: the receipt is known before the body has arrived."""

    @property
    def max_body_bytes(self) -> int: ...

    def work_id_of(self, flow_id: bytes, step_id: bytes, token: bytes) -> str | None:
        """The work item of a valid receipt; None: the request must take the ordinary path.

        A valid receipt has ids of plain characters: the fast path does not check them.
        """
        ...

    def take(self, work_id: str, headers: Headers, body: bytes, resolve: Resolve) -> bool:
        """Submit a completion if nothing can refuse it before the commit; ``resolve`` is called after the commit.

        False: nothing was submitted, the request must take the ordinary path. ``headers`` is called if they are needed.
        """
        ...


BODILESS = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.RESET_CONTENT})
"""Statuses whose answers have no body, by HTTP."""


def has_body(status: int) -> bool:
    return status not in BODILESS


def completion_text(completion: Completion, flow_id: str, step_id: str) -> str:
    """The body of the 200. Nothing in it needs escaping: ids and words are of patterns without quotes."""
    recorded_at = completion.recorded_text
    return (
        f'{{"verdict":"{completion.verdict._value_}","status":"{completion.status._value_}","flow_id":"{flow_id}",'
        f'"step_id":"{step_id}","recorded_at":{recorded_at}}}'
    )
