"""The receipts that were issued during a run, and the search for them where none may be."""

from __future__ import annotations

import asyncio
import random
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

LIVE = 400
"""How many receipts are remembered as being in use; older ones are only searched for."""

_AFTER_DOT = re.compile(rb"(?<=\.)[A-Za-z0-9_-]{43}")
_RUN = re.compile(rb"[A-Za-z0-9_-]{43,}")


@dataclass(frozen=True)
class Receipt:
    """What one dispatch handed out."""

    flow_id: str
    step_id: str
    token: str
    attempt: int
    webhook_url: str
    heartbeat_url: str

    @property
    def path(self) -> str:
        return f"/webhook/{self.flow_id}/{self.step_id}/{self.token}"

    @property
    def work_id(self) -> str:
        return self.token.rpartition(".")[0]


class Wallet:
    """All receipts of a run: those in use, and the signatures of every one that was ever issued."""

    def __init__(self) -> None:
        self.live: deque[Receipt] = deque(maxlen=LIVE)
        self.waiting: asyncio.Queue[Receipt] = asyncio.Queue()
        """Dispatches of async steps that no worker of the run has taken up yet."""
        self.signatures: set[bytes] = set()
        self.links: deque[str] = deque(maxlen=LIVE)
        """Made tokens of hooks."""

    def take_in(self, metadata: dict[str, Any]) -> None:
        """Remember what a dispatch carried."""
        token = metadata.get("receipt_token")
        if not isinstance(token, str):
            return
        receipt = Receipt(
            str(metadata["flow_id"]),
            str(metadata["step_id"]),
            token,
            int(metadata["attempt"]),
            str(metadata.get("webhook_url", "")),
            str(metadata.get("heartbeat_url", "")),
        )
        self.signatures.add(token.rpartition(".")[2].encode())
        for link in (metadata.get("hooks") or {}).values():  # made tokens of hooks are credentials, too
            made = str(link).rpartition("/")[2]
            if made.count(".") == 1:
                self.signatures.add(made.rpartition(".")[2].encode())
                self.links.append(made)
        self.live.append(receipt)
        if receipt.webhook_url:
            self.waiting.put_nowait(receipt)

    def any(self, dice: random.Random) -> Receipt | None:
        return dice.choice(self.live) if self.live else None

    def text(self, dice: random.Random, receipt: Receipt | None = None) -> str | None:
        """A text with a receipt in it, as workers' exceptions have it."""
        found = receipt or self.any(dice)
        if found is None:
            return None
        url = found.webhook_url or f"http://engine{found.path}"
        forms = (
            found.token,
            url,
            f"{url}/heartbeat",
            f"timed out POST {url}",
            f"HTTPConnectionPool(host='engine'): {url!r} refused\n  at {url}/heartbeat;",
            f'{{"webhook_url": "{url}", "token": "{found.token}"}}',
            "x" * dice.choice((200, 900, 940, 990, 4000, 9930, 9990)) + found.token,
            f"{found.token}{found.token}",
            f"<{found.token}>\u0301",
        )
        return dice.choice(forms)

    def found_in(self, data: bytes) -> list[bytes]:
        """The signatures of receipts that stand in some text.

        A token is found by the dot before its signature, a signature alone as a run of its letters, or at either end
        of a longer run: so a megabyte of letters costs no more than a look at its ends.
        """
        found = [match for match in _AFTER_DOT.findall(data) if match in self.signatures]
        for run in _RUN.findall(data):
            starts: Iterable[int] = range(len(run) - 42) if len(run) < 130 else (0, len(run) - 43)
            found += [run[start : start + 43] for start in starts if run[start : start + 43] in self.signatures]
        return found
