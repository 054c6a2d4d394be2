"""``serve`` collects no garbage while modules are loaded, and must begin again when its engine runs."""

from __future__ import annotations

import gc
import sys

from counterfoil.app import run


async def collects() -> bool:
    return gc.isenabled()


def test_garbage_is_collected_once_the_engine_runs() -> None:
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.disable()
    try:
        assert run(collects())
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
