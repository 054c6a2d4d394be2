"""A contract that promises what it cannot keep is refused when it is made."""

from __future__ import annotations

import threading
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from counterfoil.contracts import ErrorSpec, InvalidContract, NotInKey, ToolCall, tool_contract


class Refund(BaseModel):
    payment_id: str
    amount_minor: int
    reason: Annotated[str, NotInKey()] = ""


class WithKey(BaseModel):
    payment_id: str
    token: str = Field(alias="Idempotency-Key")


def declared(model: Any = Refund, returned: Any = dict[str, Any], **options: Any) -> Any:
    def tool(call: Any) -> Any:
        """What the tool is for."""

    tool.__annotations__ = {"call": ToolCall[model], "return": returned}
    terms = {"name": "issue_refund", "version": "1.0.0", "effect": "write-non-idempotent", **options}
    return tool_contract(**terms)(tool)


@pytest.mark.parametrize(
    ("options", "window"),
    [
        ({"effect": "write-idempotent"}, "forever"),
        ({"effect": "write-non-idempotent"}, "24h"),
        ({"effect": "write-non-idempotent", "value": "high"}, "7d"),
        ({"effect": "irreversible"}, "30d"),
        ({"effect": "irreversible", "value": "high"}, "30d"),
        ({"effect": "write-non-idempotent", "window": "90s"}, "90s"),
        ({"effect": "write-non-idempotent", "window": "7d", "downstream_window": "7d"}, "7d"),
        ({"effect": "write-non-idempotent", "downstream_window": "forever"}, "24h"),
    ],
)
def test_windows_by_class(options: dict[str, Any], window: str) -> None:
    assert declared(**options).terms.window == window


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ({"downstream_window": "1h"}, "longer than the downstream_window 1h"),
        ({"window": "8d", "downstream_window": "7d"}, "longer than the downstream_window 7d"),
        ({"effect": "write-idempotent", "downstream_window": "30d"}, "longer than the downstream_window"),
        ({"window": "soon"}, "window must be"),
        ({"downstream_window": "soon"}, "downstream_window must be"),
        ({"effect": "harmless"}, "effect must be one of"),
        ({"version": "1"}, "three numbers"),
        ({"version": "one"}, "numbers with points"),
        ({"name": ""}, "name must be"),
        ({"name": "x" * 256}, "name must be"),
        ({"value": "low"}, 'value must be "high"'),
        ({"pending_ttl": 0.5}, "pending_ttl"),
        ({"pending_ttl": float("nan")}, "pending_ttl"),
        ({"keep": ["payment_id"], "strip": ["reason"]}, "exclude each other"),
        ({"keep": ["payment"]}, "keep names what Refund does not have: payment"),
        ({"strip": ["payment"]}, "strip names what Refund does not have"),
        ({"keep": ["reason"]}, "NotInKey"),
        ({"keep": []}, "keep names no field"),
        ({"model": WithKey}, "a model must never fill one in"),
        ({"errors": {"lower": "x"}}, "capital letters"),
        ({"errors": {"FENCED": "x"}}, "code of the library itself"),
        ({"errors": {"CARD_EXPIRED": ""}}, "needs a corrective action"),
        ({"retries": -1}, "negative"),
        ({"resource": "payment_id"}, "write-idempotent"),
        ({"effect": "write-idempotent", "resource": "customer"}, "resource names what Refund does not have"),
        ({"returned": threading.Lock}, "return type"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_be_kept_is_refused(options: dict[str, Any], about: str) -> None:
    with pytest.raises((InvalidContract, TypeError), match=about) as refused:
        declared(**options)
    assert isinstance(refused.value, InvalidContract)


def test_a_tool_takes_one_call_with_a_model() -> None:
    decorate: Any = tool_contract(name="t", version="1.0.0", effect="read")

    def without(call): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    def plain(call: ToolCall[int]) -> None: ...
    def two(call: ToolCall[Refund], more: int) -> None: ...
    def none() -> None: ...

    for function in (without, plain, two, none):
        with pytest.raises(InvalidContract, match=r"ToolCall\[Model\]"):
            decorate(function)


def test_what_a_model_sees_has_no_key() -> None:
    schema = declared(purpose="Give money back.").model_schema()
    assert (schema["name"], schema["purpose"]) == ("issue_refund", "Give money back.")
    assert set(schema["arguments"]["properties"]) == {"payment_id", "amount_minor", "reason"}
    assert "idempotency" not in str(schema).lower()
    assert declared().model_schema()["purpose"] == "What the tool is for."


def test_errors_are_closed() -> None:
    terms = declared(errors={"CARD_EXPIRED": "Ask.", "RATE_LIMITED": ErrorSpec("Wait.", retriable=True)}).terms
    assert set(terms.errors) == {"CARD_EXPIRED", "RATE_LIMITED", "UPSTREAM_TIMEOUT", "PARTIAL_SUCCESS"}


@pytest.mark.parametrize(
    ("present", "expected", "served"),
    [
        ("2.1.0", "2", True),
        ("2.1.0", "2.1", True),
        ("2.1.0", "2.0.5", True),
        ("2.1.0", "2.1.1", False),
        ("2.1.0", "2.2", False),
        ("2.1.0", "1.9.9", False),
        ("2.1.0", "3", False),
        ("0.3.1", "0", True),
        ("0.3.1", "0.3", True),
        ("0.3.1", "0.2", False),
    ],
)
def test_versions_of_one_major_serve_older_callers(present: str, expected: str, served: bool) -> None:
    assert declared(version=present).terms.serves(expected) is served
