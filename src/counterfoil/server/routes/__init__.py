"""Routes as data: what is served, to whom, with which answers, and the engine that they speak to.

One table serves the router, the guard and the OpenAPI document, so that none of them can differ from the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from pydantic import BaseModel

from counterfoil.domain.errors import CounterfoilError
from counterfoil.engine import Engine
from counterfoil.server.auth import READERS
from counterfoil.server.requests import Query
from counterfoil.settings import Role

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
EngineFacade = Engine
"""The routes know the engine by its facade alone, never the parts behind it."""


@dataclass(frozen=True, kw_only=True)
class SuccessAnswer:
    """One way in which a route answers when all is well; without a model it has no JSON body."""

    description: str
    model: type[Any] | None = None
    """The shape of the JSON body, declared in ``counterfoil.wire``."""
    media_type: str | None = None
    """For a body that is not JSON."""


@dataclass(frozen=True, kw_only=True)
class HeaderParameter:
    """A request header that a route looks at."""

    name: str
    description: str
    required: bool = False
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})


@dataclass(frozen=True, kw_only=True)
class Route:
    """One method on one path. ``handler`` has a coroutine function's name, which becomes the operation's id."""

    method: str
    path: str
    handler: Handler
    tag: str
    summary: str
    answers: Mapping[int, SuccessAnswer]
    description: str = ""
    errors: tuple[type[CounterfoilError], ...] = ()
    """What it refuses with, beside what every route may refuse."""
    request: type[BaseModel] | None = None
    request_optional: bool = False
    example: Any = None
    query: type[Query] | None = None
    headers: tuple[HeaderParameter, ...] = ()
    roles: frozenset[Role] | None = READERS
    """Who may use it; None: everybody."""
    open_on_loopback: bool = False
    bare: bool = False
    """Registered as it is: no guard, no check of the engine's state. For the webhook, where the receipt is the
    credential and every microsecond counts."""

    @property
    def name(self) -> str:
        return str(getattr(self.handler, "__name__", "handler"))

    @property
    def changes(self) -> bool:
        """Whether it changes state, and so is refused while the engine stops."""
        return self.method not in ("GET", "HEAD", "OPTIONS")
