"""Completions between the webhook's route and the fast path: what both take and answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from counterfoil.domain.errors import CounterfoilError
from counterfoil.engine.work.complete import Completion

Resolve = Callable[[Completion | CounterfoilError], None]
Headers = Callable[[], Mapping[str, str]]
Take = Callable[[bytes, bytes, bytes, Headers, bytes, Resolve], bool]
"""Flow id, step id, token, headers if they are needed, body, and the callback: True when the completion was taken.

A completion that is taken has a valid receipt, and so ids of plain characters: the fast path does not check them.
"""


def completion_text(completion: Completion, flow_id: str, step_id: str) -> str:
    """The body of the 200. Nothing in it needs escaping: ids and words are of patterns without quotes."""
    recorded_at = completion.recorded_text
    return (
        f'{{"verdict":"{completion.verdict._value_}","status":"{completion.status._value_}","flow_id":"{flow_id}",'
        f'"step_id":"{step_id}","recorded_at":{recorded_at}}}'
    )
