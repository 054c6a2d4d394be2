"""The second phase of a call, as a pure function: version, scope, arguments, key, and what the store is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar, cast

from pydantic import BaseModel, ValidationError

from counterfoil.contracts.calls import ToolCall, key_problem
from counterfoil.contracts.declaration import ContractTerms
from counterfoil.contracts.errors import InvalidArguments, KeyInArguments, KeyRequired, ScopeMismatch, VersionMismatch
from counterfoil.contracts.keys import arguments_digest, counted_arguments, derived_key, holds_a_key
from counterfoil.domain.effects.reservations import EffectClass, ReserveRequest

M = TypeVar("M", bound=BaseModel)


class CheckedCall(NamedTuple, Generic[M]):
    """The call as the tool receives it. ``request`` None: a read, or an idempotent write by resource id."""

    call: ToolCall[M]
    request: ReserveRequest | None


def check_call(terms: ContractTerms, model: type[M], call: ToolCall[Any], holder: str) -> CheckedCall[M]:
    """Raises a CallRefused that names what is wrong."""
    _check_version(terms, call)
    missing = sorted(terms.scopes - call.scopes())
    if missing:
        raise ScopeMismatch(f"{terms.name} needs scopes that the call does not have", details={"missing": missing})
    arguments = _arguments(model, call.arguments)
    if not terms.is_write:
        return CheckedCall(call.with_arguments(arguments), None)
    try:
        counted = counted_arguments(arguments, terms.keep, terms.strip)
        key, digest = _key(terms, call, counted), arguments_digest(counted)
    except ValueError as error:
        raise InvalidArguments(f"the arguments have no canonical form: {error}") from None
    checked = replace(call.with_arguments(arguments), idempotency_key=key)
    return CheckedCall(checked, None if key is None else _request(terms, key, digest, holder))


def _check_version(terms: ContractTerms, call: ToolCall[Any]) -> None:
    if call.version is None:
        return
    try:
        served = terms.serves(call.version)
    except ValueError as error:
        raise VersionMismatch(str(error)) from None
    if not served:
        raise VersionMismatch(
            f"the caller expects version {call.version} of {terms.name}, which is {terms.version}",
            details={"expected": call.version, "version": terms.version},
        )


def _arguments(model: type[M], given: Any) -> M:
    if not isinstance(given, Mapping | model):
        raise InvalidArguments(f"arguments must be a mapping or {model.__name__}, not {type(given).__name__}")
    if holds_a_key(given if isinstance(given, Mapping) else given.model_dump(warnings=False)):
        raise KeyInArguments
    try:
        return model.model_validate(given)
    except ValidationError as error:
        problems = [{"at": ".".join(map(str, each["loc"])), "problem": each["msg"]} for each in error.errors()]
        raise InvalidArguments(details={"problems": problems}) from None


def _key(terms: ContractTerms, call: ToolCall[Any], counted: dict[str, Any]) -> str | None:
    """The caller's key, or one made of conversation, step and arguments. It is never invented."""
    if call.idempotency_key is not None:
        if problem := key_problem(call.idempotency_key):
            raise KeyRequired(problem)
        return call.idempotency_key
    if call.conversation_id and call.step_id:
        return derived_key(call.conversation_id, call.step_id, terms.name, counted)
    if terms.resource:
        return None
    raise KeyRequired


def _request(terms: ContractTerms, key: str, digest: str, holder: str) -> ReserveRequest:
    return ReserveRequest(
        tool=terms.name,
        key=key,
        effect_class=cast("EffectClass", terms.effect),
        holder=holder,
        ttl_ms=terms.pending_ttl_ms,
        window_ms=terms.window_ms,
        arguments_digest=digest,
    )
