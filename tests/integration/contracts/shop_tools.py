"""Tools as users write them, good and bad, for processes that find them by name."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from uuid import uuid4

import aiohttp
from pydantic import BaseModel, Field

from counterfoil.contracts import ErrorSpec, ToolCall, ToolContract, ToolFailure, Transient, tool_contract


class Refund(BaseModel):
    payment_id: str
    amount_minor: int = Field(gt=0)
    reason: str = ""


class Refunded(BaseModel):
    refund_id: str
    amount_minor: int


ERRORS: dict[str, str | ErrorSpec] = {
    "CARD_EXPIRED": "Ask the user for another card.",
    "RATE_LIMITED": ErrorSpec("Try again later.", retriable=True),
}


def pay(url: str, arguments: Refund, headers: dict[str, str]) -> Refunded:
    """POST a refund with the key in ``headers``; what goes wrong becomes an error of the contract."""
    body = json.dumps({"payment_id": arguments.payment_id, "amount_minor": arguments.amount_minor}).encode()
    request = urllib.request.Request(
        f"{url}/refunds", body, {"Content-Type": "application/json", "Connection": "close", **headers}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return Refunded.model_validate_json(response.read())
    except urllib.error.HTTPError as error:
        with error:
            raise failure_of(error.code) from error
    except (OSError, ConnectionError) as error:
        raise Transient("UPSTREAM_TIMEOUT", "the payment system did not answer") from error


def failure_of(status: int) -> Exception:
    if status == 402:
        return ToolFailure("CARD_EXPIRED", "the card of this payment has expired")
    if status == 429:
        return Transient("RATE_LIMITED", not_applied=True)
    if status == 409:
        return ToolFailure("DISPUTED")  # which no contract here declares
    if status >= 500:
        return Transient("UPSTREAM_TIMEOUT", f"the payment system answered {status}")
    return RuntimeError(f"unexpected status {status}")


def good_refund(url: str, window: str = "7d", downstream: str | None = "30d", **more: Any) -> ToolContract[Any, Any]:
    """A refund tool that passes the key of its caller on."""

    @tool_contract(
        name="issue_refund",
        version="2.1.0",
        effect=more.pop("effect", "write-non-idempotent"),
        window=window,
        downstream_window=downstream,
        keep=["payment_id", "amount_minor"],
        errors=ERRORS,
        **more,
    )
    def issue_refund(call: ToolCall[Refund]) -> Refunded:
        """Refund a payment, in whole or in part."""
        return pay(url, call.arguments, call.headers())

    return issue_refund


def keyless_refund(url: str) -> ToolContract[Any, Any]:
    """The tool makes a key of its own for the payment system: another one at each execution."""

    @tool_contract(
        name="issue_refund", version="2.0.0", effect="write-non-idempotent", window="7d", downstream_window="30d"
    )
    def issue_refund(call: ToolCall[Refund]) -> Refunded:
        return pay(url, call.arguments, {"Idempotency-Key": str(uuid4())})

    return issue_refund


def sunday_wrapper(url: str) -> Any:
    """The Sunday incident: a wrapper around a good contract that makes the key itself, anew at each call."""
    contract = good_refund(url)

    async def refund(call: ToolCall[Any]) -> Any:
        return await contract.run(ToolCall(call.arguments, idempotency_key=str(uuid4())))

    return refund


def honest_wrapper(url: str) -> Any:
    """A wrapper that passes its caller's key on."""
    contract = good_refund(url)

    async def refund(call: ToolCall[Any]) -> Any:
        return await contract.run(ToolCall(call.arguments, idempotency_key=call.idempotency_key))

    return refund


def blind_refund(url: str) -> Any:
    """No contract at all: whatever is called, is paid."""

    async def refund(call: ToolCall[Any]) -> Any:
        async with aiohttp.ClientSession() as session, session.post(f"{url}/refunds", json=call.arguments) as response:
            return await response.json()

    return refund


@tool_contract(name="at_the_top", version="1.0.0", effect="write-non-idempotent", errors=ERRORS)
async def at_the_top(call: ToolCall[Refund]) -> Refunded:
    return Refunded(refund_id=call.idempotency_key or "", amount_minor=call.arguments.amount_minor)
