"""A contract as a tool of LangChain, for agents of LangGraph. ``langchain_core`` is imported when a tool is made.

Conversation and step come from the run's config, never from the model. ``thread_id`` is the conversation. The step is
``step_id``, if the config has one; else, in a LangGraph with a checkpointer, node and number of the graph's step, which
are the same when a crashed run is resumed. The ids of tool calls and of LangGraph's tasks are not used: a model that is
prompted again makes new ones, and so does a checkpoint that a crash prevented from being saved. Where no stable step is
known (no checkpointer, or a sub-graph, whose steps are counted anew at each of its runs), writes are refused with
KEY_REQUIRED until ``step_id`` or ``step_of`` gives one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from counterfoil.contracts.adapters.answers import AgentStep, AnyContract, ToolAnswer, answer_of, definition_of
from counterfoil.contracts.decorator import ToolContract
from counterfoil.contracts.errors import ToolError

if TYPE_CHECKING:
    from langchain_core.tools import StructuredTool

StepOfConfig = Callable[[Mapping[str, Any]], AgentStep]

_CHECKPOINTER = "__pregel_checkpointer"
"""Where LangGraph keeps its checkpointer; without the name no step is derived, which refuses writes."""


def structured_tool(contract: AnyContract, step_of: StepOfConfig | None = None) -> StructuredTool:
    """A LangChain tool. Failures become tool messages with the status ``error`` that hold the error as JSON."""
    from langchain_core.runnables.config import ensure_config  # noqa: PLC0415 (needed only here)
    from langchain_core.tools import StructuredTool, ToolException  # noqa: PLC0415

    name, description, schema = definition_of(contract)

    def step() -> AgentStep:
        return (step_of or step_of_config)(ensure_config())

    def shown(answer: ToolAnswer) -> str:
        if not answer.succeeded:
            raise ToolException(answer.text)
        return answer.text

    async def call_async(**arguments: Any) -> str:
        return shown(await answer_of(contract, arguments, step()))

    def call(**arguments: Any) -> str:
        assert isinstance(contract, ToolContract), "only given for contracts of functions that are not async"
        try:
            answer = ToolAnswer(succeeded=True, document=contract.result_document(contract(step().call(arguments))))
        except ToolError as error:
            answer = ToolAnswer.of_error(error)
        return shown(answer)

    return StructuredTool.from_function(
        func=call if isinstance(contract, ToolContract) else None,
        coroutine=call_async,
        name=name,
        description=description,
        args_schema=schema,  # not the model: LangChain would drop unknown arguments, and a key among them unseen
        infer_schema=False,
        handle_tool_error=True,
    )


def step_of_config(config: Mapping[str, Any]) -> AgentStep:
    """Conversation and step of a run's config."""
    given, told = config.get("configurable") or {}, config.get("metadata") or {}
    thread = given.get("thread_id")
    return AgentStep(
        None if thread is None else str(thread),
        given.get("step_id") or _graph_step(given, told),
        scope=given.get("scope"),
    )


def _graph_step(given: Mapping[str, Any], told: Mapping[str, Any]) -> str | None:
    node, number = told.get("langgraph_node"), told.get("langgraph_step")
    is_nested = "|" in str(told.get("langgraph_checkpoint_ns", ""))
    if node is None or number is None or is_nested or not given.get(_CHECKPOINTER):
        return None
    return f"{node}:{number}"
