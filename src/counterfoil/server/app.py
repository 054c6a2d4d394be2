"""The web application: every route registered, guarded where it must be, over one engine.

It has no middlewares: they would cost every webhook. A route is wrapped once, when it is registered. What handlers
raise becomes an answer (answering.py) where the application is served: by ``FastRunner``, or by ``PlainRunner``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web

from counterfoil.domain.errors import (
    BadRequest,
    CounterfoilError,
    Denied,
    PayloadTooLarge,
    Unauthenticated,
    Unavailable,
)
from counterfoil.domain.redaction import holds_receipt
from counterfoil.server.answers import empty_response
from counterfoil.server.auth import CALLER, REFUSAL, WITHOUT_KEY, Guard, KeyRing
from counterfoil.server.problems import problem_response
from counterfoil.server.routes import EngineFacade, Handler, Route
from counterfoil.server.routes.approvals import approval_routes
from counterfoil.server.routes.callbacks import callback_routes
from counterfoil.server.routes.docs_page import docs_routes, openapi_route
from counterfoil.server.routes.effects import effect_routes
from counterfoil.server.routes.flows import flow_routes
from counterfoil.server.routes.gate.checkpoints import checkpoint_routes
from counterfoil.server.routes.gate.steps import workflow_step_routes
from counterfoil.server.routes.gate.workflows import workflow_routes
from counterfoil.server.routes.hooks import hook_routes
from counterfoil.server.routes.operations import operations_routes
from counterfoil.server.routes.policies import policy_routes
from counterfoil.server.routes.reconciliations import reconciliation_routes
from counterfoil.server.routes.relays.routes import relay_routes
from counterfoil.server.routes.schedules import schedule_routes
from counterfoil.server.routes.steps import step_routes
from counterfoil.server.routes.subscriptions import subscription_routes
from counterfoil.server.routes.webhook import webhook_routes
from counterfoil.server.routes.work import work_routes
from counterfoil.server.throttle import KeyThrottle
from counterfoil.settings import Settings

_NAME = re.compile(r"\{(\w+)\}")


def create_web_app(engine: EngineFacade, settings: Settings) -> web.Application:
    """The application; serve it with ``FastRunner`` or ``PlainRunner``."""
    keys = KeyRing(settings.keys)
    api = api_routes(engine)
    app = web.Application(client_max_size=settings.max_body_bytes)
    throttle = KeyThrottle()
    app.on_shutdown.append(_waiting_ends(engine, throttle))
    register(app, [*api, *docs_routes(), openapi_route(api, with_keys=bool(keys))], Guard(keys, throttle), engine)
    return app


def api_routes(engine: EngineFacade) -> list[Route]:
    """Everything that the OpenAPI document shows."""
    return [
        *webhook_routes(engine),
        *step_routes(engine),
        *flow_routes(engine),
        *work_routes(engine),
        *callback_routes(engine),
        *relay_routes(engine),
        *schedule_routes(engine),
        *workflow_step_routes(engine),
        *checkpoint_routes(engine),
        *workflow_routes(engine),
        *approval_routes(engine),
        *reconciliation_routes(engine),
        *hook_routes(engine),
        *effect_routes(engine),
        *policy_routes(engine),
        *subscription_routes(engine),
        *operations_routes(engine),
    ]


def register(app: web.Application, routes: Iterable[Route], guard: Guard, engine: EngineFacade) -> None:
    """Put the routes into the router, with HEAD beside each GET, and OPTIONS for each path."""
    by_path: dict[str, list[Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, []).append(route)
    for path, members in by_path.items():
        # a name takes everything up to the next slash: what it may hold is the handler's business
        resource = app.router.add_resource(_NAME.sub(r"{\1:[^/]+}", path))
        allowed = {"OPTIONS"}
        for route in members:
            handler = route.handler if route.bare else guarded(route, guard, engine)
            for method in (route.method, "HEAD") if route.method == "GET" else (route.method,):
                resource.add_route(method, handler, expect_handler=_expect_for_webhook if route.bare else _expect)
                allowed.add(method)
        bare = any(route.bare for route in members)
        resource.add_route("OPTIONS", _options(", ".join(sorted(allowed)), None if bare else guard))


def judging(route: Route, guard: Guard) -> Handler:
    """The handler of a route that judges by itself whether a caller is refused."""
    own_credential = route.own_credential

    async def judging_handler(request: web.Request) -> web.StreamResponse:
        if own_credential is None or not own_credential(request):
            try:
                request[CALLER] = guard.check(request, route.roles)
            except Denied as refusal:
                request[REFUSAL] = refusal
        try:
            return await route.handler(request)
        except Unauthenticated:
            await guard.slow_down(request)
            raise

    return judging_handler


def guarded(route: Route, guard: Guard, engine: EngineFacade) -> Handler:
    """The handler behind the guard; while the engine stops, nothing that changes state gets through."""
    handler, roles, changes, open_on_loopback = route.handler, route.roles, route.changes, route.open_on_loopback
    own_credential = route.own_credential
    if route.judges_refusals:
        handler = judging(route, guard)

    def refuse_change(request: web.Request) -> None:
        if not engine.accepting:
            raise Unavailable("the engine is stopping")
        if own_credential is None:
            _refuse_receipts(request)

    async def guarded_handler(request: web.Request) -> web.StreamResponse:
        try:
            if (own_credential is not None and own_credential(request)) or route.judges_refusals:
                request[CALLER] = WITHOUT_KEY
            else:
                request[CALLER] = await guard.admit(request, roles, open_on_loopback=open_on_loopback)
            if changes:
                refuse_change(request)
        except CounterfoilError as error:
            if route.refused is not None:
                route.refused(request, error)
            raise
        return await handler(request)

    return guarded_handler


def _refuse_receipts(request: web.Request) -> None:
    """A receipt is a credential: it must not become the id of something, which is shown and stored."""
    if any(map(holds_receipt, request.match_info.values())):
        raise BadRequest("a receipt token was sent where an id is expected")


def _options(allowed: str, guard: Guard | None) -> Handler:
    async def options(request: web.Request) -> web.Response:
        if guard is not None:
            guard.refuse_forwarded(request)
        response = empty_response()
        response.headers["Allow"] = allowed
        return response

    return options


async def _expect(request: web.Request) -> web.Response | None:
    """``Expect: 100-continue``: a body that is too large is refused before it is sent.

    The refusal is returned, not raised: aiohttp calls this outside of all middlewares.
    """
    if request.headers.get("Expect", "").lower() != "100-continue":
        return problem_response(BadRequest("the only supported expectation is 100-continue"))
    if (request.content_length or 0) > request.client_max_size:
        return problem_response(PayloadTooLarge(limit_bytes=request.client_max_size))
    if request.version >= (1, 1):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer has not begun yet
    return None


async def _expect_for_webhook(request: web.Request) -> web.Response | None:
    """The same, but a body that is too large is left to the handler: it refuses it unread, and the inbox is told."""
    if (request.content_length or 0) > request.client_max_size:
        return None
    return await _expect(request)


def _waiting_ends(engine: EngineFacade, throttle: KeyThrottle) -> Callable[[web.Application], Awaitable[None]]:
    """When the server stops, streams, long polls and delayed answers end by themselves instead of being cut off."""

    async def end_waiting(app: web.Application) -> None:  # noqa: ARG001
        engine.end_waiting()
        throttle.release()

    return end_waiting
