"""Tools in the shapes of Anthropic's messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from counterfoil.contracts.adapters.answers import (
    AgentStep,
    AnyContract,
    answer_of,
    definition_of,
    named,
    part,
    unknown_tool,
)


def tool(contract: AnyContract) -> dict[str, Any]:
    """An entry of ``tools`` of ``messages.create``."""
    name, description, schema = definition_of(contract)
    return {"name": name, "description": description, "input_schema": schema}


async def tool_result(contracts: Iterable[AnyContract], tool_use: Any, step: AgentStep) -> dict[str, Any]:
    """Make the call of a ``tool_use`` block; returns the block that answers it."""
    name = part(tool_use, "name")
    contract = named(contracts, name)
    answer = unknown_tool(str(name)) if contract is None else await answer_of(contract, part(tool_use, "input"), step)
    return {
        "type": "tool_result",
        "tool_use_id": part(tool_use, "id"),
        "content": answer.text,
        "is_error": not answer.succeeded,
    }
