"""``tool_contract``: makes a contract of a function that takes one ``ToolCall[Model]``."""

from __future__ import annotations

import asyncio
import functools
import inspect
import typing
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Generic, Literal, Protocol, Self, TypeVar, cast, overload

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticUserError

from counterfoil.contracts.calls import ToolCall
from counterfoil.contracts.declaration import (
    DEFAULT_PENDING_TTL,
    ContractTerms,
    InvalidContract,
    ToolClass,
    TransientRetries,
    declare,
)
from counterfoil.contracts.errors import ErrorSpec
from counterfoil.contracts.phases import AuditHook, PhaseHook
from counterfoil.contracts.runtime import ContractRuntime, current_runtime
from counterfoil.contracts.sequence import CallParts, CallSequence, Execute
from counterfoil.contracts.stores.protocol import DedupStore
from counterfoil.contracts.threads import CallersThread, run_in_thread

M = TypeVar("M", bound=BaseModel)
R = TypeVar("R")


class _BaseContract(Generic[M, R]):
    """What contracts of sync and async functions have in common."""

    def __init__(
        self,
        function: Callable[[ToolCall[M]], Any],
        terms: ContractTerms,
        model: type[M],
        result: TypeAdapter[R],
        runtime: ContractRuntime | None = None,
    ) -> None:
        functools.update_wrapper(cast("Any", self), function)
        self.function = function
        """The tool itself, without its contract."""
        self.terms = terms
        self.arguments_model = model
        self._result = result
        self._runtime = runtime

    def __repr__(self) -> str:
        return f"<contract {self.terms.name} {self.terms.version} ({self.terms.effect})>"

    @property
    def name(self) -> str:
        return self.terms.name

    @property
    def version(self) -> str:
        return self.terms.version

    @property
    def runtime(self) -> ContractRuntime:
        """What a call would run on now."""
        return self._runtime or current_runtime() or ContractRuntime()

    def bind(self, store: DedupStore | ContractRuntime | None = None, **options: Any) -> Self:
        """Another contract of the same tool, on this store; ``options`` are the fields of ``ContractRuntime``.

        What is not named stays as it is in the runtime that this contract has.
        """
        runtime = store if isinstance(store, ContractRuntime) else self.runtime
        changes = {"store": store, **options} if store is not None and store is not runtime else options
        return type(self)(self.function, self.terms, self.arguments_model, self._result, runtime.changed(**changes))

    async def run(self, call: ToolCall[M] | ToolCall[Mapping[str, Any]]) -> R:
        """Make a call from code on an event loop, whichever kind of function the tool is."""
        return await self._sequence(call, self._execute()).run()

    def model_schema(self) -> dict[str, Any]:
        """What a model may see: name, purpose and arguments. There is no idempotency key in it."""
        return {
            "name": self.terms.name,
            "purpose": self.terms.purpose,
            "arguments": self.arguments_model.model_json_schema(),
        }

    def result_schema(self) -> dict[str, Any]:
        """JSON Schema of the results."""
        return self._result.json_schema(mode="serialization")

    def result_document(self, result: R) -> Any:
        """A result as JSON, as it is recorded."""
        return self._result.dump_python(result, mode="json")

    def _execute(self) -> Execute:
        raise NotImplementedError

    def _sequence(self, call: ToolCall[Any], execute: Execute) -> CallSequence[M, R]:
        if not isinstance(call, ToolCall):
            raise TypeError(f"{self.terms.name} takes one ToolCall, not {type(call).__name__}")
        parts = CallParts(self.terms, self.arguments_model, self._result, execute)
        return CallSequence(parts, self.runtime, call)


class AsyncToolContract(_BaseContract[M, R]):
    """A contract of an async function: ``await contract(call)``."""

    def __call__(self, call: ToolCall[M] | ToolCall[Mapping[str, Any]]) -> Coroutine[Any, Any, R]:
        return self.run(call)

    def _execute(self) -> Execute:
        return cast("Execute", self.function)


class ToolContract(_BaseContract[M, R]):
    """A contract of a function that is not async: ``contract(call)`` waits for the result.

    On a running event loop that would block everything else: there, ``await contract.run(call)`` runs it in a thread.
    """

    def __call__(self, call: ToolCall[M] | ToolCall[Mapping[str, Any]]) -> R:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise RuntimeError(
                f"{self.terms.name} is called on a running event loop, which it would block: "
                f"use `await {self.__name__}.run(call)`"  # type: ignore[attr-defined]
            )
        thread = CallersThread()
        execute: Execute = lambda made: thread.run(lambda: self.function(made))  # noqa: E731
        return thread.wait(self._sequence(call, execute).run())

    def _execute(self) -> Execute:
        return lambda made: run_in_thread(lambda: self.function(made))


class _Decorator(Protocol):
    @overload  # a coroutine function is the more special case
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[[ToolCall[M]], Coroutine[Any, Any, R]], /
    ) -> AsyncToolContract[M, R]: ...
    @overload
    def __call__(self, function: Callable[[ToolCall[M]], R], /) -> ToolContract[M, R]: ...


def tool_contract(
    *,
    name: str,
    version: str,
    effect: ToolClass,
    purpose: str | None = None,
    window: str | None = None,
    value: Literal["high"] | None = None,
    downstream_window: str | None = None,
    pending_ttl: float = DEFAULT_PENDING_TTL,
    keep: Iterable[str] | None = None,
    strip: Iterable[str] | None = None,
    scopes: Iterable[str] = (),
    errors: Mapping[str, str | ErrorSpec] | None = None,
    retries: int | TransientRetries = 2,
    resource: str | Iterable[str] = (),
    store: DedupStore | None = None,
    on_audit: AuditHook | None = None,
    on_phase: PhaseHook | None = None,
) -> _Decorator:
    """Declare a tool. A declaration that cannot be kept raises InvalidContract here, not when the tool is called."""

    def decorate(function: Callable[[ToolCall[Any]], Any]) -> Any:
        frame = inspect.currentframe()
        here = frame.f_back.f_locals if frame is not None and frame.f_back is not None else {}
        model, returned = _annotations(function, here)
        terms = declare(
            model,
            name=name,
            version=version,
            effect=effect,
            purpose=purpose if purpose is not None else inspect.getdoc(function) or "",
            window=window,
            value=value,
            downstream_window=downstream_window,
            pending_ttl=pending_ttl,
            keep=keep,
            strip=strip,
            scopes=scopes,
            errors=errors,
            retries=retries,
            resource=resource,
        )
        bound = any(given is not None for given in (store, on_audit, on_phase))
        runtime = ContractRuntime(store=store, on_audit=on_audit, on_phase=on_phase) if bound else None
        kind = AsyncToolContract if inspect.iscoroutinefunction(function) else ToolContract
        return kind(function, terms, model, _adapter(returned), runtime)

    return cast("_Decorator", decorate)


def _annotations(function: Callable[..., Any], local_names: Mapping[str, Any]) -> tuple[type[BaseModel], Any]:
    """The argument model of ``ToolCall[Model]``, and the return type; both may be names of the function around it."""
    parameters = list(inspect.signature(function).parameters.values())
    try:
        hints = typing.get_type_hints(function, localns=dict(local_names), include_extras=True)
    except NameError as error:
        raise InvalidContract(f"an annotation of {function.__qualname__} cannot be read: {error}") from None
    wanted = "a tool takes one parameter, annotated as ToolCall[Model] with a pydantic model"
    if len(parameters) != 1 or typing.get_origin(hints.get(parameters[0].name)) is not ToolCall:
        raise InvalidContract(wanted)
    [model] = typing.get_args(hints[parameters[0].name])
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise InvalidContract(wanted)
    return model, hints.get("return", Any)


def _adapter(returned: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(returned)
    except PydanticUserError as error:
        raise InvalidContract(f"the return type cannot be recorded as JSON: {error.message}") from None
