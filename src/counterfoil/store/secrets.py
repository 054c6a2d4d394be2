"""The secrets that sign receipts: as configured, or made once and kept with the database.

Losing them makes every receipt that is out invalid, so a secret is used only after it is safely on disk.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

import structlog

from counterfoil.store.protocol import Store

FILE_NAME = "receipt.secret"
MIN_SECRET_CHARACTERS = 16

_log = structlog.get_logger(__name__)


async def shared_secrets(store: Store, data_dir: Path | str, configured: Sequence[str]) -> list[bytes]:
    """The secrets of a node: as configured, else those that the store's nodes share, else those of its directory."""
    path = Path(data_dir) / FILE_NAME
    if not any(text.strip() for text in configured):
        proposed = path.read_text(encoding="utf-8").strip() if path.exists() else secrets.token_urlsafe(32)
        shared = await store.receipt_secret(proposed)
        if shared is not None:
            return [shared.encode()]
    return load_or_create_secrets(data_dir, configured)


def load_or_create_secrets(data_dir: Path | str, configured: Sequence[str]) -> list[bytes]:
    """The secrets of this node, the signing one first. Raises ValueError for a secret too short to be one."""
    given = [text.strip() for text in configured if text.strip()]
    for position, text in enumerate(given, start=1):
        if len(text) < MIN_SECRET_CHARACTERS:
            raise ValueError(f"receipt_secrets: secret {position} needs at least {MIN_SECRET_CHARACTERS} characters")
    if given:
        return [text.encode() for text in given]
    return [_kept_secret(Path(data_dir))]


def _kept_secret(directory: Path) -> bytes:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / FILE_NAME
    if not path.exists():
        _publish(path, secrets.token_urlsafe(32) + "\n")
    text = path.read_text(encoding="utf-8").strip()
    if len(text) < MIN_SECRET_CHARACTERS:
        raise ValueError(f"{path}: not a receipt secret, it needs at least {MIN_SECRET_CHARACTERS} characters")
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        _log.warning("receipt secret is readable by others", path=str(path), remedy="chmod 600")
    return text.encode()


def _publish(path: Path, text: str) -> None:
    """Bring the file into being as a whole, or not at all; a file that another process made first stays."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink()
    _flush_directory(path.parent)


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
