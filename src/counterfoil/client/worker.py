"""The worker kit: ordinary functions behind step endpoints, with the contract kept for them.

``Worker`` mounts handlers on an aiohttp application: it takes the receipt, answers at once, does the work
and delivers exactly one outcome by ``Reporter`` (see ``reports``), whose rules of delivery it follows.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
from aiohttp import web

from counterfoil.client.arguments import async_function
from counterfoil.client.errors import InvalidDispatch, NotCompleted, ReportRefused, ReportUndelivered, StepFailed
from counterfoil.client.reports import LONGEST_ERROR, Backoff, Receipt, Reporter, Verdict
from counterfoil.domain.jsontext import dump_json

logger = logging.getLogger("counterfoil.worker")

UNDELIVERABLE_CODES = frozenset({"INVALID_RESULT", "PAYLOAD_TOO_LARGE"})
LAST_REPORT_SECONDS = 5.0


class Assignment:
    """A work item as its step handler gets it: the arguments, and a way to report progress."""

    def __init__(self, receipt: Receipt) -> None:
        self.receipt = receipt
        self.arguments = receipt.arguments
        self.outputs = receipt.outputs
        self.progress: float | None = None
        self.message: str | None = None
        self.reporter: Reporter | None = None
        self.cancel_requested = False

    async def heartbeat(self, progress: float | None = None, message: str | None = None) -> bool:
        """Report progress now. True: the work is no longer wanted (``cancel_requested`` stays set).

        One that cannot be delivered is only logged: it is no reason to give the work up.
        """
        self.progress, self.message = progress, message
        try:
            if self.reporter is not None and await self.reporter.heartbeat(progress, message):
                self.cancel_requested = True
        except ReportUndelivered as error:
            logger.warning("%s", error)
        return self.cancel_requested


Handler = Callable[[Assignment], Awaitable[Mapping[str, Any] | None]]
"""An async function: what it returns are the outputs."""


@dataclass(frozen=True, slots=True)
class _Step:
    handler: Handler
    heartbeat_every: float | None
    time_limit: float | None


class Worker:
    """Mounts step handlers on an aiohttp application and keeps the contract for them.

    A dispatch is answered with 200 at once; the handler then runs on its own, with heartbeats every
    ``heartbeat_every`` seconds, and its result is handed in. What a handler returns are the outputs;
    ``StepFailed`` means failed for good; ``NotCompleted``, and any other exception, means try again.
    A dispatch of a receipt that is being worked on starts nothing, and one that has ended gets the same
    result handed in again: within this process, a handler runs for a receipt once, unless it gave it back.
    """

    def __init__(
        self,
        *,
        heartbeat_every: float | None = 20.0,
        backoff: Backoff | None = None,
        signing_secret: str | None = None,
        remember: int = 10_000,
        grace: float = 10.0,
    ) -> None:
        self._steps: dict[str, _Step] = {}
        self._running: dict[str, tuple[Assignment, asyncio.Task[None]]] = {}
        self._ended: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._heartbeat_every = heartbeat_every
        self._backoff = backoff
        self._signing_secret = signing_secret
        self._remember = remember
        self._grace = grace
        self._session: aiohttp.ClientSession | None = None
        self._mounted = False

    def step(
        self, path: str, *, heartbeat_every: float | None = None, time_limit: float | None = None
    ) -> Callable[[Handler], Handler]:
        """Serve ``POST path`` with the decorated async function; over ``time_limit`` seconds it is given back.

        All steps are added before ``app()`` or ``mount()``, each path once.
        """
        _check_path(path)

        def register(handler: Handler) -> Handler:
            async_function("a step handler", handler)
            if self._mounted:
                raise RuntimeError(f"step {path} comes too late: add all steps before app() or mount() is called")
            if path in self._steps:
                raise ValueError(f"step {path} has a handler already")
            self._steps[path] = _Step(handler, heartbeat_every or self._heartbeat_every, time_limit)
            return handler

        return register

    def app(self) -> web.Application:
        """A new application with nothing but the steps."""
        app = web.Application(client_max_size=16 * 1024 * 1024)
        self.mount(app)
        return app

    def mount(self, app: web.Application) -> None:
        """Add the steps to an application; running work is bound to its life."""
        self._mounted = True
        for path, step in self._steps.items():
            app.router.add_post(path, partial(self._receive, step))
        app.cleanup_ctx.append(self._life)

    async def _life(self, _: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession() as session:
            self._session = session
            yield
            tasks = [task for _, task in self._running.values()]
            for seconds in (self._grace, LAST_REPORT_SECONDS):
                late = [task for task in tasks if not task.done()]
                if late:
                    await asyncio.wait(late, timeout=seconds)
                for task in late:  # the first time, the work is given back so that the engine tries again
                    task.cancel()
            self._session = None

    async def _receive(self, step: _Step, request: web.Request) -> web.Response:
        try:
            receipt = Receipt.from_request(await request.read())
        except InvalidDispatch as error:
            return _answer(400, {"success": False, "error": str(error)})
        if receipt.webhook_url is None:
            return _answer(200, await self._outcome(step, Assignment(receipt)))
        key = receipt.token or receipt.webhook_url
        if key in self._running:
            running = self._running[key][0]
            running.receipt = receipt  # so that its report speaks for the newest attempt
            if running.reporter is not None:
                running.reporter.receipt = receipt
        else:
            assignment = Assignment(receipt)
            task = asyncio.create_task(self._work(step, assignment, key))
            self._running[key] = (assignment, task)
            task.add_done_callback(lambda _: self._running.pop(key, None))
        return _answer(200, {"success": True})

    async def _work(self, step: _Step, assignment: Assignment, key: str) -> None:
        assert self._session is not None
        reporter = Reporter(
            self._session, assignment.receipt, backoff=self._backoff, signing_secret=self._signing_secret
        )
        assignment.reporter = reporter
        result = self._ended.get(key)
        if result is None:
            result = await self._attended(step, assignment)
        if result is None:
            logger.info("cancelled: %r", assignment.receipt)
            return
        if not result.get("retriable"):
            self._ended[key] = result
            if len(self._ended) > self._remember:
                self._ended.popitem(last=False)
        try:
            verdict = await reporter.report(result)
            if verdict.code in UNDELIVERABLE_CODES:  # better a failed flow than one that waits for its deadline
                await reporter.fail(f"the worker's result was refused: {verdict.code}: {verdict.message}")
        except ReportUndelivered as error:
            logger.warning("%s", error)

    async def _attended(self, step: _Step, assignment: Assignment) -> dict[str, Any] | None:
        """Run the handler beside its heartbeats; None when the work was cancelled meanwhile."""
        handling = asyncio.create_task(self._outcome(step, assignment))
        beating = asyncio.create_task(_beat(step, assignment, handling))
        try:
            return await asyncio.shield(handling)
        except asyncio.CancelledError:
            if assignment.cancel_requested:
                return None
            handling.cancel()
            await asyncio.gather(handling, return_exceptions=True)
            return _given_back("the worker is stopping")
        finally:
            beating.cancel()

    async def _outcome(self, step: _Step, assignment: Assignment) -> dict[str, Any]:
        """The handler's end as a StepResult; only a cancellation leaves here as an exception."""
        limit = asyncio.timeout(step.time_limit)
        try:
            async with limit:
                outputs = await step.handler(assignment)
            return {"success": True, "outputs": _checked_outputs(outputs)}
        except StepFailed as error:
            return {"success": False, "error": str(error)[:LONGEST_ERROR]}
        except NotCompleted as error:
            return _given_back(str(error), error.retry_after)
        except Exception as error:
            if limit.expired():
                return _given_back(f"the work took longer than {step.time_limit:g} s")
            logger.exception("the handler failed: %r", assignment.receipt)
            return _given_back(f"{type(error).__name__}: {error}")


def _check_path(path: object) -> None:
    if callable(path):  # the decorator without its path
        raise TypeError('a step needs the path that it serves: write @worker.step("/path")')
    if not isinstance(path, str):
        raise TypeError(f"the path of a step must be a text, not {type(path).__name__}")
    if not path.startswith("/"):
        raise ValueError(f"the path of a step must begin with a slash: write {'/' + path!r}")


async def _beat(step: _Step, assignment: Assignment, handling: asyncio.Task[dict[str, Any]]) -> None:
    while step.heartbeat_every is not None:
        await asyncio.sleep(step.heartbeat_every)
        try:
            if await assignment.heartbeat(assignment.progress, assignment.message):
                handling.cancel()
                return
        except ReportRefused as error:
            logger.warning("%s", error)


def _given_back(error: str, retry_after: float | None = None) -> dict[str, Any]:
    result = {"success": False, "error": error[:LONGEST_ERROR], "retriable": True}
    return result if retry_after is None else {**result, "retry_after": retry_after}


def _checked_outputs(outputs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Outputs that JSON can carry; others would come back the same at every attempt."""
    try:
        checked = dict(outputs or {})
        dump_json(checked)
    except (TypeError, ValueError) as error:
        raise StepFailed(f"the handler returned outputs that are no JSON object: {error}") from error
    return checked


def _answer(status: int, document: dict[str, Any]) -> web.Response:
    return web.Response(status=status, body=dump_json(document), content_type="application/json")


__all__ = ["Assignment", "Backoff", "Handler", "Receipt", "Reporter", "Verdict", "Worker"]
