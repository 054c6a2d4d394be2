"""A call that a model asked for, and its answer as JSON: a result, or an error that the model can act on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from counterfoil.contracts.calls import ToolCall
from counterfoil.contracts.decorator import AsyncToolContract, ToolContract
from counterfoil.contracts.errors import InvalidArguments, ToolError
from counterfoil.domain.jsontext import JsonError, dump_json, parse_json

AnyContract = AsyncToolContract[Any, Any] | ToolContract[Any, Any]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class AgentStep:
    """Where in a run of an agent a call belongs: the same at every retry, and never from the model.

    Either an idempotency key, or a conversation and a step to make one of. Two equal calls of one tool in one step
    are one action.
    """

    conversation_id: str | None = None
    step_id: str | None = None
    idempotency_key: str | None = None
    scope: str | Iterable[str] | None = None
    version: str | None = None

    def call(self, arguments: Mapping[str, Any]) -> ToolCall[Mapping[str, Any]]:
        return ToolCall(
            arguments,
            idempotency_key=self.idempotency_key,
            conversation_id=self.conversation_id,
            step_id=self.step_id,
            scope=self.scope,
            version=self.version,
        )


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """``document`` is the result as JSON, or of a failed call ``{"error": {"code", "retriable", ...}}``."""

    succeeded: bool
    document: Any

    @property
    def text(self) -> str:
        return dump_json(self.document).decode()

    @classmethod
    def of_error(cls, error: ToolError) -> ToolAnswer:
        return cls(succeeded=False, document={"error": error.to_dict()})


async def answer_of(contract: AnyContract, arguments: str | Mapping[str, Any] | None, step: AgentStep) -> ToolAnswer:
    """Make the call; ``arguments`` are those of the model, as a mapping or as JSON text.

    A failure of the call is an answer: the model is told its code, whether a repeat can help, and what to do. Anything
    else that is raised is a defect, and propagates.
    """
    try:
        result = await contract.run(step.call(parsed_arguments(arguments)))
    except ToolError as error:
        return ToolAnswer.of_error(error)
    return ToolAnswer(succeeded=True, document=contract.result_document(result))


def parsed_arguments(arguments: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Raises InvalidArguments for a text that is not a JSON object; no arguments at all are an empty object."""
    if arguments is None or arguments == "":
        return {}
    try:
        found = parse_json(arguments) if isinstance(arguments, str) else arguments
    except JsonError:
        raise InvalidArguments("the arguments are not JSON") from None
    if not isinstance(found, Mapping):
        raise InvalidArguments("the arguments are not a JSON object")
    return found


def definition_of(contract: AnyContract) -> tuple[str, str, dict[str, Any]]:
    """Name, description and JSON Schema of the arguments, as a model sees them."""
    schema = contract.model_schema()
    if not _NAME.fullmatch(schema["name"]):
        raise ValueError(
            f"model providers take names of letters, digits, _ and - only, at most 64 of them: not {schema['name']!r}"
        )
    return schema["name"], schema["purpose"], schema["arguments"]


def named(contracts: Iterable[AnyContract], name: str) -> AnyContract | None:
    """The contract that a model named; None: the model made the name up."""
    return next((contract for contract in contracts if contract.name == name), None)


def unknown_tool(name: str) -> ToolAnswer:
    error = {
        "code": "UNKNOWN_TOOL",
        "retriable": False,
        "hint": f"there is no tool {name[:64]!r}",
        "corrective_action": "Call one of the tools that are offered.",
    }
    return ToolAnswer(succeeded=False, document={"error": error})


def part(item: Any, name: str) -> Any:
    """A field of what a provider's package returned: of its objects, or of the same as plain JSON."""
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)
