"""Clients of the engine during a run: workers, agents, reviewers, admins, and strangers that try anything."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from tests.acceptance.fuzzing.grammar import Grammar
from tests.acceptance.fuzzing.jsontexts import Hostile, Raw
from tests.acceptance.fuzzing.plausible import (
    AGENT_STEPS,
    COSTLY_SCHEMAS,
    COSTLY_VALUES,
    Known,
    plausible,
    policies,
    result,
    start,
    steps,
)
from tests.acceptance.fuzzing.receipts import Receipt
from tests.acceptance.fuzzing.wire import Answer, Request

OPEN_WORK = 150
"""Dispatches that wait for a worker: beyond that no more flows are started, so that the engine is not overloaded."""


class Send(Protocol):
    """Sends a request, and looks at its answer; None: there was no whole answer."""

    def __call__(self, request: Request) -> Awaitable[Answer | None]: ...


class Player:
    """Takes turns: each is a short story of a few requests, drawn by lot."""

    def __init__(self, grammar: Grammar, known: Known, hostile: Hostile, dice: random.Random, send: Send) -> None:
        self._grammar = grammar
        self._known = known
        self._hostile = hostile
        self._dice = dice
        self._send = send

    async def turn(self) -> None:
        stories: list[Callable[[], Awaitable[None]]] = [
            self.stranger,
            self.worker,
            self.starter,
            self.agent,
            self.reviewer,
            self.admin,
            self.subscriber,
            self.operator,
            self.reconciler,
            self.sender,
            self.schemer,
        ]
        await self._dice.choices(stories, weights=(40, 24, 16, 8, 4, 3, 2, 3, 3, 4, 1))[0]()

    async def settle_in(self) -> None:
        """Register what everything else is about."""
        for step_id, definition in steps(self._known.url).items():
            await self._call("put_step", {"step_id": step_id}, definition)
        for policy_id, policy in policies().items():
            await self._call("put_policy", {"policy_id": policy_id}, policy)

    # -- stories -----------------------------------------------------------------------------------

    async def stranger(self) -> None:
        for _ in range(4):
            await self._send(self._grammar.any())

    async def starter(self) -> None:
        if self._known.wallet.waiting.qsize() < OPEN_WORK:
            body = start(self._dice, self._known, self._hostile)
            answer = await self._call("start_flow", {}, body)
            flow_id = _field(answer, "flow_id")
            if flow_id is not None and self._dice.random() < 0.2:
                await self._call("list_flow_events", {"flow_id": flow_id})
                await self._call("get_flow", {"flow_id": flow_id})

    async def worker(self) -> None:
        """Work that was sent out: signs of life, odd reports, and in the end one that is taken, mostly."""
        if self._known.wallet.waiting.empty():
            return await self.starter()
        receipt = self._known.wallet.waiting.get_nowait()
        ids = {"flow_id": receipt.flow_id, "step_id": receipt.step_id, "receipt_token": receipt.token}
        if self._dice.random() < 0.4:
            beat = {"progress": self._dice.random(), "message": self._words(receipt)}
            await self._call("beat_work", ids, beat)
        if self._dice.random() < 0.1:
            await self._call("get_receipt", ids)
        if self._dice.random() < 0.2:
            await self._call("complete_work", ids, Raw(self._grammar.broken(self._report(receipt))))
        if self._dice.random() < 0.1:
            return None  # it never reports: the deadline will
        report = self._report(receipt)
        if self._dice.random() < 0.8:
            answer = await self._call("complete_work", ids, report)
        else:
            header = [(b"Counterfoil-Receipt", receipt.token.encode())]
            answer = await self._send(self._grammar.call("complete_work_by_header", ids, report, headers=header))
        if answer is not None and answer.status == 200 and self._dice.random() < 0.2:
            await self._call("complete_work", ids, report)
        return None

    async def agent(self) -> None:
        answer = await self._plausibly("create_workflow", {})
        workflow_id = _field(answer, "workflow_id")
        if workflow_id is None:
            return
        for step_id in self._dice.sample(AGENT_STEPS, k=2):
            ids = {"workflow_id": workflow_id, "step_id": step_id}
            gated = await self._plausibly("gate_step", ids)
            holder = (_json(gated) or {}).get("claim") or {}
            await self._call(
                "prolong_claim", ids, {"holder": holder.get("holder", "me"), "message": self._hostile.text()}
            )
            if self._dice.random() < 0.3:
                verb = self._dice.choice(("approve_step", "reject_step"))
                await self._call(verb, ids, {"comment" if verb == "approve_step" else "reason": self._hostile.text()})
            await self._plausibly("complete_step", ids)
            await self._call("get_workflow_step", ids)
        if self._dice.random() < 0.7:
            verb = self._dice.choice(("complete_workflow", "fail_workflow", "abort_workflow", "resume_workflow"))
            await self._call(verb, {"workflow_id": workflow_id}, {"reason": self._hostile.text()})
        await self._resume(workflow_id)

    async def _resume(self, workflow_id: str) -> None:
        """From the last checkpoint, or from any, and back to a step that may have been cancelled."""
        ids = {"workflow_id": workflow_id}
        await self._call("resume_from_last_checkpoint", ids, {self._hostile.text()[:50]: self._hostile.json()})
        listed = _json(await self._call("list_checkpoints", ids)) or {}
        for checkpoint in listed.get("checkpoints", ()):
            await self._call("resume_from_checkpoint", {**ids, "checkpoint_id": str(checkpoint["id"])})
        step_id = self._dice.choice(AGENT_STEPS)
        await self._plausibly("gate_step", {**ids, "step_id": step_id})
        await self._plausibly("complete_step", {**ids, "step_id": step_id})

    async def reviewer(self) -> None:
        answer = await self._call("list_approvals", {}, query={"status": "pending", "limit": "5"})
        for approval in (_json(answer) or {}).get("approvals", [])[:2]:
            ids = {"approval_id": approval["approval_id"]}
            verb, word = self._dice.choice((("approve", "comment"), ("reject", "reason")))
            await self._call(verb, ids, {word: self._hostile.text()})
            await self._call("get_approval", ids)

    async def admin(self) -> None:
        dice = self._dice
        step_id = dice.choice(list(steps(self._known.url)))
        await self._call("put_step", {"step_id": step_id}, steps(self._known.url)[step_id])
        schedule_id = self._known.one("schedule_id", dice)
        tick = {"every_ms": 100, "flow": {"goals": ["sync"], "init": {"a": self._hostile.json()}}}
        await self._call("put_schedule", {"schedule_id": schedule_id}, tick)
        await self._call("get_schedule", {"schedule_id": schedule_id})
        await self._call("delete_schedule", {"schedule_id": schedule_id})
        policy_id = dice.choice(list(policies()))
        await self._call("put_policy", {"policy_id": policy_id}, policies()[policy_id])

    async def subscriber(self) -> None:
        ids = {"subscription_id": self._known.one("subscription_id", self._dice)}
        await self._plausibly("put_subscription", ids)
        await self._call("test_subscription", ids)
        answer = await self._call("list_deliveries", ids)
        for delivery in (_json(answer) or {}).get("deliveries", [])[:1]:
            await self._call("redeliver", {**ids, "delivery_id": delivery["delivery_id"]})
        if self._dice.random() < 0.3:
            await self._call("delete_subscription", ids)

    async def operator(self) -> None:
        ids = {"flow_id": self._known.one("flow_id", self._dice)}
        await self._call("cancel_flow", ids, {"compensate": self._dice.random() < 0.5})
        await self._call("redrive_flow", {"flow_id": self._known.one("flow_id", self._dice)}, {})
        answer = await self._call("list_work", {}, query={"status": "failed", "limit": "3"})
        for item in (_json(answer) or {}).get("work", [])[:1]:
            await self._call("redrive_work", {"work_id": item["work_id"]}, {})
        await self._call("redrive_matching_work", {}, {"filter": {"step_id": "sync"}, "limit": 3})

    async def reconciler(self) -> None:
        """Settles items whose outcome is unknown, with hostile words; sometimes two at once."""
        query = {"limit": "5", **({"hold": "unsafe_once"} if self._dice.random() < 0.3 else {})}
        answer = await self._call("list_reconciliations", {}, query=query)
        for entry in (_json(answer) or {}).get("reconciliations", [])[:3]:
            ids = {"work_id": entry["work_id"]}
            await self._call("get_reconciliation", ids)
            for _ in range(self._dice.choice((1, 1, 2))):
                await self._plausibly("settle_reconciliation", ids)

    async def sender(self) -> None:
        """Payloads for hooks: by tokens that are listed, and by links that were sent out."""
        answer = await self._call("list_hooks", {}, query={"limit": "20"})
        tokens = [hook["token"] for hook in (_json(answer) or {}).get("hooks", []) if hook["token"]]
        tokens += self._dice.sample(list(self._known.wallet.links), k=min(2, len(self._known.wallet.links)))
        for token in self._dice.sample(tokens, k=min(3, len(tokens))):
            await self._call("get_hook", {"token": token})
            payload = self._dice.choice((self._hostile.members(), self._hostile.json(), "end"))
            headers = [(b"webhook-id", self._dice.choice((b"d1", b"d2", b"x" * 255)))]
            await self._send(self._grammar.call("deliver_payload", {"token": token}, payload, headers=headers))

    async def schemer(self) -> None:
        """A step whose schema is expensive, and values that make it so."""
        attribute = {"role": "required", "schema": self._dice.choice(COSTLY_SCHEMAS)}
        definition = {"endpoint": f"{self._known.url}/async", "attributes": {"a": attribute}}
        await self._call("put_step", {"step_id": "costly"}, definition)
        body = {"goals": ["costly"], "init": {"a": self._dice.choice(COSTLY_VALUES)}}
        await self._call(self._dice.choice(("plan_flow", "start_flow")), {}, body)

    # -- parts -------------------------------------------------------------------------------------

    async def _plausibly(self, operation: str, ids: dict[str, str]) -> Answer | None:
        return await self._call(operation, ids, plausible(operation, self._dice, self._known, self._hostile))

    async def _call(
        self, operation: str, ids: dict[str, str], body: Any = None, query: dict[str, str] | None = None
    ) -> Answer | None:
        return await self._send(self._grammar.call(operation, ids, body, query=query))

    def _words(self, receipt: Receipt) -> str:
        """What the worker says: often with its own receipt in it."""
        own = self._known.wallet.text(self._dice, receipt) if self._dice.random() < 0.4 else None
        return own or self._hostile.text()

    def _report(self, receipt: Receipt) -> dict[str, Any]:
        report = result(self._dice, self._hostile)
        if "error" in report and self._dice.random() < 0.5:
            report["error"] = self._words(receipt)
        return report


def _json(answer: Answer | None) -> dict[str, Any] | None:
    if answer is None or answer.status >= 300 or not answer.content:
        return None
    found = json.loads(answer.content)
    return found if isinstance(found, dict) else None


def _field(answer: Answer | None, name: str) -> str | None:
    value = (_json(answer) or {}).get(name)
    return value if isinstance(value, str) else None
