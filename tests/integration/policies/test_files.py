"""Policies that are loaded from a file when the engine starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from counterfoil.app import StartFailure
from tests.running import Connect, StartNode
from tests.wire import Api

BLOCK = {"name": "no transfers", "match": {"step_id": "transfer"}, "action": {"type": "block", "reason": "closed"}}


async def decision(api: Api, step_id: str = "transfer") -> dict[str, Any]:
    workflow = (await api.request("POST", "/api/v1/workflows", json={"workflow_name": "pay"})).ok(201)["workflow_id"]
    gate = f"/api/v1/workflows/{workflow}/steps/{step_id}/gate"
    answer: dict[str, Any] = (await api.request("POST", gate, json={"step_type": "tool_call"})).ok()
    return answer


async def ids(api: Api) -> list[str]:
    return [policy["policy_id"] for policy in (await api.get("/api/v1/policies")).ok()["policies"]]


async def test_a_file_is_in_force_from_the_start_and_only_as_long_as_it_says_so(
    tmp_path: Path, start_node: StartNode, connect: Connect
) -> None:
    file = tmp_path / "policies.json"
    file.write_text(json.dumps({"closed": BLOCK}))
    node = await start_node(policies_file=str(file))
    api = connect(node)
    assert (await decision(api))["policy_ids"] == ["closed"]
    shown = (await api.get("/api/v1/policies/closed")).ok()
    assert (shown["source"], shown["version"]) == ("file", 1)
    (await api.request("PUT", "/api/v1/policies/own", json={**BLOCK, "match": {"step_id": "own"}})).ok(201)
    await node.stop()

    api = connect(node := await start_node(policies_file=str(file)))
    assert (await api.get("/api/v1/policies/closed")).ok() == shown, "the same file changes nothing"
    await node.stop()

    file.write_text(json.dumps({"other": {**BLOCK, "match": {"step_id": "other"}}}))
    api = connect(await start_node(policies_file=str(file)))
    assert await ids(api) == ["other", "own"], "what left the file is gone, what the API put stays"
    assert (await decision(api))["decision"] == "allow"
    assert (await decision(api, "other"))["reason"] == "closed"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[]", "must be an object"),
        ('{"a b": {}}', "is not a policy id"),
        (
            json.dumps({"p": {**BLOCK, "conditions": [{"field": "step.x", "operator": "equals", "value": 1}]}}),
            "policy p",
        ),
    ],
)
async def test_a_file_that_cannot_be_used_stops_the_start(
    tmp_path: Path, start_node: StartNode, text: str, told: str
) -> None:
    file = tmp_path / "policies.json"
    file.write_text(text)
    with pytest.raises(StartFailure, match=told):
        await start_node(policies_file=str(file))


async def test_a_file_that_is_not_there_stops_the_start(tmp_path: Path, start_node: StartNode) -> None:
    with pytest.raises(StartFailure, match="No such file"):
        await start_node(policies_file=str(tmp_path / "nothing.json"))
