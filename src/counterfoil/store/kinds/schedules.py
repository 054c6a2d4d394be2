"""Schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counterfoil.domain.schedules import Schedule
from counterfoil.store.kinds.columns import Columns
from counterfoil.store.kinds.kind import Lock, Phase, plain_kind

SCHEDULE_COLUMNS = Columns(Schedule)


def read_schedule(row: Sequence[Any]) -> Schedule:
    return SCHEDULE_COLUMNS.read(row)


SCHEDULES = plain_kind(
    "schedules",
    SCHEDULE_COLUMNS,
    "schedule_id",
    lock=Lock(
        3,
        "lock_schedules",
        busy="another node makes schedules",
        create="lock_new_schedules",
        try_create="try_lock_new_schedules",
    ),
    written=Phase.OTHERS + 10,
)
