"""The LangGraph adapter of the ``axonflow`` client, unchanged, against a real engine: the whole life of a run."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import Callable
from typing import Any, TypedDict

import pytest

from tests.clients import require_client

require_client("axonflow", "langchain_core", "langgraph")

from axonflow import AxonFlow
from axonflow.adapters import (
    AxonFlowLangGraphAdapter,
    NodeConfig,
    WorkflowApprovalRequiredError,
    WorkflowBlockedError,
    wrap_langgraph,
)
from axonflow.exceptions import AxonFlowError
from axonflow.workflow import ListWorkflowsOptions, WorkflowSource, WorkflowStatus, WorkflowStatusResponse
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

from tests.integration.agents import Gatehouse
from tests.integration.compat.axonflow_runs import Noted, public_coroutines
from tests.integration.compat.conftest import PutPolicy

pytestmark = pytest.mark.asyncio(loop_scope="module")


def unique(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:12]}"


async def step_documents(house: Gatehouse, workflow_id: str | None) -> dict[str, dict[str, Any]]:
    steps = (await house.api.get(f"/api/v1/workflows/{workflow_id}")).ok()["steps"]
    return {step["step_id"]: step for step in steps}


# ------------------------------------------------------------------------------------------------ the adapter


@pytest.mark.client("axonflow", "every method of AxonFlowLangGraphAdapter that talks to the engine")
async def test_the_whole_life_of_a_run(client: AxonFlow, house: Gatehouse, put_policy: PutPolicy) -> None:
    """It fails when a release of the adapter has a method that is not called here."""
    held = unique("held")
    await put_policy("require_approval", f"step-*-{held}")
    wrapped = AxonFlowLangGraphAdapter(client, "code review")
    adapter = Noted(wrapped)
    workflow_id = await adapter.start_workflow(metadata={"customer": "acme"}, trace_id="trace-1")
    assert await adapter.check_gate("Generate code", "llm_call", model="m-1", provider="p-1", step_input={"q": 1})
    report = {"output": {"code": "pass"}, "metadata": {"lines": 1}, "tokens_in": 1, "tokens_out": 2, "cost_usd": 0.1}
    await adapter.step_completed("Generate code", **report)
    assert await adapter.check_tool_gate("web_search", "function", tool_input={"query": "news"}, model="m-1")
    await adapter.tool_completed("web_search", output={"results": []}, tokens_in=1, tokens_out=2, cost_usd=0.1)
    with pytest.raises(WorkflowApprovalRequiredError) as waits:
        await adapter.check_gate(held, "human_task")
    waiting = asyncio.create_task(adapter.wait_for_approval(waits.value.step_id, poll_interval=0.01, timeout=30))
    await client.approve_step(workflow_id, str(waits.value.step_id), "looks good to me")
    assert await waiting is True
    assert await adapter.check_gate(held, "human_task", step_id=waits.value.step_id)
    await adapter.step_completed(held, step_id=waits.value.step_id)
    await adapter.complete_workflow()
    shown = await client.get_workflow(workflow_id)
    assert (shown.status, shown.source, shown.trace_id) == (
        WorkflowStatus.COMPLETED,
        WorkflowSource.LANGGRAPH,
        "trace-1",
    )
    steps = await step_documents(house, workflow_id)
    assert list(steps) == ["step-1-generate-code", "step-2-tools-web_search", f"step-3-{held}"]
    assert {step["completion_count"] for step in steps.values()} == {1}
    assert steps["step-1-generate-code"]["metadata"] == {"lines": 1}
    for verb in ("abort_workflow", "fail_workflow"):
        await adapter.start_workflow()
        await getattr(adapter, verb)("because")
        assert (await client.get_workflow(str(wrapped.workflow_id))).is_terminal()
    assert adapter.called == public_coroutines(AxonFlowLangGraphAdapter)


@pytest.mark.client("axonflow", "wait_for_approval: rejected, and not decided in time")
async def test_a_rejected_step_and_one_that_is_never_decided(client: AxonFlow, put_policy: PutPolicy) -> None:
    held = unique("held")
    await put_policy("require_approval", f"step-*-{held}")
    adapter = AxonFlowLangGraphAdapter(client, "review")
    workflow_id = await adapter.start_workflow()
    with pytest.raises(WorkflowApprovalRequiredError) as waits:
        await adapter.check_gate(held, "tool_call")
    step_id = str(waits.value.step_id)
    with pytest.raises(TimeoutError):
        await adapter.wait_for_approval(step_id, poll_interval=0.01, timeout=0.02)
    await client.reject_step(workflow_id, step_id, "wrong account")
    assert await adapter.wait_for_approval(step_id, poll_interval=0.01, timeout=5) is False
    with pytest.raises(WorkflowBlockedError, match="wrong account"):
        await adapter.check_gate(held, "tool_call", step_id=step_id)


@pytest.mark.client("axonflow", "a blocked step, with and without auto_block")
async def test_a_blocked_step(client: AxonFlow, put_policy: PutPolicy) -> None:
    blocked = unique("blocked")
    policy_id = await put_policy("block", f"step-*-{blocked}", reason="not today")
    for auto_block in (True, False):
        adapter = AxonFlowLangGraphAdapter(client, "blocked", auto_block=auto_block)
        await adapter.start_workflow()
        if not auto_block:
            assert await adapter.check_gate(blocked, "tool_call") is False
            continue
        with pytest.raises(WorkflowBlockedError) as refused:
            await adapter.check_gate(blocked, "tool_call")
        assert (refused.value.reason, refused.value.policy_ids) == ("not today", [policy_id])


@pytest.mark.client("axonflow", "the adapter as a context manager, and resuming the run that it aborted")
async def test_the_context_manager(client: AxonFlow, house: Gatehouse) -> None:
    """It completes the workflow, or aborts it after an exception; a later process resumes the aborted run."""
    async with AxonFlowLangGraphAdapter(client, "good") as good:
        await good.start_workflow()
        assert await good.check_gate("look", "llm_call")
        await good.step_completed("look")
    assert (await client.get_workflow(str(good.workflow_id))).status is WorkflowStatus.COMPLETED
    bad = AxonFlowLangGraphAdapter(client, "bad")
    with pytest.raises(ZeroDivisionError):
        await crash(bad)
    workflow_id = str(bad.workflow_id)
    assert (await client.get_workflow(workflow_id)).status is WorkflowStatus.ABORTED
    resumed = await client.resume_from_last_checkpoint(workflow_id)
    assert (resumed.resumed_from_checkpoint, resumed.new_decision) == ("look", "allow")
    async with AxonFlowLangGraphAdapter(client, "bad") as second:
        second.workflow_id = workflow_id
        assert await second.check_gate("act", "tool_call", step_id="act")
        await second.step_completed("act", step_id="act")
    assert (await client.get_workflow(workflow_id)).status is WorkflowStatus.COMPLETED
    steps = await step_documents(house, workflow_id)
    assert {name: step["completion_count"] for name, step in steps.items()} == {"look": 1, "act": 1}


async def crash(adapter: AxonFlowLangGraphAdapter) -> None:
    """A run that completes one step, and raises in the next one."""
    async with adapter:
        await adapter.start_workflow()
        assert await adapter.check_gate("look", "llm_call", step_id="look")
        await adapter.step_completed("look", step_id="look", output={"seen": 1})
        assert await adapter.check_gate("act", "tool_call", step_id="act")
        raise ZeroDivisionError


# ------------------------------------------------------------------------------------------------ real graphs


class State(TypedDict, total=False):
    question: str
    answer: str
    done: bool


@tool
async def search(query: str) -> str:
    """Search for something."""
    return f"found {query}"


async def look(state: State) -> State:
    return {"answer": await search.ainvoke({"query": state["question"]})}


def act(state: State) -> State:
    return {"done": True}


def graph_of(second: Callable[[State], Any] = act, name: str = "act") -> Any:
    """Two nodes, one after the other; the first one calls a tool."""
    builder: Any = StateGraph(State)
    builder.add_node("look", look)
    builder.add_node(name, second)
    builder.add_edge(START, "look")
    builder.add_edge("look", name)
    builder.add_edge(name, END)
    return builder.compile()


async def only_run(client: AxonFlow, trace: str) -> WorkflowStatusResponse:
    """The workflow that was made with a trace id."""
    (found,) = (await client.list_workflows(ListWorkflowsOptions(trace_id=trace))).workflows
    return await client.get_workflow(found.workflow_id)


EXPECTED = {"question": "hi", "answer": "found hi", "done": True}


@pytest.mark.client("axonflow", "wrap_langgraph: ainvoke of a real graph")
async def test_a_graph_runs_under_the_gate(client: AxonFlow, house: Gatehouse) -> None:
    trace = unique("trace")
    governed = wrap_langgraph(
        graph_of(),
        client=client,
        workflow_name="graph",
        trace_id=trace,
        metadata={"a": 1},
        node_config={"act": NodeConfig(step_type="llm_call", model="m-1", provider="p-1")},
        govern_tools=False,
    )
    assert await governed.ainvoke({"question": "hi"}) == EXPECTED
    shown = await only_run(client, trace)
    assert (shown.status, shown.workflow_name, shown.metadata) == (WorkflowStatus.COMPLETED, "graph", {"a": 1})
    steps = await step_documents(house, shown.workflow_id)
    assert [(name, step["work_status"], step["step_type"]) for name, step in steps.items()] == [
        ("step-1-look", "succeeded", "tool_call"),
        ("step-2-act", "succeeded", "llm_call"),
    ]


@pytest.mark.client("axonflow", "wrap_langgraph: astream")
async def test_a_graph_is_streamed(client: AxonFlow) -> None:
    trace = unique("trace")
    governed = wrap_langgraph(graph_of(), client=client, workflow_name="graph", trace_id=trace, govern_tools=False)
    chunks = [chunk async for chunk in governed.astream({"question": "hi"})]
    assert chunks == [{"look": {"answer": "found hi"}}, {"act": {"done": True}}]
    assert (await only_run(client, trace)).status is WorkflowStatus.COMPLETED


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # invoke closes the loop of the client
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # ... whose connections stay open
@pytest.mark.client("axonflow", "wrap_langgraph: invoke, from a program without an event loop")
async def test_a_graph_is_invoked_by_a_plain_program(client: AxonFlow, house: Gatehouse) -> None:
    trace = unique("trace")

    def program() -> Any:
        own = AxonFlow(endpoint=house.api.url)
        return wrap_langgraph(graph_of(), client=own, workflow_name="graph", trace_id=trace, govern_tools=False).invoke(
            {"question": "hi"}
        )

    assert await asyncio.to_thread(program) == EXPECTED
    gc.collect()  # so that what the program left open is noticed here, and by no other test
    assert (await only_run(client, trace)).status is WorkflowStatus.COMPLETED


@pytest.mark.client("axonflow", "wrap_langgraph: a blocked node")
async def test_a_blocked_node_aborts_the_run(client: AxonFlow, put_policy: PutPolicy) -> None:
    """The run can be resumed behind what was done."""
    name, trace = unique("blocked"), unique("trace")
    await put_policy("block", f"step-*-{name}", reason="not today")
    graph = graph_of(name=name)
    governed = wrap_langgraph(graph, client=client, workflow_name="graph", trace_id=trace, govern_tools=False)
    with pytest.raises(WorkflowBlockedError, match="not today"):
        await governed.ainvoke({"question": "hi"})
    shown = await only_run(client, trace)
    assert shown.status is WorkflowStatus.ABORTED
    found = (await client.get_checkpoints(shown.workflow_id)).checkpoints
    assert [(each.step_id, each.is_resumable, each.gate_decision) for each in found] == [
        ("step-1-look", True, "allow"),
        (f"step-2-{name}", False, "block"),
    ]


@pytest.mark.client("axonflow", "wrap_langgraph: a node that needs an approval")
async def test_a_node_that_needs_an_approval_leaves_the_run_open(client: AxonFlow, put_policy: PutPolicy) -> None:
    name, trace = unique("held"), unique("trace")
    await put_policy("require_approval", f"step-*-{name}")
    graph = graph_of(name=name)
    governed = wrap_langgraph(graph, client=client, workflow_name="graph", trace_id=trace, govern_tools=False)
    with pytest.raises(WorkflowApprovalRequiredError) as waits:
        await governed.ainvoke({"question": "hi"})
    shown = await only_run(client, trace)
    assert shown.status is WorkflowStatus.IN_PROGRESS
    await client.approve_step(shown.workflow_id, str(waits.value.step_id), "looks good to me")
    adapter = AxonFlowLangGraphAdapter(client, "graph")
    adapter.workflow_id = shown.workflow_id
    assert await adapter.wait_for_approval(str(waits.value.step_id), poll_interval=0.01, timeout=5) is True


@pytest.mark.client("axonflow", "wrap_langgraph: a node that raises")
async def test_a_node_that_raises_fails_the_run(client: AxonFlow, house: Gatehouse) -> None:
    def broken(state: State) -> State:
        raise ZeroDivisionError("no way")

    trace = unique("trace")
    graph = graph_of(broken)
    governed = wrap_langgraph(graph, client=client, workflow_name="graph", trace_id=trace, govern_tools=False)
    with pytest.raises(ZeroDivisionError):
        await governed.ainvoke({"question": "hi"})
    shown = await only_run(client, trace)
    assert shown.status is WorkflowStatus.FAILED
    document = (await house.api.get(f"/api/v1/workflows/{shown.workflow_id}")).ok()
    assert document["error"]["message"] == "Exception: no way"


@pytest.mark.client("axonflow", "wrap_langgraph: a graph that chooses its next node by Command")
async def test_a_graph_that_chooses_its_next_node(client: AxonFlow) -> None:
    def choose(state: State) -> Command[str]:
        return Command(goto="act", update={"answer": "chosen"})

    builder: Any = StateGraph(State)
    builder.add_node("choose", choose, destinations=("act",))
    builder.add_node("act", act)
    builder.add_edge(START, "choose")
    builder.add_edge("act", END)
    trace = unique("trace")
    governed = wrap_langgraph(builder.compile(), client=client, workflow_name="graph", trace_id=trace)
    assert await governed.ainvoke({"question": "hi"}) == {"question": "hi", "answer": "chosen", "done": True}
    assert (await only_run(client, trace)).status is WorkflowStatus.COMPLETED


def conditional() -> Any:
    builder: Any = StateGraph(State)
    builder.add_node("look", look)
    builder.add_node("act", act)
    builder.add_edge(START, "look")
    builder.add_conditional_edges("look", lambda state: "act", ["act"])
    builder.add_edge("act", END)
    return builder.compile()


@pytest.mark.client("axonflow", "wrap_langgraph: conditional edges, with the node left out")
async def test_a_node_with_conditional_edges_is_left_out(client: AxonFlow) -> None:
    trace = unique("trace")
    left_out = {"__start__", "__end__", "look"}
    governed = wrap_langgraph(
        conditional(), client=client, workflow_name="graph", trace_id=trace, govern_tools=False, exclude_nodes=left_out
    )
    assert await governed.ainvoke({"question": "hi"}) == EXPECTED
    assert (await only_run(client, trace)).status is WorkflowStatus.COMPLETED


async def test_conditional_edges_report_two_outcomes_of_one_step(client: AxonFlow) -> None:
    """A limit that the documentation names: the wrapper reports the edge and its node under one step id.

    The first outcome is final, so the second report is refused. When a release of the client numbers them apart, this
    test fails, and the limit goes from the documentation.
    """
    trace = unique("trace")
    governed = wrap_langgraph(conditional(), client=client, workflow_name="graph", trace_id=trace, govern_tools=False)
    with pytest.raises(AxonFlowError, match="COMPLETION_CONFLICT"):
        await governed.ainvoke({"question": "hi"})
    assert (await only_run(client, trace)).status is WorkflowStatus.FAILED


async def test_a_tool_inside_a_node_moves_the_number_of_its_step(client: AxonFlow) -> None:
    """The other limit that the documentation names: behind a governed tool, the node is reported under a new number."""
    governed = wrap_langgraph(graph_of(), client=client, workflow_name="graph")
    with pytest.raises(AxonFlowError, match="UNKNOWN_STEP"):
        await governed.ainvoke({"question": "hi"})


async def test_parallel_nodes_are_reported_under_the_last_number(client: AxonFlow) -> None:
    """The third limit: with two nodes under way, the first one to end has the number of the second."""
    builder: Any = StateGraph(State)
    builder.add_node("look", look)
    builder.add_node("act", act)
    for name in ("look", "act"):
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    governed = wrap_langgraph(builder.compile(), client=client, workflow_name="graph", govern_tools=False)
    with pytest.raises(AxonFlowError, match="UNKNOWN_STEP"):
        await governed.ainvoke({"question": "hi"})
