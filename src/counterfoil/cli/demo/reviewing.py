"""What people do in the demo: approve charges, and settle those whose outcome is unknown."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp

from counterfoil.cli.demo.scenarios import Scenario, answer_of
from counterfoil.client import ClientError

if TYPE_CHECKING:
    from counterfoil.cli.demo.charging import CardProvider
    from counterfoil.client import Client, Event

LOOKING_SECONDS = 0.6
"""How long a person looks at an item, so that the display shows it as held."""


class Reviewer:
    """Decides about each held item of one step.

    An approval that is asked for is given. For an unknown outcome the reviewer looks at the account of the card
    provider: a charge that is there was applied, any other was not.
    """

    def __init__(self, client: Client, provider: CardProvider, scenario: Scenario) -> None:
        self.approvals = 0
        self._client = client
        self._provider = provider
        self._step_id = scenario.step_id
        self._held: asyncio.Queue[Event] = asyncio.Queue()

    def see(self, event: Event) -> None:
        """Take note of an event of a flow of this demo."""
        if event["step_id"] == self._step_id and is_held(event):
            self._held.put_nowait(event)

    async def run(self, numbers: dict[str, int]) -> None:
        """Decide until cancelled; ``numbers`` are those of the flows, by their ids."""
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
            while True:
                event = await self._held.get()
                tasks.create_task(self._decide(session, event, numbers[event["flow_id"]]))

    async def _decide(self, session: aiohttp.ClientSession, event: Event, number: int) -> None:
        await asyncio.sleep(LOOKING_SECONDS)
        if event["type"] == "work_held":
            await self._client.approve(event["data"]["approval_id"], "the order is in the books")
            self.approvals += 1
        else:
            await self._settle(session, event, number)

    async def _settle(self, session: aiohttp.ClientSession, event: Event, number: int) -> None:
        found = bool(self._provider.charges[event["flow_id"]])
        outcome = {"outcome": "applied", "outputs": answer_of(number)} if found else {"outcome": "not_applied"}
        note = "found in the provider's account" if found else "not in the provider's account"
        url = f"{self._client.base_url}/api/v1/reconciliations/{event['work_id']}"
        async with session.post(url, json={**outcome, "note": note}) as response:
            if not response.ok:
                raise ClientError(f"the charge of {event['flow_id']} cannot be settled: {await response.text()}")


def is_held(event: Event) -> bool:
    """Whether an item waits for a person from this event on."""
    kind = event["type"]
    return kind == "work_held" or (kind == "work_not_completed" and bool((event["data"] or {}).get("hold")))
