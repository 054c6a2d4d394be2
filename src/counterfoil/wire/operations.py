"""Health and readiness of one engine."""

from __future__ import annotations

from typing import Annotated, NotRequired

from typing_extensions import TypedDict

from counterfoil.wire.schema import described, keyword


class Health(TypedDict):
    status: Annotated[str, keyword(examples=["ok"])]


class StoreHealth(TypedDict):
    last_seq: Annotated[int, described("sequence number of the last journal event")]
    backlog: Annotated[int, described("number of commands that wait for a commit")]


class SweepHealth(TypedDict):
    finished_ms_ago: int


class NodeHealth(TypedDict):
    id: str
    lease_held: bool
    other_nodes: int


class EngineHealth(TypedDict):
    """What the engine knows of its store, its sweeps, and its lease where several nodes share the store."""

    store: StoreHealth
    sweeps: dict[str, SweepHealth]
    node: NotRequired[Annotated[NodeHealth, described("only where several nodes can share the store")]]


class ReadinessDocument(EngineHealth):
    status: Annotated[str, keyword(examples=["ready"])]


class Pointer(TypedDict):
    """Where the documentation of this API is."""

    name: str
    version: str
    docs: str
    openapi: str
