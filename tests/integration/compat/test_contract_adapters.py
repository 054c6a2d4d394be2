"""Adapters of tool contracts against the packages whose shapes they have: definitions, calls, results, errors."""

from __future__ import annotations

import json
import operator
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from pydantic import BaseModel, TypeAdapter

from tests.clients import require_client

require_client("anthropic", "langchain_core", "langgraph", "mcp", "openai")

from anthropic.types import ToolParam, ToolResultBlockParam, ToolUseBlock
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from mcp import Client
from mcp.server.lowlevel import Server
from mcp_types import CallToolResult, Tool
from openai.types.chat import ChatCompletionMessageFunctionToolCall, ChatCompletionToolMessageParam
from openai.types.chat.chat_completion_function_tool_param import ChatCompletionFunctionToolParam
from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall
from openai.types.responses.response_input_item_param import FunctionCallOutput

from counterfoil.contracts import SqliteDedupStore, ToolCall, ToolFailure, tool_contract
from counterfoil.contracts.adapters import AgentStep, answer_of, anthropic, langchain, mcp, openai
from counterfoil.contracts.adapters.answers import AnyContract

with warnings.catch_warnings():  # importing it warns of what its own package has moved
    warnings.simplefilter("ignore")
    from langgraph.prebuilt import ToolNode

STEP = AgentStep("conversation-1", "step-1")
ARGUMENTS = {"payment_id": "p-1", "amount_minor": 1400}


class Refund(BaseModel):
    payment_id: str
    amount_minor: int


class Refunded(BaseModel):
    refund_id: str


class Desk:
    """Counts what it refunds, and keeps the keys that it was given."""

    def __init__(self, store: SqliteDedupStore) -> None:
        self.keys: list[str | None] = []

        @tool_contract(
            name="issue_refund",
            version="2.1.0",
            effect="write-non-idempotent",
            errors={"CARD_EXPIRED": "Ask for another card."},
        )
        async def issue_refund(call: ToolCall[Refund]) -> Refunded:
            """Refund a payment, in whole or in part."""
            self.keys.append(call.idempotency_key)
            if call.arguments.payment_id == "expired":
                raise ToolFailure("CARD_EXPIRED")
            return Refunded(refund_id=f"re_{len(self.keys)}")

        @tool_contract(name="count_refunds", version="1.0.0", effect="read")
        def count_refunds(call: ToolCall[Nothing]) -> int:
            """How many refunds were made."""
            return len(self.keys)

        self.refund = issue_refund.bind(store)
        self.count = count_refunds
        self.contracts: list[AnyContract] = [self.refund, self.count]


class Nothing(BaseModel):
    pass


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    store = SqliteDedupStore(tmp_path / "effects.db")
    yield Desk(store)
    store.close()


def refuses(text: str, code: str) -> bool:
    error = json.loads(text)["error"]
    return bool(error["code"] == code and error["corrective_action"] and "retriable" in error)


# ------------------------------------------------------------------------------------------------ what all have


def test_no_definition_has_a_key(desk: Desk) -> None:
    shown = [
        shape(contract)
        for contract in desk.contracts
        for shape in (openai.chat_tool, openai.responses_tool, anthropic.tool, mcp.tool)
    ]
    shown += [langchain.structured_tool(contract).args for contract in desk.contracts]
    text = json.dumps(shown).lower()
    assert "payment_id" in text
    assert "idempotency" not in text.replace("idempotenthint", "")


async def test_a_key_among_the_models_arguments_is_refused(desk: Desk) -> None:
    stale = {**ARGUMENTS, "idempotency_key": "of another action"}
    answer = await answer_of(desk.refund, stale, STEP)
    assert refuses(answer.text, "KEY_IN_ARGUMENTS")
    assert desk.keys == []


async def test_the_key_depends_on_the_step_and_not_on_the_id_of_the_models_call(desk: Desk) -> None:
    def use(number: int) -> ToolUseBlock:
        return ToolUseBlock(id=f"toolu_{number}", name="issue_refund", input=ARGUMENTS, type="tool_use")

    first = await anthropic.tool_result(desk.contracts, use(1), STEP)
    again = await anthropic.tool_result(desk.contracts, use(2), STEP)  # the model was prompted again
    other = await anthropic.tool_result(desk.contracts, use(3), AgentStep("conversation-1", "step-2"))
    assert [json.loads(each["content"]) for each in (first, again, other)] == [
        {"refund_id": "re_1"},
        {"refund_id": "re_1"},
        {"refund_id": "re_2"},
    ]
    assert len(set(desk.keys)) == 2


async def test_a_write_without_a_step_of_the_runtime_is_refused(desk: Desk) -> None:
    assert refuses((await answer_of(desk.refund, ARGUMENTS, AgentStep())).text, "KEY_REQUIRED")
    assert (await answer_of(desk.count, {}, AgentStep())).document == 0


@pytest.mark.parametrize("arguments", ["{", "[]", "7", '{"payment_id": 1}'])
async def test_arguments_that_are_not_what_was_asked_for_are_an_answer(desk: Desk, arguments: str) -> None:
    assert refuses((await answer_of(desk.refund, arguments, STEP)).text, "INVALID_ARGUMENTS")


def test_a_name_that_providers_do_not_take_is_found_before_it_is_sent() -> None:
    @tool_contract(name="issue refund!", version="1.0.0", effect="read")
    async def odd(call: ToolCall[Nothing]) -> None: ...

    with pytest.raises(ValueError, match="letters, digits"):
        openai.chat_tool(odd)


# ------------------------------------------------------------------------------------------------ OpenAI


async def test_openai(desk: Desk) -> None:
    for contract in desk.contracts:
        TypeAdapter(ChatCompletionFunctionToolParam).validate_python(openai.chat_tool(contract), strict=True)
        TypeAdapter(FunctionToolParam).validate_python(openai.responses_tool(contract), strict=True)
    chat_call = ChatCompletionMessageFunctionToolCall.model_validate(
        {"id": "call_1", "type": "function", "function": {"name": "issue_refund", "arguments": json.dumps(ARGUMENTS)}}
    )
    message = await openai.chat_result(desk.contracts, chat_call, STEP)
    TypeAdapter(ChatCompletionToolMessageParam).validate_python(message, strict=True)
    assert message == {"role": "tool", "tool_call_id": "call_1", "content": '{"refund_id":"re_1"}'}
    function_call = ResponseFunctionToolCall(
        call_id="call_2", name="issue_refund", arguments=json.dumps(ARGUMENTS), type="function_call"
    )
    item = await openai.responses_result(desk.contracts, function_call, STEP)
    TypeAdapter(FunctionCallOutput).validate_python(item, strict=True)
    assert item == {"type": "function_call_output", "call_id": "call_2", "output": '{"refund_id":"re_1"}'}
    plain = {"id": "call_3", "function": {"name": "made_up", "arguments": ""}}
    assert refuses((await openai.chat_result(desk.contracts, plain, STEP))["content"], "UNKNOWN_TOOL")
    assert len(desk.keys) == 1


# ------------------------------------------------------------------------------------------------ Anthropic


async def test_anthropic(desk: Desk) -> None:
    for contract in desk.contracts:
        TypeAdapter(ToolParam).validate_python(anthropic.tool(contract))
    expired = {"id": "toolu_1", "name": "issue_refund", "input": {**ARGUMENTS, "payment_id": "expired"}}
    block = await anthropic.tool_result(desk.contracts, expired, STEP)
    TypeAdapter(ToolResultBlockParam).validate_python(block)
    assert block["is_error"] is True
    assert refuses(block["content"], "CARD_EXPIRED")
    assert (await anthropic.tool_result(desk.contracts, {"id": "t", "name": "no"}, STEP))["is_error"] is True


# ------------------------------------------------------------------------------------------------ MCP


def mcp_server(desk: Desk) -> Server[Any]:
    from mcp_types import CallToolRequestParams, ListToolsResult, PaginatedRequestParams

    async def list_tools(context: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[Tool.model_validate(mcp.tool(contract)) for contract in desk.contracts])

    async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
        step = mcp.step_of_meta(params.meta)
        made = await mcp.call_result(desk.contracts, params.name, params.arguments, step)
        return CallToolResult.model_validate(made)

    return Server("desk", on_list_tools=list_tools, on_call_tool=call_tool)


async def test_mcp(desk: Desk) -> None:
    meta: Any = mcp.step_meta(STEP)
    async with Client(mcp_server(desk)) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["issue_refund"].annotations is not None
        assert tools["issue_refund"].annotations.idempotent_hint is False
        assert tools["count_refunds"].annotations is not None
        assert tools["count_refunds"].annotations.read_only_hint is True
        made = [await client.call_tool("issue_refund", ARGUMENTS, meta=meta) for _ in range(3)]
        assert [each.structured_content for each in made] == [{"refund_id": "re_1"}] * 3
        counted = await client.call_tool("count_refunds", {})
        assert (counted.structured_content, counted.is_error) == ({"result": 1}, False)

        keyless = await client.call_tool("issue_refund", ARGUMENTS)
        assert (keyless.is_error, keyless.structured_content["error"]["code"]) == (True, "KEY_REQUIRED")
        stale = await client.call_tool("issue_refund", {**ARGUMENTS, "idempotencyKey": "k"}, meta=meta)
        assert (stale.is_error, stale.structured_content["error"]["code"]) == (True, "KEY_IN_ARGUMENTS")
    assert len(desk.keys) == 1


# ------------------------------------------------------------------------------------------------ LangChain, LangGraph


class Conversation(TypedDict):
    messages: Annotated[list[AnyMessage], operator.add]


def asking(*calls: dict[str, Any]) -> Callable[[Conversation], Conversation]:
    """A model that asks for these calls, with new ids each time that it is prompted."""
    prompted = iter(range(1000))

    def model(state: Conversation) -> Conversation:
        number = next(prompted)
        made: Any = [{"name": "issue_refund", "args": args, "id": f"call-{number}-{n}"} for n, args in enumerate(calls)]
        return {"messages": [AIMessage("", tool_calls=made)]}

    return model


def graph_of(desk: Desk, *calls: dict[str, Any], crashes: Iterator[bool] | None = None, **options: Any) -> Any:
    tools = ToolNode([langchain.structured_tool(desk.refund)])

    async def run_tools(state: Conversation) -> Any:
        made = await tools.ainvoke(state)
        if crashes is not None and next(crashes):
            raise ConnectionError("the process dies before the result is saved")
        return made

    graph: Any = StateGraph(Conversation)
    graph.add_node("model", asking(*calls))
    graph.add_node("tools", run_tools)
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    graph.add_edge("tools", END)
    return graph.compile(**options)


def last_of(state: Any) -> ToolMessage:
    message = state["messages"][-1]
    assert isinstance(message, ToolMessage)
    return message


async def test_a_graph_that_crashes_after_the_refund_and_is_resumed_refunds_once(desk: Desk) -> None:
    graph = graph_of(desk, ARGUMENTS, crashes=iter([True, False]), checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "conversation-1"}}
    with pytest.raises(ConnectionError):
        await graph.ainvoke({"messages": []}, config)
    done = await graph.ainvoke(None, config)
    assert last_of(done).content == '{"refund_id":"re_1"}'
    assert len(desk.keys) == 1


async def test_a_later_turn_of_the_same_thread_is_another_action(desk: Desk) -> None:
    graph = graph_of(desk, ARGUMENTS, checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "conversation-1"}}
    answers = [last_of(await graph.ainvoke({"messages": []}, config)).content for _ in range(2)]
    assert answers == ['{"refund_id":"re_1"}', '{"refund_id":"re_2"}']


async def test_without_a_stable_step_a_write_is_refused(desk: Desk) -> None:
    """Neither a graph without a checkpointer nor a sub-graph has a step that a repeat would have again."""
    config: Any = {"configurable": {"thread_id": "conversation-1"}}
    outer: Any = StateGraph(Conversation)
    outer.add_node("inner", graph_of(desk, ARGUMENTS))
    outer.add_edge(START, "inner")
    for graph in (graph_of(desk, ARGUMENTS), outer.compile(checkpointer=InMemorySaver())):
        message = last_of(await graph.ainvoke({"messages": []}, config))
        assert message.status == "error"
        assert refuses(str(message.content), "KEY_REQUIRED")
    named = {"configurable": {**config["configurable"], "step_id": "step-7"}}
    again = [last_of(await graph_of(desk, ARGUMENTS).ainvoke({"messages": []}, named)).content for _ in range(2)]
    assert again == ['{"refund_id":"re_1"}'] * 2


async def test_langchain(desk: Desk) -> None:
    tool = langchain.structured_tool(desk.refund)
    assert isinstance(tool, StructuredTool)
    config: Any = {"configurable": {"thread_id": "c", "step_id": "s"}}
    asked: Any = {"name": "issue_refund", "args": ARGUMENTS, "id": "call-1", "type": "tool_call"}
    message = await tool.ainvoke(asked, config)
    assert (message.status, message.content) == ("success", '{"refund_id":"re_1"}')
    stale = {**asked, "args": {**ARGUMENTS, "idempotency_key": "k"}}
    refused = await tool.ainvoke(stale, config)
    assert refused.status == "error"
    assert refuses(refused.content, "KEY_IN_ARGUMENTS")
    own = langchain.structured_tool(desk.refund, lambda config: AgentStep(idempotency_key="given by the runtime"))
    await own.ainvoke(asked)
    assert desk.keys[-1] == "given by the runtime"


def test_a_contract_of_a_plain_function_is_a_tool_for_code_without_a_loop(desk: Desk) -> None:
    assert langchain.structured_tool(desk.count).invoke({}) == "0"
    with pytest.raises(NotImplementedError):
        langchain.structured_tool(desk.refund).invoke(ARGUMENTS)
