"""Outbound HTTP: sends one request and classifies its outcome.

What matters afterwards is whether the receiver may have seen the request. So the request body records the moment before
its first byte is sent: a failure before that is *not delivered*, a later one is *unknown*. No fault of the network or
of the receiver is raised; a cancellation is.
"""

from __future__ import annotations

import codecs
import math
import os
import socket
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp.abc import AbstractStreamWriter, ResolveResult
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from counterfoil.domain.time import Clock
from counterfoil.domain.work.replies import NOT_ALLOWED, Reply, SendOutcome
from counterfoil.transport.egress import EgressDenied, EgressPolicy, GuardedResolver, destination
from counterfoil.transport.exhaustion import LocalLack, lack_of

KEEP_IDLE_SECONDS = 4.0
"""Many servers close an idle connection after five seconds. A request that is sent at that moment has an unknown
outcome, so idle connections are closed earlier."""

LONGEST_RETRY_AFTER_MS = 365 * 24 * 3600 * 1000
_KEPT_TARGETS = 4096

_FAULTS = (aiohttp.ClientError, HttpProcessingError, OSError, RuntimeError)
"""The exceptions of aiohttp for faults of the network and of the receiver, including timeouts (an OSError).
RuntimeError: raised by uvloop for some socket faults, and by aiohttp for a session that is being closed."""

_BEFORE_SENDING = (*_FAULTS, MemoryError)

codecs.lookup("idna")  # load the module now: loading it at first use takes a descriptor

_OWN_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}
"""Responses are small: compressing them costs more than it saves."""


@dataclass(frozen=True, slots=True)
class _Target:
    """An endpoint URL, parsed and checked once; ``refusal`` is the reply if nothing can or may be sent there."""

    url: URL
    host: str = ""
    refusal: Reply | None = None


class _Body(aiohttp.Payload):
    """A request body that records whether any byte of it, or of the headers before it, may have been sent."""

    _value: bytes
    _autoclose = True

    def __init__(self, value: bytes, may_send: Callable[[], bool]) -> None:
        super().__init__(value, content_type="application/json")
        self._size = len(value)
        self._may_send = may_send
        self.refused = False
        self.sent = False

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._value.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """The headers are held back by aiohttp until the first bytes of the body: so far nothing was sent."""
        transport = writer.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the connection was closed before anything was sent")
        if not self._may_send():
            self.refused = True
            raise ConnectionAbortedError("sending is no longer allowed")
        self.sent = True
        await writer.write(self._value[:content_length])


class _Connecting:
    """What is learned while the connection of one call is established, perhaps in other tasks."""

    __slots__ = ("address", "lack")

    def __init__(self) -> None:
        self.address: tuple[Any, ...] | None = None
        self.lack: str | None = None


_connecting: ContextVar[_Connecting] = ContextVar("connecting")


class _Resolver(GuardedResolver):
    """Distinguishes a name that cannot be resolved from a machine that cannot look it up."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Resolve as the parent class does; raises LocalLack if the lookup could not be made."""
        try:
            return await super().resolve(host, port, family)
        except (OSError, RuntimeError, MemoryError) as error:
            lack = lack_of(error)
            if lack is None:
                raise
            raise LocalLack(lack) from error


class HttpTransport:
    """Sends requests over one session with reused connections. The caller limits concurrency."""

    def __init__(self, *, egress: EgressPolicy, clock: Clock, max_response_bytes: int) -> None:
        self._egress = egress
        self._clock = clock
        self._max_response_bytes = max_response_bytes
        self._targets: dict[str, _Target] = {}
        self._resolver: GuardedResolver | None = None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._resolver = _Resolver(self._egress)
        connector = aiohttp.TCPConnector(
            limit=0,
            limit_per_host=0,
            keepalive_timeout=KEEP_IDLE_SECONDS,
            resolver=self._resolver,
            socket_factory=self._make_socket,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=_OWN_HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; requests in progress end as not delivered or unknown."""
        if self._session is not None:
            await self._session.close()
        if self._resolver is not None:
            await self._resolver.close()

    def _make_socket(self, address: tuple[Any, ...]) -> socket.socket:
        connecting = _connecting.get()
        connecting.address = address
        try:
            return self._egress.make_socket(address)
        except OSError as error:
            connecting.lack = lack_of(error)
            raise

    async def post(
        self,
        url: str,
        *,
        body: bytes,
        headers: Mapping[str, str],
        timeout_ms: int,
        may_send: Callable[[], bool] = lambda: True,
    ) -> Reply:
        """Send one request; the connection, the request and the whole response share the timeout.

        ``may_send`` is called when the connection is established and the first byte is about to be sent.
        """
        assert self._session is not None, "the transport is opened by async with"
        connecting = _Connecting()
        _connecting.set(connecting)
        payload = _Body(body, may_send)
        try:
            target = self._targets.get(url) or self._target(url)
            if target.refusal is not None:
                return target.refusal
            destination.set(target.host)
            response = await self._session.post(
                target.url, data=payload, headers=headers, allow_redirects=False, timeout=_timeout(timeout_ms)
            )
        except _BEFORE_SENDING as error:
            if payload.refused:
                return Reply(SendOutcome.NOT_DELIVERED, error=NOT_ALLOWED)
            lack = None if payload.sent else connecting.lack or lack_of(_cause(error), connecting.address)
            if lack is not None:
                return Reply(SendOutcome.NOT_DELIVERED, error=f"not sent: this machine lacks {lack}", lack=lack)
            return _fault(error, sent=payload.sent, timeout_ms=timeout_ms)
        return await self._answer(response, timeout_ms)

    async def get(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout_ms: int,
        may_send: Callable[[], bool] = lambda: True,
    ) -> Reply:
        """Ask for something. Whether a question that failed was delivered does not matter: it changes nothing."""
        assert self._session is not None, "the transport is opened by async with"
        connecting = _Connecting()
        _connecting.set(connecting)
        try:
            target = self._targets.get(url) or self._target(url)
            if target.refusal is not None:
                return target.refusal
            if not may_send():
                return Reply(SendOutcome.NOT_DELIVERED, error="not sent: it was no longer to be asked")
            destination.set(target.host)
            response = await self._session.get(
                target.url, headers=headers, allow_redirects=False, timeout=_timeout(timeout_ms)
            )
        except _BEFORE_SENDING as error:
            return _fault(error, sent=False, timeout_ms=timeout_ms)
        return await self._answer(response, timeout_ms)

    async def _answer(self, response: aiohttp.ClientResponse, timeout_ms: int) -> Reply:
        status = response.status
        wish = response.headers.get("Retry-After")
        retry_after_ms = None if wish is None else parse_retry_after(wish, self._clock())
        try:
            body, truncated = await self._read(response)
        except _FAULTS as error:
            response.close()
            if 200 <= status < 300:  # the missing part may have been the result
                return _fault(error, sent=True, timeout_ms=timeout_ms)
            return Reply(SendOutcome.ANSWERED, status, retry_after_ms)
        except BaseException:
            response.close()
            raise
        return Reply(SendOutcome.ANSWERED, status, retry_after_ms, body, truncated)

    async def _read(self, response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
        """The body up to the limit. At its end the connection is reused; beyond the limit it is closed."""
        chunks: list[bytes] = []
        size = 0
        while chunk := await response.content.readany():
            chunks.append(chunk)
            size += len(chunk)
            if size > self._max_response_bytes:
                response.close()
                return b"".join(chunks)[: self._max_response_bytes], True
        return b"".join(chunks), False

    def _target(self, url: str) -> _Target:
        if len(self._targets) >= _KEPT_TARGETS:
            self._targets.clear()
        target = self._targets[url] = self._examine(url)
        return target

    def _examine(self, url: str) -> _Target:
        try:
            parsed = URL(url)
            host = parsed.raw_host or ""
            host.encode("idna")  # as a lookup does: an empty or too long label is not valid
        except ValueError:
            return _unusable("the endpoint is not a URL")
        if parsed.scheme not in ("http", "https") or not host:
            return _unusable("the endpoint must be an http:// or https:// URL with a host")
        try:
            self._egress.check_host(host)
        except EgressDenied as denial:
            return _Target(parsed, refusal=_denied(denial))
        return _Target(parsed, host)


def parse_retry_after(text: str, now_ms: int) -> int | None:
    """``Retry-After`` in milliseconds from now: seconds or an HTTP date; None for anything else."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        seconds = int(text.lstrip("0")[:12] or 0)  # twelve digits already exceed the limit
        return min(seconds * 1000, LONGEST_RETRY_AFTER_MS)
    try:
        at_ms = math.floor(parsedate_to_datetime(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
    return min(max(at_ms - now_ms, 0), LONGEST_RETRY_AFTER_MS)


@lru_cache(maxsize=256)
def _timeout(timeout_ms: int) -> aiohttp.ClientTimeout:
    """For aiohttp zero means no timeout, and by default it rounds long timeouts up to whole seconds."""
    return aiohttp.ClientTimeout(total=max(timeout_ms, 1) / 1000, ceil_threshold=math.inf)


def _unusable(message: str) -> _Target:
    return _Target(URL(), refusal=Reply(SendOutcome.NOT_DELIVERED, error=message, permanent=True))


def _denied(denial: EgressDenied) -> Reply:
    return Reply(SendOutcome.NOT_DELIVERED, error=denial.strerror or "", denied=True, permanent=True)


def _cause(error: Exception) -> Exception:
    return error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error


def _fault(error: Exception, *, sent: bool, timeout_ms: int) -> Reply:
    cause = _cause(error)
    if isinstance(cause, EgressDenied):
        return _denied(cause)
    if isinstance(error, aiohttp.InvalidURL):
        return Reply(SendOutcome.NOT_DELIVERED, error="the host of the endpoint is not valid", permanent=True)
    delivery = SendOutcome.UNKNOWN if sent else SendOutcome.NOT_DELIVERED
    text = _explain(error, sent=sent, timeout_ms=timeout_ms)
    return Reply(delivery, error=text, timed_out=isinstance(error, TimeoutError))


def _explain(error: Exception, *, sent: bool, timeout_ms: int) -> str:
    """A message for people. The libraries' own texts may repeat the URL or what was received."""
    if isinstance(error, TimeoutError):
        return f"no complete response within {timeout_ms} ms" if sent else f"no connection within {timeout_ms} ms"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the host name cannot be resolved: {_reason(error.os_error)}"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "the certificate of the endpoint is not trusted"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return "no TLS connection can be made with the endpoint"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect: {_reason(error.os_error)}"
    if isinstance(error, (aiohttp.ClientResponseError, HttpProcessingError)):
        return "the answer is not HTTP"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the response body was truncated"
    return "the connection was lost before a response arrived" if sent else "the connection was lost before sending"


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):  # its numbers differ from those of other errors
        return error.strerror or "unknown host"
    return os.strerror(error.errno) if error.errno else "no address of the host answers"
