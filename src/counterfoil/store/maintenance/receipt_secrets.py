"""The secrets that sign receipts: as configured, or made once and kept with the database.

Losing them makes every receipt that is out invalid, so a secret is used only after it is safely on disk, and one that
has signed what is still out is not replaced unless an operator says so: the database knows each by a check value.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

import structlog

from counterfoil.domain.records import UNDOING
from counterfoil.domain.steps.definitions import StepDefinition
from counterfoil.domain.work.receipts import Receipts
from counterfoil.store.protocol import Store

FILE_NAME = "receipt.secret"
MIN_SECRET_CHARACTERS = 16
_NO_END = 2**62

_log = structlog.get_logger(__name__)


async def receipt_secrets(
    store: Store, data_dir: Path | str, configured: Sequence[str], now: int, *, replace: bool = False
) -> list[bytes]:
    """The secrets of a node: as configured, else those that the store's nodes share, else those of its directory.

    Raises ValueError for a secret that is none, and when another one has signed receipts that are out; ``replace``
    gives those receipts up instead.
    """
    directory = Path(data_dir)
    known = given = _configured(configured)
    if not given:
        known = await _kept(store, directory)
    dropped = await _unaccepted(store, known, directory, replace=replace)
    if not given:
        known = await _agreed(store, directory, known)
    await store.note_receipt_secret(check_values(known)[0], dropped, now)
    return known


def check_values(known: Sequence[bytes]) -> list[str]:
    """What the database knows secrets by: they tell which secret it is, and nothing of the secret."""
    return [digest.hex() for digest in Receipts(known).derived("receipt secret", "check value")] if known else []


async def _unaccepted(store: Store, known: Sequence[bytes], directory: Path, *, replace: bool) -> list[str]:
    """The check values of secrets that are not accepted any more; raises ValueError if receipts of theirs are out."""
    accepted = check_values(known)
    noted = await store.read("receipt_checks")
    lost = [row for row in noted if row[0] not in accepted]
    receipts = 0
    for _, since, until in lost:
        receipts += await _receipts_out(store, since, _NO_END if until is None else until)
    if receipts and not replace:
        raise ValueError(
            f"the secret that signed the receipts of {receipts} open work items is missing: their workers could no "
            f"longer report. Restore it ({directory / FILE_NAME}; on PostgreSQL, the table receipt_secret), or "
            "add it after the current one in receipt_secrets. To invalidate these receipts: counterfoil serve "
            "--new-receipt-secret"
        )
    if len(lost) == len(noted) > 0:
        _log.warning("receipt_secret_replaced", receipts_given_up=receipts)
    elif lost:
        _log.info("receipt_secret_dropped", secrets=len(lost), receipts_given_up=receipts)
    return [check for check, *_ in lost]


async def _receipts_out(store: Store, since: int, until: int) -> int:
    """How many work items were sent with a receipt in this time and have no outcome yet: sync steps carry none."""
    receipts = 0
    for version, items in await store.read("receipts_out", since=since, until=until):
        for (text,) in await store.read("step_version", version=version.removesuffix(UNDOING)):
            definition = StepDefinition.model_validate_json(text)
            sent = definition.undoing() if version.endswith(UNDOING) else definition
            receipts += items if sent.kind == "async" else 0
    return receipts


async def _kept(store: Store, directory: Path) -> list[bytes]:
    """The secret that there is: in the store, else in the directory; empty: nowhere."""
    shared = await store.receipt_secret(None)
    if shared is not None:
        return [shared.encode()]
    return [_read_secret(directory / FILE_NAME)] if (directory / FILE_NAME).exists() else []


async def _agreed(store: Store, directory: Path, known: list[bytes]) -> list[bytes]:
    """The secret that all nodes of the store take; a new one, if there is none yet."""
    shared = await store.receipt_secret(known[0].decode() if known else secrets.token_urlsafe(32))
    if shared is not None:
        return [shared.encode()]
    return known or [_kept_secret(directory)]


def _configured(configured: Sequence[str]) -> list[bytes]:
    given = [text.strip() for text in configured if text.strip()]
    for position, text in enumerate(given, start=1):
        if len(text) < MIN_SECRET_CHARACTERS:
            raise ValueError(f"receipt_secrets: secret {position} needs at least {MIN_SECRET_CHARACTERS} characters")
    return [text.encode() for text in given]


def _kept_secret(directory: Path) -> bytes:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / FILE_NAME
    if not path.exists():
        _publish(path, secrets.token_urlsafe(32) + "\n")
    return _read_secret(path)


def _read_secret(path: Path) -> bytes:
    text = path.read_text(encoding="utf-8").strip()
    if len(text) < MIN_SECRET_CHARACTERS:
        raise ValueError(f"{path}: not a receipt secret, it needs at least {MIN_SECRET_CHARACTERS} characters")
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        _log.warning("receipt_secret_readable_by_others", path=str(path), remedy="chmod 600")
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
