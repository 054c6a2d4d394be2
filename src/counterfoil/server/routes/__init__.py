"""Routes as data: path, roles, requests, answers and errors.

The router, the guard and the OpenAPI document use the same table, so they cannot differ.
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
"""The part of the engine that routes may use."""


@dataclass(frozen=True, kw_only=True)
class SuccessAnswer:
    """A successful answer of a route; without a model it has no JSON body."""

    description: str
    model: type[Any] | None = None
    """The shape of the JSON body, declared in ``counterfoil.wire``."""
    media_type: str | None = None
    """For a body that is not JSON."""


@dataclass(frozen=True, kw_only=True)
class HeaderParameter:
    """A request header that a route reads."""

    name: str
    description: str
    required: bool = False
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})


@dataclass(frozen=True, kw_only=True)
class Route:
    """One method on one path. The name of ``handler`` becomes the operation id."""

    method: str
    path: str
    handler: Handler
    tag: str
    summary: str
    """What the operation does, in a few words."""
    description: str
    """One to three sentences: what the answer holds, what changes, what a caller must know."""
    answers: Mapping[int, SuccessAnswer]
    other_success: SuccessAnswer | None = None
    """The answer with any other status of success, where the addressed record sets the status."""
    errors: tuple[type[CounterfoilError], ...] = ()
    """The errors of this route, beside those that every route can answer."""
    request: type[BaseModel] | None = None
    request_optional: bool = False
    example: Any = None
    query: type[Query] | None = None
    headers: tuple[HeaderParameter, ...] = ()
    roles: frozenset[Role] | None = READERS
    """The roles that may use the route; None: no API key is needed."""
    open_on_loopback: bool = False
    judges_refusals: bool = False
    """A caller that the guard refuses reaches the handler, which finds the refusal in the request (``auth.REFUSAL``)
    and must raise it unless the addressed record accepts another proof."""
    own_credential: Callable[[web.Request], bool] | None = None
    """Whether a request brings a credential of its own in its path, which the handler checks: it needs no API key then,
    and may come through a proxy and from any page."""
    refused: Callable[[web.Request, CounterfoilError], None] | None = None
    """Told of a request that is refused before the handler is called."""
    bare: bool = False
    """Registered without guard and without a check of the engine's state. For the webhook: the receipt is the
    credential, and the guard would cost every completion."""

    @property
    def name(self) -> str:
        return str(getattr(self.handler, "__name__", "handler"))

    @property
    def changes(self) -> bool:
        """Whether the route changes state; such a route is refused while the engine stops."""
        return self.method not in ("GET", "HEAD", "OPTIONS")
