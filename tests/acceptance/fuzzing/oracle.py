"""After a run: everything can be read, nothing holds a receipt, and the engine has nothing to complain about."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from tests.acceptance.fuzzing.receipts import Wallet
from tests.by_hand import Place, by_hand

READERS = 8
PAGE = 200
_NUMBER = re.compile(r"(?<=/)(?:wf_|own-)?[0-9a-f]+\b")


class Reading:
    """Reads all that an engine holds. What cannot be read, or has a receipt in it, is in ``findings``."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str, wallet: Wallet) -> None:
        self.findings: list[str] = []
        self.records: Counter[str] = Counter()
        self.leaks: Counter[str] = Counter()
        self._session = session
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"}
        self._wallet = wallet
        self._numbers: set[int] = set()
        """Of all events that were read flow by flow."""

    async def everything(self, started: dict[str, set[str]]) -> None:
        flows = {item["flow_id"] async for item in self._pages("/api/v1/flows", "flows")}
        workflows = {item["workflow_id"] async for item in self._pages("/api/v1/workflows", "workflows")}
        for name, missing in (("flow", started["flow_id"] - flows), ("workflow", started["workflow_id"] - workflows)):
            self.findings += [f"{name} {found} was answered 201 and is in no list" for found in sorted(missing)[:5]]
        await self._each("flow", flows, self._flow)
        await self._each("workflow", workflows, self._workflow)
        for kind, key in (("steps", "step_id"), ("policies", "policy_id"), ("schedules", "schedule_id")):
            names = {item[key] async for item in self._pages(f"/api/v1/{kind}", kind)}
            await self._each(kind, names, self._simple(kind))
        approvals = {item["approval_id"] async for item in self._pages("/api/v1/approvals", "approvals")}
        await self._each("approvals", approvals, self._simple("approvals"))
        hooks = {item["subscription_id"] async for item in self._pages("/api/v1/subscriptions", "subscriptions")}
        await self._each("subscriptions", hooks, self._subscription)
        unknown = {item["work_id"] async for item in self._pages("/api/v1/reconciliations", "reconciliations")}
        await self._each("reconciliations", unknown, self._reconciliation)
        tokens = {item["token"] async for item in self._pages("/api/v1/hooks", "hooks") if item["token"] is not None}
        await self._each("hooks", tokens, self._simple("hooks"))
        callbacks = {item["callback_id"] async for item in self._pages("/api/v1/callbacks", "callbacks")}
        await self._each("callbacks", callbacks, self._simple("callbacks"))
        async for _ in self._pages("/api/v1/work", "work"):
            self.records["work listed"] += 1
        await self._get("/api/v1/workflows/approvals/pending")
        await self._get("/metrics", parse=False)
        await self._stream()

    # -- kinds of records --------------------------------------------------------------------------

    async def _flow(self, flow_id: str) -> None:
        document = await self._get(f"/api/v1/flows/{flow_id}")
        await self._get(f"/api/v1/flows/{flow_id}/result", also=(202,))
        async for event in self._pages(f"/api/v1/flows/{flow_id}/events", "events"):
            self.records["event"] += 1
            self._numbers.add(event["seq"])
        for step in ((document or {}).get("steps") or {}).values():
            for item in step.get("work", ()):
                self.records["work item"] += 1
                await self._get(f"/api/v1/work/{item['work_id']}")

    async def _workflow(self, workflow_id: str) -> None:
        document = await self._get(f"/api/v1/workflows/{workflow_id}")
        await self._get(f"/api/v1/workflows/{workflow_id}/checkpoints")
        for step in (document or {}).get("steps") or ():
            await self._get(f"/api/v1/workflows/{workflow_id}/steps/{step['step_id']}")
        async for event in self._pages(f"/api/v1/flows/{workflow_id}/events", "events"):
            self.records["event"] += 1
            self._numbers.add(event["seq"])

    async def _subscription(self, subscription_id: str) -> None:
        await self._get(f"/api/v1/subscriptions/{subscription_id}")
        async for _ in self._pages(f"/api/v1/subscriptions/{subscription_id}/deliveries", "deliveries"):
            self.records["delivery"] += 1

    async def _reconciliation(self, work_id: str) -> None:
        """An item of the queue; its ``status_url`` may have settled it since the list was read."""
        await self._get(f"/api/v1/reconciliations/{work_id}", also=(409,))

    def _simple(self, kind: str) -> Any:
        async def read(name: str) -> None:
            await self._get(f"/api/v1/{kind}/{quote(name, safe='')}")

        return read

    async def _stream(self) -> None:
        """The journal as a stream, from its beginning to behind the last event that is known."""
        last = max(self._numbers, default=0)
        seen: set[int] = set()
        headers = {**self._headers, "Last-Event-ID": "0"}
        timeout = aiohttp.ClientTimeout(total=None, sock_read=20)
        try:
            async with self._session.get(f"{self._url}/api/v1/stream", headers=headers, timeout=timeout) as response:
                async for line in _lines(response.content):
                    self._search(line, "the stream")
                    if line.startswith(b"data:"):
                        seen.add(number := load(line[5:])["seq"])
                        if number >= last:
                            break
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            self.findings.append(f"the stream from 0 broke after {len(seen)} events: {error!r}")
        self.records["streamed event"] = len(seen)
        if missing := self._numbers - seen:
            self.findings.append(f"{len(missing)} events are missing in the stream, such as {min(missing)}")

    # -- reading -----------------------------------------------------------------------------------

    async def _each(self, kind: str, names: Iterable[str], read: Any) -> None:
        waiting = list(names)
        self.records[kind] += len(waiting)

        async def take() -> None:
            while waiting:
                await read(waiting.pop())

        await asyncio.gather(*(take() for _ in range(READERS)))

    async def _pages(self, path: str, field: str) -> AsyncIterator[dict[str, Any]]:
        cursor = ""
        while True:
            question = {} if path == "/api/v1/steps" else {"limit": str(PAGE), **({"cursor": cursor} if cursor else {})}
            page = await self._get(path, question)
            items = (page or {}).get(field, [])
            for item in items:
                yield item
            cursor = str((page or {}).get("next_cursor") or "")
            if not cursor or (not items and path != "/api/v1/callbacks"):  # whose pages may be empty in between
                return

    async def _get(
        self, path: str, params: dict[str, str] | None = None, *, also: tuple[int, ...] = (), parse: bool = True
    ) -> Any:
        self.records["read"] += 1
        try:
            async with self._session.get(self._url + path, params=params, headers=self._headers) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            self.findings.append(f"GET {path}: {error!r}")
            return None
        self._search(content, f"GET {path}")
        if response.status != 200 and response.status not in also:
            self.findings.append(f"GET {path} {params}: {response.status} {content[:200]!r}")
            return None
        try:
            return load(content) if parse else None
        except (ValueError, RecursionError) as error:
            self.findings.append(f"GET {path} {params}: not JSON, {error!r}")
            return None

    def _search(self, content: bytes, place: str) -> None:
        if self._wallet.found_in(content):
            kind = _NUMBER.sub("...", place)
            self.leaks[kind] += 1
            if self.leaks[kind] == 1:
                self.findings.append(f"{place} shows a receipt")


def load(content: bytes) -> Any:
    """JSON as it is defined: NaN and infinities are none."""
    return json.loads(content, parse_constant=_refuse)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length, without their ends."""
    rest = b""
    async for piece in content.iter_any():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line


def complaints(log: bytes, wallet: Wallet) -> list[str]:
    """Lines of the log that are errors or traces of calls, or have a receipt in them."""
    found = []
    for line in log.splitlines():
        if wallet.found_in(line):
            found.append(f"the log shows a receipt: {line[:300]!r}")
        try:
            level = json.loads(line).get("level")
        except ValueError:
            level = "error" if b"Traceback" in line else None
        if level in ("error", "critical") or b"Traceback" in line:
            found.append(f"the log has: {line[:300]!r} ... {line[-400:]!r}")
    return found


def files_with_receipts(data: Path, wallet: Wallet) -> list[str]:
    """The bytes of everything in the data directory."""
    files = [path for path in sorted(data.rglob("*")) if path.is_file()]
    return [f"the file {path.name} holds a receipt" for path in files if wallet.found_in(path.read_bytes())]


def rows_with_receipts(place: Place, wallet: Wallet) -> list[str]:
    """Every row of every table as text: a file may cut a long one in two, a server may compress it."""
    found = []
    for table in _tables(place):
        holding = 0
        for row in by_hand(place, f"SELECT * FROM {table}"):
            text = "\n".join(value.decode("latin-1") if isinstance(value, bytes) else str(value) for value in row)
            holding += bool(wallet.found_in(text.encode(errors="replace")))
        if holding:
            found.append(f"{holding} rows of the table {table} hold a receipt")
    return found


def _tables(place: Place) -> list[str]:
    if isinstance(place, Path):
        names = by_hand(place, "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    else:
        names = by_hand(place, "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    return sorted(str(name) for (name,) in names)
