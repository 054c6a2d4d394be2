"""Permissions of an engine's files: no other user of the machine may replace the database or the secret."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import structlog

from counterfoil.settings import Settings
from counterfoil.store.maintenance.receipt_secrets import FILE_NAME

WRITABLE = stat.S_IWGRP | stat.S_IWOTH
REACHABLE = stat.S_IXGRP | stat.S_IXOTH
OPEN = stat.S_IRWXG | stat.S_IRWXO

log = structlog.get_logger(__name__)


def check_permissions(settings: Settings) -> None:
    """Raise ValueError for a directory or file that others may write to; log a directory that they may look into.

    What is not there yet is made for its owner only.
    """
    if os.name != "posix":
        return
    directories = {settings.data} if (settings.data / FILE_NAME).exists() else set()
    files = [settings.data / FILE_NAME]
    if not settings.is_shared:
        directories |= {settings.data, settings.store_path.parent}
        files.append(settings.store_path)
    for directory in sorted(directories):
        _check_directory(directory)
    for path in files:
        if _mode(path.parent) & REACHABLE and _mode(path) & WRITABLE:
            raise ValueError(f"{path}: other users of this machine can write to it: chmod 600 {path}")


def _check_directory(path: Path) -> None:
    mode = _mode(path)
    if mode & WRITABLE:
        raise ValueError(
            f"{path}: other users of this machine can replace the database or the secrets in it (its mode is "
            f"{mode:04o}): chmod 700 {path}"
        )
    if mode & OPEN:
        log.warning("data_directory_open_to_others", path=str(path), mode=f"{mode:04o}", remedy="chmod 700")


def _mode(path: Path) -> int:
    """The permissions; 0 for what is not there, or not to be seen."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0
