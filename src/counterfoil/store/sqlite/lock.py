"""The lock beside a SQLite file: a process that serves, migrates or copies the database holds it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from counterfoil.store.group_commit.commit import StoreFailure


def take_lock(path: Path, advice: str) -> int:
    """The descriptor that holds the lock until it is closed; raises StoreFailure, with the advice, if it is taken."""
    lock_path = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreFailure(f"cannot write to {path.parent}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StoreFailure(f"another counterfoil is serving {path}: {advice}") from error
    return descriptor


@contextlib.contextmanager
def locked(path: Path, advice: str) -> Iterator[None]:
    """Hold the lock for the length of a block."""
    descriptor = take_lock(path, advice)
    try:
        yield
    finally:
        os.close(descriptor)
