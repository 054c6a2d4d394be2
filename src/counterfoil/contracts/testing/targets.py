"""What a check is about, so that other processes can find it: a contract, or a function around one, by its name.

``"shop.tools:issue_refund"`` or ``"tests/shop_tools.py:issue_refund"``; a contract or function at the top of a module
may be given itself. With ``given``, the name is that of a function that makes it: it is called with these JSON values
in each process, for tools that need a URL, or a store of their own.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from counterfoil.contracts.calls import ToolCall
from counterfoil.contracts.decorator import AsyncToolContract, ToolContract
from counterfoil.contracts.runtime import using
from counterfoil.contracts.stores.protocol import DedupStore
from counterfoil.contracts.stores.sqlite import SqliteDedupStore
from counterfoil.contracts.threads import run_in_thread

Contract = AsyncToolContract[Any, Any] | ToolContract[Any, Any]
Tool = Contract | Callable[[ToolCall[Any]], Any]
"""What is checked: a contract, or any function that takes a ToolCall, such as a wrapper around a contract."""
WrapStore = Callable[[DedupStore], DedupStore]


@dataclass(frozen=True, slots=True)
class CheckTarget:
    """A tool by its name. ``store``: the file of the dedup store for contracts that are not bound to one."""

    name: str
    given: Mapping[str, Any] | None = None
    store: str | None = None

    @classmethod
    def of(cls, tool: str | Tool, given: Mapping[str, Any] | None, store: str | Path | None) -> Self:
        name = tool if isinstance(tool, str) else _name_of(tool)
        if ":" not in name:
            raise ValueError(f"a tool is named as module:attribute or path.py:attribute, not {name!r}")
        return cls(name, given, None if store is None else str(store))

    def load(self) -> Tool:
        place, _, attributes = self.name.rpartition(":")
        found: Any = _module(place)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
        if self.given is not None:
            found = found(**self.given)
        if not callable(found):
            raise TypeError(f"{self.name} is no contract and no function that takes a ToolCall")
        return cast("Tool", found)

    def prepare(self, wrap: WrapStore = lambda store: store, **options: Any) -> PreparedTool:
        """The tool on its store, with other collaborators: ``options`` are the fields of ContractRuntime."""
        return PreparedTool(self.load(), self.store, wrap, options)


class PreparedTool:
    """A loaded tool whose contracts run on a store, and with the collaborators that a check needs.

    A contract is bound; contracts inside of a function are reached by ``using``, unless they are bound themselves.
    """

    def __init__(self, tool: Tool, store: str | None, wrap: WrapStore, options: Mapping[str, Any]) -> None:
        self._opened = None if store is None else SqliteDedupStore(store)
        self._stack = ExitStack()
        if isinstance(tool, AsyncToolContract | ToolContract):
            own = tool.runtime.store
            chosen = own if own is not None else self._opened
            self._tool: Tool = tool.bind(None if chosen is None else wrap(chosen), **options)
        else:
            self._tool = tool
            self._stack.enter_context(using(None if self._opened is None else wrap(self._opened), **options))

    async def __call__(self, call: ToolCall[Any]) -> Any:
        if isinstance(self._tool, AsyncToolContract | ToolContract):
            return await self._tool.run(call)
        if inspect.iscoroutinefunction(self._tool):
            return await self._tool(call)
        made = await run_in_thread(lambda: cast("Callable[..., Any]", self._tool)(call))
        return await made if inspect.isawaitable(made) else made

    def close(self) -> None:
        self._stack.close()
        if self._opened is not None:
            self._opened.close()


def contract_of(tool: str | Tool, given: Mapping[str, Any] | None = None) -> Contract:
    """The contract itself, for checks that run in this process."""
    found = tool if not isinstance(tool, str) else CheckTarget.of(tool, given, None).load()
    if not isinstance(found, AsyncToolContract | ToolContract):
        raise TypeError("this check needs a contract, made by tool_contract")
    return found


def _name_of(tool: Tool) -> str:
    module, name = getattr(tool, "__module__", ""), getattr(tool, "__qualname__", "")
    if not name or "<" in name or module in ("", "__main__"):
        raise ValueError(
            "other processes cannot find this tool: give the name of one at the top of a module, as module:attribute"
        )
    source = sys.modules.get(module)
    found: Any = source
    for attribute in name.split("."):
        found = getattr(found, attribute, None)
    if found is not tool:
        raise ValueError(
            f"{module}:{name} is another tool than the one given (bind makes a new contract): give the name of one "
            "that processes can load, or of a function that makes it"
        )
    if importlib.util.find_spec(module.partition(".")[0]) is None and source is not None and source.__file__:
        return f"{source.__file__}:{name}"
    return f"{module}:{name}"


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    name = "checked_" + "".join(letter if letter.isalnum() else "_" for letter in place)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, Path(place).resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
