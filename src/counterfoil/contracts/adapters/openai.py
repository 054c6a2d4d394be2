"""Tools in the shapes of OpenAI: chat completions and responses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from counterfoil.contracts.adapters.answers import (
    AgentStep,
    AnyContract,
    ToolAnswer,
    answer_of,
    definition_of,
    named,
    part,
    unknown_tool,
)


def chat_tool(contract: AnyContract) -> dict[str, Any]:
    """An entry of ``tools`` of ``chat.completions.create``."""
    name, description, schema = definition_of(contract)
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def responses_tool(contract: AnyContract) -> dict[str, Any]:
    """An entry of ``tools`` of ``responses.create``. Not strict: strict mode takes a part of JSON Schema only."""
    name, description, schema = definition_of(contract)
    return {"type": "function", "name": name, "description": description, "parameters": schema, "strict": False}


async def chat_result(contracts: Iterable[AnyContract], tool_call: Any, step: AgentStep) -> dict[str, Any]:
    """Make a call of ``message.tool_calls``; returns the message that answers it."""
    function = part(tool_call, "function")
    answer = await _answer(contracts, part(function, "name"), part(function, "arguments"), step)
    return {"role": "tool", "tool_call_id": part(tool_call, "id"), "content": answer.text}


async def responses_result(contracts: Iterable[AnyContract], function_call: Any, step: AgentStep) -> dict[str, Any]:
    """Make a call of ``response.output`` of type ``function_call``; returns the input item that answers it."""
    answer = await _answer(contracts, part(function_call, "name"), part(function_call, "arguments"), step)
    return {"type": "function_call_output", "call_id": part(function_call, "call_id"), "output": answer.text}


async def _answer(contracts: Iterable[AnyContract], name: Any, arguments: Any, step: AgentStep) -> ToolAnswer:
    contract = named(contracts, name)
    return unknown_tool(str(name)) if contract is None else await answer_of(contract, arguments, step)
