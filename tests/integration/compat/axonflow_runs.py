"""What the tests of the axonflow client share: its methods by introspection, and a client that takes notes of calls."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

WORKFLOW_PATHS = "/api/v1/workflows"


def workflow_methods(client: type[Any]) -> set[str]:
    """The public methods of a client that send a request to the routes of workflows."""
    return {
        name
        for name, method in inspect.getmembers(client, inspect.isfunction)
        if not name.startswith("_") and WORKFLOW_PATHS in inspect.getsource(method)
    }


def public_coroutines(adapter: type[Any]) -> set[str]:
    """The public methods of an adapter that talk to the engine."""
    return {name for name, _ in inspect.getmembers(adapter, inspect.iscoroutinefunction) if not name.startswith("_")}


class Noted:
    """A client or adapter whose calls are noted by name. A blocking method is called in a thread."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped
        self.called: set[str] = set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.wrapped, name)
        if not callable(method):
            raise AttributeError(name)

        async def call(*arguments: Any, **options: Any) -> Any:
            self.called.add(name)
            if inspect.iscoroutinefunction(method):
                return await method(*arguments, **options)
            return await asyncio.to_thread(method, *arguments, **options)

        return call
