"""The command that calls this program again, for hints that work as printed."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

NAME = "counterfoil"


def program() -> str:
    """How another shell of the same user calls this program, in any directory.

    The bare name is enough if a shell finds it. A virtual environment that is active only in this shell does not
    count: the hint is typed into another one.
    """
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return f"{_typed(Path(sys.executable))} -m {NAME}"
    return _typed(started) if started.name == NAME and started.is_file() else NAME


def _typed(path: Path) -> str:
    """The path as it is typed into a shell."""
    whole = path.absolute()
    if _found_everywhere(whole):
        return whole.name
    home = Path.home()
    if whole.is_relative_to(home) and home != Path("/"):
        return f"~/{shlex.quote(str(whole.relative_to(home)))}"
    return shlex.quote(str(whole))


def _found_everywhere(path: Path) -> bool:
    """Whether a shell without this virtual environment finds the program by its name."""
    environment = os.environ.get("VIRTUAL_ENV")
    inside = environment is not None and path.is_relative_to(environment)
    found = None if inside else shutil.which(path.name)
    return found is not None and Path(found).parent.resolve() == path.parent.resolve()
