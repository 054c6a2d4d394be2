"""One run of the fuzzer against one engine: many players at once, and everything that was wrong with any answer."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from typing import Any

from tests.acceptance.fuzzing.endpoints import Endpoints
from tests.acceptance.fuzzing.grammar import Grammar, operations_of
from tests.acceptance.fuzzing.jsontexts import Hostile
from tests.acceptance.fuzzing.oracle import load
from tests.acceptance.fuzzing.plausible import Known
from tests.acceptance.fuzzing.players import Player
from tests.acceptance.fuzzing.receipts import Wallet
from tests.acceptance.fuzzing.wire import Answer, Connection, Request, Unanswered

PLAYERS = 12
MOST_BROKEN = 30
"""After so many answers of 5xx, or none at all, enough is known."""
LEARNED = ("flow_id", "workflow_id", "work_id", "approval_id", "delivery_id", "schedule_id", "next_cursor")
MAY_BE_UNAVAILABLE = "get_readiness"
"""The one operation whose 503 is an answer: on a busy machine a sweep may be late. The fuzzer does not overload the
engine (a dozen connections, a bounded number of open flows), so everything else must be served."""


class Campaign:
    """Sends so many requests, and keeps what is wrong in ``findings``."""

    def __init__(self, url: str, seed: int, endpoints: Endpoints, wallet: Wallet, document: dict[str, Any]) -> None:
        self.findings: list[str] = []
        """The first of each kind and operation; ``faults`` counts them all."""
        self.faults: Counter[tuple[str, str]] = Counter()
        self.statuses: Counter[str] = Counter()
        self.by_operation: dict[str, Counter[int]] = defaultdict(Counter)
        self.started: dict[str, set[str]] = {"flow_id": set(), "workflow_id": set()}
        """What was answered 201: it must be there at the end."""
        self.sent = 0
        self.broken = 0
        self.left_early = 0
        self.unready = 0
        self._url = url
        self._seed = seed
        self._wallet = wallet
        self._document = document
        self._known = Known(wallet, endpoints.url)
        self._connections: list[Connection] = []

    async def run(self, requests: int) -> None:
        """Play until so many requests were sent, or enough is wrong."""
        players = [self._player(number) for number in range(PLAYERS)]
        await players[0].settle_in()

        async def play(player: Player) -> None:
            while self.sent < requests and self.broken < MOST_BROKEN:
                await player.turn()

        async with asyncio.TaskGroup() as together:
            for player in players:
                together.create_task(play(player))
        for connection in self._connections:
            await connection.ended()

    def summary(self) -> str:
        classes = ", ".join(f"{count} {name}" for name, count in sorted(self.statuses.items()))
        return f"{self.sent} requests: {classes}, {self.left_early} left early, {self.unready} times not ready"

    def never_sent(self) -> set[str]:
        """Operations of the document that were not tried."""
        return {operation.name for operation in operations_of(self._document)} - self.by_operation.keys()

    def never_accepted(self) -> dict[str, dict[int, int]]:
        """Operations of which no request was answered 2xx, with what was answered."""
        return {
            name: dict(statuses)
            for name, statuses in self.by_operation.items()
            if not any(200 <= status < 300 for status in statuses)
        }

    def _player(self, number: int) -> Player:
        dice = random.Random(f"{self._seed}-{number}")
        hostile = Hostile(dice, lambda: self._wallet.text(dice))
        grammar = Grammar(self._document, dice, self._known, hostile)
        connection = Connection(self._url)
        self._connections.append(connection)

        async def send(request: Request) -> Answer | None:
            return await self._send(connection, request, number)

        return Player(grammar, self._known, hostile, dice, send)

    async def _send(self, connection: Connection, request: Request, player: int) -> Answer | None:
        self.sent += 1
        index, began = self.sent, time.monotonic()
        try:
            answer = await connection.send(request)
        except Unanswered as error:
            self.statuses["unanswered"] += 1
            self.broken += 1
            self._wrong(f"{error} ({time.monotonic() - began:.1f} s)", request, index, player)
            return None
        if answer is None:
            self.left_early += 1
            return None
        self.statuses[f"{answer.status // 100}xx"] += 1
        self.by_operation[request.operation][answer.status] += 1
        self._check(answer, request, index, player)
        if 200 <= answer.status < 300:
            self._learn(answer, request)
        return answer

    def _check(self, answer: Answer, request: Request, index: int, player: int) -> None:
        if answer.status == 503 and request.operation == MAY_BE_UNAVAILABLE:
            self.unready += 1
        elif answer.status >= 500:
            self.broken += 1
            self._wrong(f"answered {answer.status}: {answer.content[:300]!r}", request, index, player)
        if self._wallet.found_in(answer.raw_head + answer.content):
            self._wrong(f"the answer ({answer.status}) has a receipt in it", request, index, player)
        if answer.headers.get(b"content-type", b"").startswith(b"application/json") and answer.content:
            try:
                load(answer.content)
            except (ValueError, RecursionError) as error:
                self._wrong(f"the answer ({answer.status}) is not JSON: {error!r}", request, index, player)

    def _learn(self, answer: Answer, request: Request) -> None:
        """Remember the ids that an answer names."""
        if answer.headers.get(b"content-type") is None or not answer.content.startswith(b"{"):
            return
        body = json.loads(answer.content)
        for place in (body, *(item for value in body.values() if isinstance(value, list) for item in value[:3])):
            if isinstance(place, dict):
                for name in LEARNED:
                    self._known.note("cursor" if name == "next_cursor" else name, place.get(name))
        if answer.status == 201 and request.operation in ("start_flow", "create_workflow"):
            name = "flow_id" if request.operation == "start_flow" else "workflow_id"
            self.started[name].add(body[name])

    def _wrong(self, what: str, request: Request, index: int, player: int) -> None:
        kind = (what[:28], request.operation)
        self.faults[kind] += 1
        if self.faults[kind] > 1:
            return
        self.findings.append(f"request {index} of player {player}, seed {self._seed}: {what}\n    {request.replay()}")
