"""What a process has used, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path

from tests.acceptance.processes import EngineProcess

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(engine: EngineProcess) -> float:
    """Processor time of the process so far, user and system."""
    fields = Path(f"/proc/{engine.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_bytes(engine: EngineProcess) -> int:
    """Memory of the process that is in use now."""
    return int(Path(f"/proc/{engine.pid}/statm").read_text().split()[1]) * _PAGE
