"""A workflow that is aborted at one node and resumed at another: each node sees it as it is."""

from __future__ import annotations

import pytest

from tests.integration.agents import begin
from tests.integration.several_nodes import ONLY_BY_WORD, start_nodes
from tests.running import Connect, StartNode

pytestmark = pytest.mark.postgresql_only


async def test_a_workflow_is_resumed_at_another_node(start_node: StartNode, connect: Connect) -> None:
    here, there = map(connect, await start_nodes(start_node, 2, **ONLY_BY_WORD))
    agent = await begin(here)
    other = agent.at(there)
    await agent.gate("look")
    await other.complete("look", output={"seen": 1}, metadata={"at": "there"})
    for count in (1, 2, 3):
        await agent.gate("act")
        (await other.say("abort")).ok()
        (await agent.ask("act")).refused(409, "WORKFLOW_TERMINAL")
        answer = (await here.post(f"{agent.path}/checkpoints/resume")).ok()
        assert (answer["reopened"], answer["resume_count"]) == (True, count)
        granted = await other.gate("act")
        assert (granted["decision"], granted["cached"], granted["work_status"]) == ("allow", False, "active")
    await agent.complete("act")
    assert (await other.step("look"))["metadata"] == {"at": "there"}
    (await other.say("complete")).ok()
    assert (await there.post(f"{agent.path}/checkpoints/resume")).refused(409, "NOT_RESUMABLE")["status"] == "completed"
