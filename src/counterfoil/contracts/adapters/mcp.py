"""Tools of a Model Context Protocol server: definitions for ``tools/list``, and results of ``tools/call``.

The runtime on the client's side sends conversation and step, or a key, in ``_meta`` of the request, which no model
fills in: ``step_meta`` makes it there, ``step_of_meta`` reads it here. A write without either is answered with
KEY_REQUIRED.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from counterfoil.contracts.adapters.answers import (
    AgentStep,
    AnyContract,
    ToolAnswer,
    answer_of,
    definition_of,
    named,
    unknown_tool,
)

CONVERSATION, STEP, KEY = "counterfoil/conversation_id", "counterfoil/step_id", "counterfoil/idempotency_key"


def tool(contract: AnyContract) -> dict[str, Any]:
    """An entry of ``tools/list``. The hints follow from the class of the tool; a key makes every call repeatable."""
    name, description, schema = definition_of(contract)
    effect = contract.terms.effect
    return {
        "name": name,
        "description": description,
        "inputSchema": schema,
        "outputSchema": _wrapped_schema(contract),
        "annotations": {
            "readOnlyHint": effect == "read",
            "destructiveHint": effect == "irreversible",
            "idempotentHint": effect in ("read", "write-idempotent"),
        },
    }


async def call_result(
    contracts: Iterable[AnyContract], name: str, arguments: Mapping[str, Any] | None, step: AgentStep
) -> dict[str, Any]:
    """Make a call; returns the result of ``tools/call``. A failure is a result with ``isError``, with its parts."""
    contract = named(contracts, name)
    if contract is None:
        return _result(unknown_tool(name), None)
    return _result(await answer_of(contract, arguments, step), contract)


def step_meta(step: AgentStep) -> dict[str, str]:
    """What the runtime of the agent puts into ``_meta`` of its request."""
    given = {CONVERSATION: step.conversation_id, STEP: step.step_id, KEY: step.idempotency_key}
    return {name: value for name, value in given.items() if value is not None}


def step_of_meta(meta: Mapping[str, Any] | None, scope: str | Iterable[str] | None = None) -> AgentStep:
    """The step that the runtime named; ``scope`` is what the server itself grants to this client."""
    found = {name: value for name, value in (meta or {}).items() if isinstance(value, str)}
    return AgentStep(found.get(CONVERSATION), found.get(STEP), found.get(KEY), scope)


def _result(answer: ToolAnswer, contract: AnyContract | None) -> dict[str, Any]:
    structured = answer.document
    if answer.succeeded and contract is not None and not _is_object(contract.result_schema()):
        structured = {"result": structured}
    return {
        "content": [{"type": "text", "text": answer.text}],
        "structuredContent": structured,
        "isError": not answer.succeeded,
    }


def _wrapped_schema(contract: AnyContract) -> dict[str, Any]:
    """Structured content is an object: any other result is the field ``result`` of one."""
    schema = contract.result_schema()
    if _is_object(schema):
        return schema
    defs = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
    return {"type": "object", "properties": {"result": schema}, "required": ["result"], **defs}


def _is_object(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object"
