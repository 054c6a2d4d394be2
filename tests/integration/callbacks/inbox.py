"""The inbox as tests read it: pages followed to the end, and callbacks by their verdict."""

from __future__ import annotations

import time
from typing import Any

from tests.wire import Api

FIELDS = {
    *("callback_id", "at", "kind", "verdict", "status", "flow_id", "step_id", "work_id", "attempt"),
    *("size", "digest", "source", "trace_id", "body_kept"),
}
FORGED = "0" * 32 + "." + "A" * 43


class StandingClock:
    """A clock that moves only when a test says so: rates can be counted exactly."""

    def __init__(self) -> None:
        self._now = time.time_ns() // 1_000_000

    def __call__(self) -> int:
        return self._now

    def forward(self, milliseconds: int) -> None:
        self._now += milliseconds


async def callbacks(api: Api, **filters: str) -> list[dict[str, Any]]:
    """All callbacks that match, by pages of the given limit."""
    found: list[dict[str, Any]] = []
    params = dict(filters)
    while True:
        page = (await api.get("/api/v1/callbacks", **params)).ok()
        found += page["callbacks"]
        if page["next_cursor"] is None:
            assert all(set(each) == FIELDS for each in found)
            return found
        params["cursor"] = page["next_cursor"]


async def verdicts(api: Api, **filters: str) -> list[tuple[str, str, int]]:
    return [(each["kind"], each["verdict"], each["status"]) for each in await callbacks(api, **filters)]
