"""Health, readiness and metrics."""

from __future__ import annotations

from contextlib import suppress

from aiohttp import web

from counterfoil.domain.errors import Unavailable
from counterfoil.server.answers import json_response
from counterfoil.server.routes import EngineFacade, Route, SuccessAnswer
from counterfoil.wire.operations import Health, ReadinessDocument


def operations_routes(engine: EngineFacade) -> list[Route]:
    async def get_health(request: web.Request) -> web.Response:  # noqa: ARG001
        return json_response({"status": "ok"})

    async def get_readiness(request: web.Request) -> web.Response:  # noqa: ARG001
        if not engine.accepting:
            raise Unavailable("the engine is stopping", failed="stopping")
        return json_response({"status": "ready", **await engine.operations.health()})

    async def get_metrics(request: web.Request) -> web.Response:  # noqa: ARG001
        with suppress(Unavailable):  # metrics must be served although the store cannot be read
            await engine.operations.refresh_metrics()
        text, content_type = engine.metrics.render()
        headers = {"Content-Type": content_type, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        return web.Response(body=text, headers=headers)

    return [
        Route(
            method="GET",
            path="/healthz",
            handler=get_health,
            tag="operations",
            summary="Health: the process is alive",
            description="The process answers, nothing else is checked. For a liveness probe; no API key is needed "
            "from the same machine.",
            answers={200: SuccessAnswer(description="alive", model=Health)},
            open_on_loopback=True,
        ),
        Route(
            method="GET",
            path="/readyz",
            handler=get_readiness,
            tag="operations",
            summary="Readiness: the engine can take work",
            description=(
                "The store can be written, a file descriptor is available and the sweeps run; "
                "503 otherwise (`details.failed` names the check), and while the engine stops."
            ),
            answers={200: SuccessAnswer(description="ready", model=ReadinessDocument)},
            open_on_loopback=True,
        ),
        Route(
            method="GET",
            path="/metrics",
            handler=get_metrics,
            tag="operations",
            summary="Metrics for Prometheus",
            description="Counters, gauges and histograms of this node in the text format. Metrics are served while "
            "the store cannot be read, too; those that come from the store are then out of date.",
            answers={200: SuccessAnswer(description="the text format of Prometheus", media_type="text/plain")},
            open_on_loopback=True,
        ),
    ]
