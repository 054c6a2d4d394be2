"""Receipts and reports: what a step endpoint received, and how its outcome is delivered.

The rules of delivery: 5xx, 408, 425, 429 and network errors are retried with exponential backoff (and
never before ``Retry-After``); every other answer is final. A repeat is safe, because the engine records the
first outcome only: a repeat of a recorded result comes back as the verdict ``duplicate``.
Receipt tokens are credentials: they appear in no log line, no exception and no ``repr``.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Self
from uuid import uuid4

import aiohttp
from standardwebhooks import Webhook

from counterfoil.client.errors import InvalidDispatch, ReportRefused, ReportUndelivered
from counterfoil.client.refusals import parse_retry_after, with_faults
from counterfoil.domain.jsontext import JsonError, dump_json, parse_json

logger = logging.getLogger("counterfoil.worker")

RETRIED_STATUSES = frozenset({408, 425, 429})
Outcome = Literal["accepted", "duplicate", "stale", "refused"]
REPEATED_CODES = frozenset({"ALREADY_SUCCEEDED", "ALREADY_FAILED"})
LONGEST_ERROR = 65_536
"""Characters of an error that are reported: enough for any stack trace, and far from the engine's limit on bodies."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """One work item as its worker received it. ``webhook_url`` is None for sync steps.

    ``outputs`` are the outputs of the step, in a call that compensates it; None in all other calls.
    """

    flow_id: str
    step_id: str
    attempt: int
    idempotency_key: str
    max_attempts: int | None = None
    deadline_at: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict, repr=False)
    outputs: dict[str, Any] | None = field(default=None, repr=False)
    webhook_url: str | None = field(default=None, repr=False)
    heartbeat_url: str | None = field(default=None, repr=False)
    token: str = field(default="", repr=False)
    metadata: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_request(cls, body: bytes | str | Mapping[str, Any]) -> Self:
        """Read the body that a step endpoint received; raises ``InvalidDispatch``."""
        try:
            document = parse_json(body) if isinstance(body, bytes | str) else body
        except JsonError:
            raise InvalidDispatch("the body is not JSON") from None
        metadata = document.get("metadata") if isinstance(document, Mapping) else None
        if not isinstance(metadata, Mapping):
            raise InvalidDispatch("the body has no metadata")
        try:
            return cls(
                flow_id=str(metadata["flow_id"]),
                step_id=str(metadata["step_id"]),
                attempt=int(metadata["attempt"]),
                idempotency_key=str(metadata["idempotency_key"]),
                max_attempts=metadata.get("max_attempts"),
                deadline_at=metadata.get("deadline_at"),
                arguments=dict(document.get("arguments") or {}),
                outputs=dict(document.get("outputs") or {}) if metadata.get("compensating") else None,
                webhook_url=metadata.get("webhook_url"),
                heartbeat_url=metadata.get("heartbeat_url"),
                token=str(metadata.get("receipt_token") or ""),
                metadata=dict(metadata),
            )
        except KeyError as missing:
            raise InvalidDispatch(f"the metadata has no {missing.args[0]}") from None
        except (TypeError, ValueError):
            raise InvalidDispatch("the metadata or the arguments are not of the right type") from None


@dataclass(frozen=True, slots=True)
class ReportVerdict:
    """The engine's answer to a report.

    ``accepted``: it is recorded; ``duplicate``: this result was recorded before; ``stale``: a newer attempt
    is running, nothing was changed; ``refused``: it does not count, and ``code`` says why.
    """

    outcome: Outcome
    status: str | None = None
    code: str | None = None
    message: str = ""
    deliveries: int = 1

    @property
    def recorded(self) -> bool:
        """Whether the engine has recorded this result."""
        return self.outcome in ("accepted", "duplicate")


Verdict = ReportVerdict
"""The name that programs use."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How a delivery is retried: ``tries`` in all, with delays from ``first`` doubling up to ``limit`` seconds."""

    tries: int = 10
    first: float = 0.5
    limit: float = 30.0
    retry_after_limit: float = 3600.0

    def delay(self, failures: int, retry_after: float | None) -> float:
        """Seconds before the next try: between half and all of the doubled delay, so that senders spread."""
        full = min(self.limit, self.first * 2.0 ** min(failures - 1, 30))
        return max(random.uniform(full / 2, full), min(retry_after or 0.0, self.retry_after_limit))


HEARTBEAT_BACKOFF = Backoff(tries=3, first=0.2, limit=1.0, retry_after_limit=2.0)


class Reporter:
    """Delivers the outcome of one work item, and its heartbeats while it runs.

    ``signing_secret`` (``whsec_...``) signs the reports, for steps with ``require_signature``.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        receipt: Receipt,
        *,
        backoff: Backoff | None = None,
        signing_secret: str | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.receipt = receipt
        self._session = session
        self._backoff = backoff or Backoff()
        self._signer = Webhook(signing_secret) if signing_secret else None
        self._sleep = sleep

    def __repr__(self) -> str:
        return f"Reporter({self.receipt!r})"

    async def succeed(self, outputs: Mapping[str, Any] | None = None) -> ReportVerdict:
        """The work is done."""
        return await self.report({"success": True, "outputs": dict(outputs or {})})

    async def fail(self, error: str) -> ReportVerdict:
        """The work failed for good."""
        return await self.report({"success": False, "error": error[:LONGEST_ERROR]})

    async def not_completed(self, error: str, retry_after: float | None = None) -> ReportVerdict:
        """The attempt is over without an outcome: the engine retries, not before ``retry_after`` seconds."""
        result: dict[str, Any] = {"success": False, "error": error[:LONGEST_ERROR], "retriable": True}
        if retry_after is not None:
            result["retry_after"] = retry_after
        return await self.report(result)

    async def report(self, result: Mapping[str, Any]) -> ReportVerdict:
        """Deliver a StepResult, with retries; raises ``ReportUndelivered`` after the last one."""
        if self.receipt.webhook_url is None:
            raise InvalidDispatch("a sync step has no webhook: its answer is the result")
        body = dump_json({**result, "attempt": self.receipt.attempt})
        status, answer, deliveries = await self._deliver(self.receipt.webhook_url, body, self._backoff)
        verdict = _verdict(status, answer, deliveries)
        log = logger.warning if verdict.outcome == "refused" else logger.debug
        log("report %s (%s) for %r", verdict.outcome, verdict.code or verdict.status, self.receipt)
        return verdict

    async def heartbeat(self, progress: float | None = None, message: str | None = None) -> bool:
        """Send a heartbeat, which extends the deadline. True: stop, the work was cancelled."""
        if self.receipt.heartbeat_url is None:
            return False
        beat = {"progress": progress, "message": message}
        body = dump_json({name: value for name, value in beat.items() if value is not None})
        status, answer, _ = await self._deliver(self.receipt.heartbeat_url, body, HEARTBEAT_BACKOFF)
        if status == 200:
            return bool(answer.get("cancel_requested"))
        verdict = _verdict(status, answer, 1)
        if status in (400, 404):  # ended otherwise, or unknown: the result is not needed
            return True
        raise ReportRefused(verdict.code or f"HTTP_{status}", verdict.message)

    async def _deliver(self, url: str, body: bytes, backoff: Backoff) -> tuple[int, dict[str, Any], int]:
        """Post until there is a final answer: its status, its body and the number of posts."""
        failure = ""
        for delivery in range(1, backoff.tries + 1):
            retry_after = None
            try:
                status, headers, answer = await self._post(url, body)
                if status < 500 and status not in RETRIED_STATUSES:
                    return status, answer, delivery
                failure, retry_after = f"HTTP {status}", parse_retry_after(headers)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                failure = type(error).__name__  # never its text: it may hold the URL, and so the token
            if delivery < backoff.tries:
                logger.info("delivery %d failed (%s), trying again, for %r", delivery, failure, self.receipt)
                await self._sleep(backoff.delay(delivery, retry_after))
        raise ReportUndelivered(
            f"gave up after {backoff.tries} deliveries ({failure}) of a report for {self.receipt!r}"
        )

    async def _post(self, url: str, body: bytes) -> tuple[int, Mapping[str, str], dict[str, Any]]:
        headers = {"Content-Type": "application/json", **self._signature(body)}
        timeout = aiohttp.ClientTimeout(total=10)
        async with self._session.post(
            url, data=body, headers=headers, timeout=timeout, allow_redirects=False
        ) as response:
            raw = await response.read()
            try:
                answer = parse_json(raw) if raw else {}
            except JsonError:
                answer = {}
            return response.status, response.headers, answer if isinstance(answer, dict) else {}

    def _signature(self, body: bytes) -> dict[str, str]:
        if self._signer is None:
            return {}
        message_id, now = f"msg_{uuid4().hex}", datetime.now(UTC)
        return {
            "webhook-id": message_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._signer.sign(message_id, now, body.decode()),
        }


def _verdict(status: int, answer: dict[str, Any], deliveries: int) -> ReportVerdict:
    if status == 200:
        said = answer.get("verdict")
        outcome: Outcome = said if said in ("duplicate", "stale") else "accepted"
        return ReportVerdict(outcome, answer.get("status"), deliveries=deliveries)
    error = answer.get("error")
    error = error if isinstance(error, dict) else {}
    details = error.get("details")
    details = details if isinstance(details, dict) else {}
    code = str(error.get("code") or f"HTTP_{status}")
    repeated = code in REPEATED_CODES and details.get("same_result") is not False
    message = with_faults(str(error.get("message") or f"HTTP {status}"), details)
    return ReportVerdict("duplicate" if repeated else "refused", details.get("status"), code, message, deliveries)
