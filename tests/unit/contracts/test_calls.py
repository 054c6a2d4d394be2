"""Calls that are refused before anything is executed, and where a key comes from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from counterfoil.client import Receipt
from counterfoil.contracts import (
    ContractViolation,
    InvalidArguments,
    KeyInArguments,
    KeyRequired,
    ScopeMismatch,
    ToolCall,
    ToolError,
    VersionMismatch,
    tool_contract,
)
from tests.contracts.refunds import ARGUMENTS, Provider, Refund, asked, refunding

DISPATCH = {
    "arguments": ARGUMENTS,
    "metadata": {"flow_id": "f", "step_id": "s", "attempt": 2, "idempotency_key": "key-of-the-step"},
}


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.mark.parametrize("effect", ["write-idempotent", "write-non-idempotent", "irreversible"])
@pytest.mark.parametrize(
    "given", [{}, {"conversation_id": "c"}, {"step_id": "s"}, {"conversation_id": "", "step_id": "s"}]
)
async def test_a_write_without_a_key_or_what_makes_one_is_refused(
    provider: Provider, effect: Any, given: dict[str, str]
) -> None:
    with pytest.raises(KeyRequired) as refused:
        await refunding(provider, effect=effect)(asked(None, **given))
    assert (refused.value.code, refused.value.retriable) == ("KEY_REQUIRED", False)
    assert provider.executions == 0


@pytest.mark.parametrize("key", ["", "x" * 256, "a\0b", "\ud800", 7])
async def test_a_key_that_cannot_be_used_is_refused(provider: Provider, key: Any) -> None:
    with pytest.raises(KeyRequired, match="the idempotency key"):
        await refunding(provider)(asked(key))
    assert provider.executions == 0


async def test_a_read_needs_no_key_and_no_store(provider: Provider) -> None:
    assert (await refunding(provider, effect="read")(asked(None))).refund_id == "r-1"


async def test_an_idempotent_write_by_resource_id_needs_no_key(provider: Provider) -> None:
    upsert = refunding(provider, effect="write-idempotent", resource="payment_id")
    await upsert(asked(None))
    await upsert(asked(None))
    assert [call.idempotency_key for call in provider.effects] == [None, None]
    assert provider.effects[0].headers() == {}


async def test_a_write_without_a_store_is_refused(provider: Provider) -> None:
    with pytest.raises(ContractViolation, match="not bound"):
        await refunding(provider)(asked())
    assert provider.executions == 0


@pytest.mark.parametrize("name", ["idempotency_key", "Idempotency-Key"])
async def test_a_key_among_the_arguments_is_refused(provider: Provider, name: str) -> None:
    with pytest.raises(KeyInArguments):
        await refunding(provider, effect="read")(asked(arguments={name: "stale"}))


async def test_a_key_in_a_validated_model_is_refused_too() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")

        values: dict[str, Any] = {}

    @tool_contract(name="open", version="1.0.0", effect="read")
    async def read(call: ToolCall[Open]) -> None: ...

    for arguments in (Open.model_validate({"idempotencyKey": "stale"}), Open(values={"idempotency_key": "stale"})):
        with pytest.raises(KeyInArguments):
            await read(ToolCall(arguments))


async def test_wrong_arguments_are_named(provider: Provider) -> None:
    call = ToolCall({"payment_id": "p", "amount_minor": "many"})
    with pytest.raises(InvalidArguments) as refused:
        await refunding(provider, effect="read")(call)
    assert [problem["at"] for problem in refused.value.details["problems"]] == ["amount_minor"]
    wrong: Any = ToolCall(["p", 3])
    with pytest.raises(InvalidArguments, match="mapping or Refund"):
        await refunding(provider, effect="read")(wrong)


async def test_arguments_without_a_canonical_form_are_refused(provider: Provider) -> None:
    call = ToolCall(Refund.model_construct(payment_id="\ud800", amount_minor=1), idempotency_key="k")
    with pytest.raises(InvalidArguments, match="canonical"):
        await refunding(provider)(call)


@pytest.mark.parametrize("version", ["3", "2.2.0", "latest"])
async def test_another_version_is_refused(provider: Provider, version: str) -> None:
    refund = refunding(provider, effect="read")
    await refund(asked(version="2.1"))
    with pytest.raises(VersionMismatch):
        await refund(asked(version=version))


async def test_scopes_that_the_caller_lacks_are_named(provider: Provider) -> None:
    refund = refunding(provider, effect="read", scopes=["payments:refund", "payments:read"])
    await refund(asked(scope="payments:read payments:refund other"))
    await refund(asked(scope=["payments:refund", "payments:read"]))
    for scope in (None, "", "payments:read"):
        with pytest.raises(ScopeMismatch) as refused:
            await refund(asked(scope=scope))
        assert "payments:refund" in refused.value.details["missing"]


@pytest.mark.parametrize("source", [DISPATCH["metadata"], Receipt.from_request(DISPATCH)], ids=["metadata", "receipt"])
def test_the_key_of_a_dispatch_goes_on(source: Any) -> None:
    call = ToolCall.from_dispatch(ARGUMENTS, source, version="2")
    assert (call.idempotency_key, call.conversation_id, call.step_id) == ("key-of-the-step", "f", "s")
    assert (call.headers(), call.version) == ({"Idempotency-Key": "key-of-the-step"}, "2")


@pytest.mark.parametrize(("given", "key"), [("gate-key", "gate-key"), ("", None)])
def test_the_key_of_a_gate_goes_on(given: str, key: str | None) -> None:
    step = SimpleNamespace(workflow_id="w", step_id="s", retry_context={"idempotency_key": given})
    call = ToolCall.from_step(ARGUMENTS, step)
    assert (call.idempotency_key, call.conversation_id, call.step_id) == (key, "w", "s")


def test_a_key_that_is_no_header_is_not_sent() -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        ToolCall(ARGUMENTS, idempotency_key="é").headers()


def test_every_error_has_the_four_fields_and_no_trace() -> None:
    def classes(root: type[ToolError]) -> list[type[ToolError]]:
        return [root, *(each for child in root.__subclasses__() for each in classes(child))]

    codes = [each.code for each in classes(ToolError) if each.code]
    assert len(codes) == len(set(codes)) > 12
    for each in classes(ToolError):
        if each.code and each.__init__ is ToolError.__init__:
            shown = each("what happened").to_dict()
            assert set(shown) == {"code", "retriable", "hint", "corrective_action"}
