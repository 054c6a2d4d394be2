"""Agents and reviewers under way while their engine is killed: what they were told, and what they tried."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import aiohttp
import orjson

from tests.eventually import elapsed
from tests.wire import JSON

PAUSE_SECONDS = 0.05
STEPS = ("look", "pay", "send")
POLICY = {"name": "payments", "match": {"step_id": "pay"}, "action": {"type": "require_approval"}}
DECIDED = ("approval_approved", "approval_rejected", "approval_expired")

Key = tuple[str, str]
"""A workflow and one of its steps."""


class Crowd:
    """Patient clients: a request without an answer is sent again. ``faults`` collects what must never be answered."""

    def __init__(self, session: aiohttp.ClientSession, url: str, dice: random.Random) -> None:
        self._session = session
        self._url = url
        self._dice = dice
        self._over = False
        self._left = 0
        self.gates_tried: Counter[Key] = Counter()
        self.gates_told: Counter[Key] = Counter()
        self.completed: dict[Key, dict[str, Any]] = {}
        self.verdicts: dict[str, list[str]] = defaultdict(list)
        """By approval: every verdict that a reviewer was told to have given."""
        self.faults: list[str] = []

    async def once(self, method: str, path: str, body: Any = None) -> tuple[int, Any] | None:
        """One request; None if it was not answered, or only that the engine is not to be had."""
        data = None if body is None else orjson.dumps(body)
        try:
            async with self._session.request(method, self._url + path, data=data, headers=JSON) as response:
                content = await response.read()
        except (TimeoutError, aiohttp.ClientError, ConnectionError):
            return None
        if response.status >= 500 and response.status != 503:
            self.faults.append(f"{method} {path}: {response.status}")
        return None if response.status >= 500 else (response.status, orjson.loads(content) if content else None)

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        while (answer := await self.once(method, path, body)) is None:
            await elapsed(PAUSE_SECONDS)
        return answer

    def close(self) -> None:
        """Agents that are under way go on to their end, and begin nothing new."""
        self._over = True

    async def agent(self, name: str) -> None:
        """One workflow after the other, each step of it through the gate."""
        self._left += 1
        number = 0
        while not self._over:
            number += 1
            wanted = {"workflow_name": "chaos", "idempotency_key": f"{name}-{number}"}
            status, workflow = await self.call("POST", "/api/v1/workflows", wanted)
            assert status in (200, 201), workflow
            for step_id in STEPS:
                await self._run_step((workflow["workflow_id"], step_id))
        self._left -= 1

    async def _run_step(self, key: Key) -> None:
        path = f"/api/v1/workflows/{key[0]}/steps/{key[1]}"
        decision = await self._gate(key, path)
        while decision == "require_approval":
            await elapsed(PAUSE_SECONDS)
            decision = await self._gate(key, path)
        if decision != "allow":
            return
        output = {"n": self._dice.randrange(10**6)}
        status, answer = await self.call("POST", f"{path}/complete", {"output": output})
        if status == 204:
            self.completed[key] = output
        else:
            self.faults.append(f"complete {key}: {status} {answer}")

    async def _gate(self, key: Key, path: str) -> str:
        while True:
            self.gates_tried[key] += 1
            answer = await self.once("POST", f"{path}/gate", {"step_input": {"step": key[1]}})
            if answer is not None:
                break
            await elapsed(PAUSE_SECONDS)
        status, told = answer
        if status != 200:
            self.faults.append(f"gate {key}: {status} {told}")
            return "block"
        self.gates_told[key] += 1
        return str(told["decision"])

    async def reviewer(self) -> None:
        """Decides whatever waits, now and then against it; another one is at it too."""
        while self._left or not self._over:
            _, page = await self.call("GET", "/api/v1/approvals?status=pending&limit=20")
            for approval in page["approvals"]:
                verb = self._dice.choice(("approve", "approve", "reject"))
                answer = await self.once("POST", f"/api/v1/approvals/{approval['approval_id']}/{verb}")
                if answer is not None and answer[0] == 200:
                    self.verdicts[approval["approval_id"]].append("approved" if verb == "approve" else "rejected")
                elif answer is not None and answer[1]["error"]["code"] != "NOT_PENDING":
                    self.faults.append(f"{verb}: {answer}")
            await elapsed(PAUSE_SECONDS)

    async def compare(self) -> None:
        """What they were told against what the engine shows and its journal tells."""
        assert self.faults == []
        for workflow_id in {key[0] for key in self.gates_tried}:
            _, workflow = await self.call("GET", f"/api/v1/workflows/{workflow_id}")
            for step in workflow["steps"]:
                await self._compare_step((workflow_id, step["step_id"]), step)

    async def _compare_step(self, key: Key, step: dict[str, Any]) -> None:
        assert self.gates_told[key] <= step["gate_count"] <= self.gates_tried[key], key
        _, detail = await self.call("GET", f"/api/v1/workflows/{key[0]}/steps/{key[1]}")
        events = [(event["type"], event["data"]) for event in detail["history"]]
        assert sum(kind == "gate_decided" for kind, _ in events) == step["gate_count"], key
        reported = [data["result"]["outputs"] for kind, data in events if kind == "work_succeeded"]
        assert reported == ([self.completed[key]] if key in self.completed else []), key
        decided = Counter(data["approval_id"] for kind, data in events if kind in DECIDED)
        assert set(decided.values()) <= {1}, "an approval was decided twice"
        for approval_id in decided:
            _, approval = await self.call("GET", f"/api/v1/approvals/{approval_id}")
            assert self.verdicts[approval_id] in ([], [approval["status"]]), approval_id
        if key[1] == "pay" and key in self.completed:
            assert step["approval_status"] == "approved", "no reviewer had approved it"
