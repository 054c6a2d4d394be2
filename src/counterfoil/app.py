"""The composition root: the only place where settings, store, engine, sweeps and server meet."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import structlog

from counterfoil.domain.callbacks.secrets import Secrets
from counterfoil.domain.errors import Unavailable
from counterfoil.domain.flows.view import FlowRules
from counterfoil.domain.time import Clock
from counterfoil.domain.work.receipts import Receipts
from counterfoil.engine import EngineContext, Limits, Retention, assemble, system_clock
from counterfoil.engine.policies.files import PolicyFileError, read_policies
from counterfoil.engine.subscriptions.deliveries import AT_ONCE as DELIVERIES_AT_ONCE
from counterfoil.engine.sweeps.loop import SweepLoop
from counterfoil.observability.logging import configure_logging
from counterfoil.observability.metrics import Metrics
from counterfoil.server.app import create_web_app
from counterfoil.server.auth import reviewers_among
from counterfoil.server.connections import ConnectionLimits, Connections
from counterfoil.server.listening import AcceptingSockets, listen
from counterfoil.server.plain import PlainRunner
from counterfoil.server.routes.webhook import WebhookIntake
from counterfoil.settings import Settings
from counterfoil.store.doctor.rules import Finding
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.maintenance.permissions import check_permissions
from counterfoil.store.maintenance.receipt_secrets import receipt_secrets
from counterfoil.store.select import examine, make_store
from counterfoil.transport.descriptors import RESERVED, DescriptorShares, raise_limit, share_out
from counterfoil.transport.egress import EgressPolicy
from counterfoil.transport.http import HttpTransport
from counterfoil.transport.relay import RelayingTransport, Relays
from counterfoil.transport.signing import Signer, Verifier

T = TypeVar("T")
SWITCH_INTERVAL_SECONDS = 0.0001
"""How long one thread may keep the interpreter. The writer's thread needs it only briefly, but while it waits for it
nothing is committed."""

COLLECTION_THRESHOLDS = (20_000, 20, 50)
"""New objects before the garbage collector looks for cycles. A busy server makes many short-lived objects and few
cycles; with the defaults the collector would run several times during each batch."""

FEW_CONNECTIONS = 1_000
"""If the limit on descriptors allows fewer connections, a warning is logged."""

log = structlog.get_logger(__name__)


class HttpRunner(Protocol):
    """Serves the web application on accepted connections."""

    async def setup(self) -> None: ...

    async def cleanup(self) -> None: ...

    def connection(self) -> asyncio.BaseProtocol:
        """The protocol of a new connection."""
        ...


class StartFailure(Exception):
    """The engine cannot start; the message says why, and what to do."""


class Counterfoil:
    """One node: ``async with Counterfoil(settings) as node`` serves until the block is left, then stops gracefully."""

    def __init__(self, settings: Settings, clock: Clock = system_clock, *, new_receipt_secret: bool = False) -> None:
        self.settings = settings
        self._clock = clock
        self._new_receipt_secret = new_receipt_secret
        self.url = ""

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as cleanup:
            try:
                check_permissions(self.settings)
                self._store = make_store(self.settings, self._clock)
                await self._store.open()
                cleanup.push_async_callback(self._store.close)
                secrets = await self._receipt_secrets()
            except (StoreFailure, OSError, ValueError) as failure:
                raise StartFailure(str(failure)) from failure
            self._compose(Receipts(secrets))
            await self._start(cleanup)
        return self

    async def _receipt_secrets(self) -> list[bytes]:
        settings = self.settings
        return await receipt_secrets(
            self._store,
            settings.data,
            settings.receipt_secret_list,
            self._clock(),
            replace=self._new_receipt_secret,
        )

    def _compose(self, receipts: Receipts) -> None:
        settings = self.settings
        shares = share_descriptors(settings)
        context = EngineContext(
            receipts,
            defaults=settings.work,
            retry_after_limit_ms=settings.retry_after_limit_ms,
            page_bytes=settings.page_bytes,
            clock=self._clock,
            rules=FlowRules(max_fan_out=settings.fan_out_limit, gate_patience_ms=settings.gate_patience_ms),
            retention=Retention(settings.retention_ms or None, settings.payload_retention_ms or None),
            reviewers=reviewers_among(settings.keys),
            secrets=Secrets(settings.secrets),
            callbacks=settings.callbacks.rules,
        )
        self._http = HttpTransport(
            egress=EgressPolicy(settings.egress_allow, settings.egress_deny, settings.egress_only),
            clock=self._clock,
            max_response_bytes=settings.max_response_bytes,
        )
        relays = Relays(context.new_id, settings.max_response_bytes)
        self.metrics = Metrics()
        secret = settings.signing_secret
        self.engine = assemble(
            self._store,
            context,
            RelayingTransport(self._http, relays),
            self.metrics,
            relays=relays,
            signer=Signer(secret) if secret else None,
            verifier=Verifier(secret) if secret else None,
            limits=Limits(
                backlog=settings.backlog_limit,
                batch=settings.batch_limit,
                dispatches=min(settings.dispatch_concurrency, shares.outbound),
                dispatches_per_host=settings.dispatch_concurrency_per_host,
                lease_ms=settings.lease_ms if settings.is_shared else None,
                value_check_ms=settings.value_check_ms,
            ),
        )
        self._sweeps = SweepLoop(self.engine, settings.sweep_interval_ms)
        self._connections = Connections(connection_limits(settings, shares.inbound), self.metrics)
        self._runner = self._make_runner()
        self._sockets: AcceptingSockets | None = None

    def _make_runner(self) -> HttpRunner:
        settings, app = self.settings, create_web_app(self.engine, self.settings)
        grace_seconds = settings.shutdown_grace_ms / 1000
        if not settings.fast_path:
            return PlainRunner(
                app, connections=self._connections, access_log=settings.access_log, shutdown_timeout=grace_seconds
            )
        from counterfoil.server.fast_path.protocol import FastRunner  # noqa: PLC0415 (only where it is wanted)

        return FastRunner(
            app,
            intake=WebhookIntake(self.engine, settings.max_body_bytes),
            connections=self._connections,
            access_log=settings.access_log,
            shutdown_timeout=grace_seconds,
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Take no new work, let requests and attempts in flight finish within the grace period, leave the rest."""
        self.engine.context.accepting = False
        self.engine.end_waiting()
        await self._sweeps.stop()
        left, _ = await asyncio.gather(self.engine.stop(self.settings.shutdown_grace_ms / 1000), self._close_server())
        if left:
            log.info("attempts_left", attempts=left, outcome="unknown")
        await self._http.__aexit__(None, None, None)
        await self._store.close()

    async def _start(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Start each part in order; ``cleanup`` stops the parts that were started when one fails."""
        await cleanup.enter_async_context(self._http)
        try:
            await self.engine.lease.keep()
        except StoreFailure as failure:
            raise StartFailure(str(failure)) from failure
        self.engine.start()
        cleanup.push_async_callback(self.engine.stop, 0)
        await self._load_policies()
        await self._runner.setup()
        cleanup.push_async_callback(self._close_server)
        self.url = await self._listen()
        self.engine.context.webhook_base_url = self.settings.webhook_base_url or self._own_address()
        self._sweeps.start()
        cleanup.pop_all()

    async def _load_policies(self) -> None:
        """Before any request is served and any attempt is sent."""
        if self.settings.policies_file:
            try:
                definitions = read_policies(Path(self.settings.policies_file))
                await self.engine.policies.put_file(definitions)
            except (PolicyFileError, Unavailable) as failure:
                raise StartFailure(str(failure)) from failure

    async def _listen(self) -> str:
        host, port = self.settings.host, self.settings.port
        try:
            self._sockets = await listen(host, port, self._runner.connection, self._connections)
        except OSError as error:
            raise StartFailure(f"cannot listen on {host}:{port}: {_listening_fault(error)}") from error
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self._sockets.port}"

    def _own_address(self) -> str:
        """The address in webhook URLs when none is configured; a wildcard address becomes a loopback address."""
        for everywhere, here in (("//0.0.0.0:", "//127.0.0.1:"), ("//[::]:", "//[::1]:")):
            if everywhere in self.url:
                address = self.url.replace(everywhere, here)
                log.warning("webhook_base_url_unset", used=address, remedy="set WEBHOOK_BASE_URL")
                return address
        return self.url

    async def _close_server(self) -> None:
        if self._sockets is not None:
            self._sockets.close()
        await self._runner.cleanup()


def _listening_fault(error: OSError) -> str:
    """Why an address cannot be listened on, and what to do about it."""
    if error.errno == errno.EADDRINUSE:
        return "another process uses this port; stop that process, or choose another port with --port"
    return error.strerror or str(error)


def share_descriptors(settings: Settings) -> DescriptorShares:
    """Raise the limit on descriptors as far as needed and allowed, and divide it between inbound and outbound."""
    inbound, outbound = settings.max_connections, settings.dispatch_concurrency
    limit = raise_limit(RESERVED + inbound + outbound + DELIVERIES_AT_ONCE)
    shares = share_out(limit - DELIVERIES_AT_ONCE, inbound, outbound)
    if shares != DescriptorShares(inbound, outbound):
        scarce = shares.outbound < outbound or shares.inbound < FEW_CONNECTIONS
        log.log(
            logging.WARNING if scarce else logging.INFO,
            "descriptors_limited",
            limit=limit,
            max_connections=shares.inbound,
            dispatch_concurrency=shares.outbound,
            remedy="raise the limit on open files (ulimit -n), or lower these settings",
        )
    return shares


def connection_limits(settings: Settings, most: int) -> ConnectionLimits:
    return ConnectionLimits(
        most=most,
        header=settings.header_timeout_ms / 1000,
        body=settings.body_timeout_ms / 1000,
        keepalive=settings.keepalive_timeout_ms / 1000,
        write=settings.write_timeout_ms / 1000,
    )


async def serve_until_signalled(settings: Settings, *, new_receipt_secret: bool = False) -> int:
    """Serve until SIGTERM or SIGINT, then stop gracefully."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Counterfoil(settings, new_receipt_secret=new_receipt_secret) as node:
        print(f"listening on {node.url}", flush=True)
        await stop.wait()
        log.info("stopping", url=node.url)
    return 0


def serve(settings: Settings, *, new_receipt_secret: bool = False) -> int:
    """``counterfoil serve``: the exit code, 0 after a graceful stop."""
    configure_logging(settings)
    try:
        return run(serve_until_signalled(settings, new_receipt_secret=new_receipt_secret))
    except StartFailure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1


def run_doctor(settings: Settings) -> list[Finding]:
    """Check the invariants of a database, which may be in use; an empty list means that all of them hold."""
    return examine(settings)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop where it is installed, else on asyncio's own event loop."""
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    gc.freeze()
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    gc.enable()
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


__all__ = ["Counterfoil", "Finding", "StartFailure", "run", "run_doctor", "serve"]
