"""The API client: one method for each route of an engine.

Answers are the engine's JSON documents, typed but not copied: a field that a newer engine adds is there
too. Everything that fails raises a ``ClientError``; the API key never appears in a message or a ``repr``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Unpack, cast

import aiohttp

from counterfoil.client.arguments import (
    Label,
    Moment,
    async_function,
    goal_list,
    label_text,
    mapping,
    optional_mapping,
    time_text,
)
from counterfoil.client.connection import part
from counterfoil.client.controls import ControlCalls
from counterfoil.client.documents import (
    Event,
    EventPage,
    Flow,
    FlowPage,
    FlowResult,
    Plan,
    Readiness,
    RedrivenByFilter,
    RedrivenFlow,
    RedrivenWork,
    Schedule,
    SchedulePage,
    StartedFlow,
    Step,
    StepPut,
    WorkDetail,
    WorkPage,
)
from counterfoil.client.errors import ConnectionFailed, Unavailable
from counterfoil.client.guarded import GuardedStep
from counterfoil.client.hooks import HookCalls
from counterfoil.client.inbox import InboxCalls
from counterfoil.client.reports import Backoff
from counterfoil.client.sse import events_of
from counterfoil.client.workflows import GateOptions, WorkflowCalls

POLL_SECONDS = 30.0
RECONNECT_SECONDS = 0.25
FINAL_EVENTS = frozenset({"flow_completed", "flow_failed", "flow_cancelled"})


class Client(WorkflowCalls, ControlCalls, HookCalls, InboxCalls):
    """Talks to one engine; an async context manager that holds its connections.

    ``key`` is the secret of an API key (none is needed on a loopback engine without keys).
    ``timeout`` bounds each single request; ``patience`` how long the client tries to resume a broken stream.
    """

    # -- steps ---------------------------------------------------------------------------------

    async def put_step(self, step_id: str, definition: Mapping[str, Any]) -> StepPut:
        """Register or change a step; running flows keep the definition that they were started with."""
        return cast(
            StepPut, await self._call("PUT", f"/api/v1/steps/{part(step_id)}", body=mapping("definition", definition))
        )

    async def get_step(self, step_id: str) -> Step:
        return cast(Step, await self._call("GET", f"/api/v1/steps/{part(step_id)}"))

    async def list_steps(self) -> list[Step]:
        document = await self._call("GET", "/api/v1/steps")
        return cast("list[Step]", document["steps"])

    async def delete_step(self, step_id: str) -> None:
        await self._call("DELETE", f"/api/v1/steps/{part(step_id)}")

    # -- flows ---------------------------------------------------------------------------------

    async def plan(self, goals: Sequence[str], init: Mapping[str, Any] | None = None) -> Plan:
        """Which steps a start with these goals and inputs would run, and why; nothing is started."""
        body = {"goals": goal_list(goals), "init": optional_mapping("init", init)}
        return cast(Plan, await self._call("POST", "/api/v1/plan", body=body))

    async def start_flow(
        self,
        goals: Sequence[str],
        init: Mapping[str, Any] | None = None,
        *,
        flow_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        init_keys: Mapping[str, str] | None = None,
        deadline_ms: int | None = None,
        on_deadline: Literal["fail", "cancel"] | None = None,
        compensate: bool | None = None,
    ) -> StartedFlow:
        """Start a flow. If ``flow_id`` is given, a repeat is refused (``FlowExists``).

        ``init_keys``: idempotency keys by step id, sent as they are in place of the keys that the engine makes.
        ``compensate=False``: completed steps are not compensated when the flow fails.
        """
        body: dict[str, Any] = {"goals": goal_list(goals), "init": optional_mapping("init", init)}
        given = {"flow_id": flow_id, "deadline_ms": deadline_ms, "on_deadline": on_deadline, "compensate": compensate}
        body.update({name: value for name, value in given.items() if value is not None})
        described = {
            "labels": optional_mapping("labels", labels),
            "metadata": optional_mapping("metadata", metadata),
            "init_keys": optional_mapping("init_keys", init_keys),
        }
        body.update({name: value for name, value in described.items() if value})
        return cast(StartedFlow, await self._call("POST", "/api/v1/flows", body=body))

    async def flow(self, flow_id: str) -> Flow:
        return cast(Flow, await self._call("GET", f"/api/v1/flows/{part(flow_id)}"))

    async def flows(
        self,
        *,
        status: str | None = None,
        label: Label | None = None,
        goal: str | None = None,
        since: Moment | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> FlowPage:
        """One page of flows, newest first; pass ``next_cursor`` as ``cursor`` for the next one.

        ``label``: a pair (name, value), or the text ``name:value``. ``since``: a datetime with a time zone, or a text.
        """
        wanted: dict[str, Any] = {"status": status, "goal": goal, "cursor": cursor, "limit": limit}
        if label is not None:
            wanted["label"] = label_text(label)
        if since is not None:
            wanted["since"] = time_text("since", since)
        return cast(FlowPage, await self._call("GET", "/api/v1/flows", query=wanted))

    async def result(self, flow_id: str, wait: float = POLL_SECONDS) -> FlowResult:
        """Wait up to ``wait`` seconds for the end of a flow; afterwards ``status`` is its state."""
        loop = asyncio.get_running_loop()
        over = loop.time() + wait
        path = f"/api/v1/flows/{part(flow_id)}/result"
        while True:
            poll = max(0.0, min(over - loop.time(), POLL_SECONDS))
            query = {"wait": f"{poll:.3f}"}
            answer = await self._exchange("GET", path, query=query, extra_seconds=poll)
            if answer.status != 202 or loop.time() >= over:
                return cast(FlowResult, answer.document)

    async def events(self, flow_id: str, *, cursor: str | None = None, limit: int | None = None) -> EventPage:
        """One page of a flow's journal, oldest first."""
        query = {"cursor": cursor, "limit": limit}
        return cast(EventPage, await self._call("GET", f"/api/v1/flows/{part(flow_id)}/events", query=query))

    async def cancel(self, flow_id: str, *, compensate: bool = False) -> Flow:
        """Cancel a flow; a repeat has no effect, ``FlowFinal`` if the flow has ended otherwise.

        ``compensate=True``: completed steps that define a compensation are compensated first.
        """
        body = {"compensate": True} if compensate else None
        return cast(Flow, await self._call("POST", f"/api/v1/flows/{part(flow_id)}/cancel", body=body))

    async def redrive(self, flow_id: str) -> RedrivenFlow:
        """Continue a failed flow from the steps that failed; ``FlowNotFailed`` if it has not failed."""
        return cast(RedrivenFlow, await self._call("POST", f"/api/v1/flows/{part(flow_id)}/redrive"))

    async def stream(self, flow_id: str | None = None, *, after: int | None = None) -> AsyncGenerator[Event, None]:
        """Follow the journal: of one flow until it has ended, or of all flows for as long as the caller iterates.

        ``after`` replays every event after that sequence number (0: from the start). A broken
        connection is resumed after the last event received: no gap, and no event twice.
        """
        path = "/api/v1/stream" if flow_id is None else f"/api/v1/flows/{part(flow_id)}/stream"
        loop = asyncio.get_running_loop()
        seen, connected, give_up_at = after, False, loop.time()
        while True:
            last = ""
            try:
                async with self._open_stream(path, seen) as response:
                    connected = True
                    async for event in events_of(response):
                        give_up_at = loop.time() + self._patience
                        if seen is None or event["seq"] > seen:
                            seen, last = event["seq"], event["type"]
                            yield event
                # a stopping engine ends its streams too: this one is over only after the flow's end, or without events
                if flow_id is not None and (not last or last in FINAL_EVENTS) and await self._has_ended(flow_id):
                    return
                give_up_at = loop.time() + self._patience
            except (ConnectionFailed, Unavailable, aiohttp.ClientError, TimeoutError) as error:
                if not connected or loop.time() >= give_up_at:
                    raise self._no_answer(error) from None
            await asyncio.sleep(RECONNECT_SECONDS)

    # -- schedules -----------------------------------------------------------------------------

    async def put_schedule(self, schedule_id: str, definition: Mapping[str, Any]) -> Schedule:
        """Create or change a schedule, also to pause (``"enabled": false``) and to resume it."""
        path = f"/api/v1/schedules/{part(schedule_id)}"
        return cast(Schedule, await self._call("PUT", path, body=mapping("definition", definition)))

    async def get_schedule(self, schedule_id: str) -> Schedule:
        return cast(Schedule, await self._call("GET", f"/api/v1/schedules/{part(schedule_id)}"))

    async def schedules(self, *, cursor: str | None = None, limit: int | None = None) -> SchedulePage:
        """One page of schedules, by id; pass ``next_cursor`` as ``cursor`` for the next one."""
        query = {"cursor": cursor, "limit": limit}
        return cast(SchedulePage, await self._call("GET", "/api/v1/schedules", query=query))

    async def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule; the flows that it has started continue."""
        await self._call("DELETE", f"/api/v1/schedules/{part(schedule_id)}")

    # -- work and health -----------------------------------------------------------------------

    async def work(
        self,
        *,
        status: str | None = None,
        step: str | None = None,
        overdue: bool = False,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> WorkPage:
        """One page of work items over all flows.

        ``status="gated_not_completed"``: steps that agents were allowed to run and have not reported, oldest first.
        """
        wanted = {"status": status, "step": step, "cursor": cursor, "limit": limit}
        if overdue:
            wanted["overdue"] = "true"
        return cast(WorkPage, await self._call("GET", "/api/v1/work", query=wanted))

    async def work_item(self, work_id: str) -> WorkDetail:
        """One work item with its attempts."""
        return cast(WorkDetail, await self._call("GET", f"/api/v1/work/{part(work_id)}"))

    async def redrive_work(self, work_id: str) -> RedrivenWork:
        """Replace a failed work item by a new one; ``WorkNotFailed`` if it has not failed."""
        return cast(RedrivenWork, await self._call("POST", f"/api/v1/work/{part(work_id)}/redrive"))

    async def redrive_matching(
        self,
        filter: Mapping[str, Any] | None = None,  # noqa: A002 - the name of the field in the request
        *,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> RedrivenByFilter:
        """Redrive all matching failed work; with ``dry_run`` only count it.

        ``filter``: any of ``step_id``, ``error_code``, ``since``, ``until`` and ``label``, with times and labels as in
        ``flows``. Without one, all failed work matches.
        """
        chosen = optional_mapping("filter", filter)
        for name in ("since", "until"):
            if chosen.get(name) is not None:
                chosen[name] = time_text(name, chosen[name])
        if chosen.get("label") is not None:
            chosen["label"] = label_text(chosen["label"])
        body: dict[str, Any] = {"filter": chosen, "dry_run": dry_run}
        if limit is not None:
            body["limit"] = limit
        return cast(RedrivenByFilter, await self._call("POST", "/api/v1/work/redrive", body=body))

    async def health(self) -> Readiness:
        """The readiness of the engine; raises ``Unavailable`` when it runs but is not ready."""
        return cast(Readiness, await self._call("GET", "/readyz"))

    # -- steps of an agent ---------------------------------------------------------------------

    def step(
        self,
        workflow_id: str,
        step_id: str,
        *,
        wait_for_approval: float | None = None,
        wait_for_claim: float | None = None,
        backoff: Backoff | None = None,
        **options: Unpack[GateOptions],
    ) -> GuardedStep:
        """Guard a step: ``async with client.step(...) as step`` calls the gate, and reports how the body ends.

        ``step.done``: the step was completed before, and ``step.output`` is its output. Otherwise the body does the
        work and sets ``step.output``. An exception is reported as a failed attempt, and propagates. Raises
        ``StepBlocked``, and ``ApprovalRequired`` unless it is approved within ``wait_for_approval`` seconds.

        A ``claim`` is prolonged while the body runs; a claim of another agent is awaited for ``wait_for_claim``
        seconds. A step that is completed, or has an approval, is not evaluated again. The output of a completed step is
        available after the end of the workflow, too.
        """
        return GuardedStep(
            self,
            workflow_id,
            step_id,
            options,
            wait_for_approval=wait_for_approval,
            wait_for_claim=wait_for_claim,
            backoff=backoff,
        )

    async def run_step(
        self,
        workflow_id: str,
        step_id: str,
        function: Callable[..., Awaitable[Mapping[str, Any] | None]],
        *,
        wait_for_approval: float | None = None,
        wait_for_claim: float | None = None,
        backoff: Backoff | None = None,
        **options: Unpack[GateOptions],
    ) -> dict[str, Any]:
        """The output of a step: that of the function, called with ``input`` as its arguments, or the recorded one.

        So policies and reviewers see the arguments of the function; it is not called if the step was completed
        before. It must be an async function.
        """
        async_function("function", function)
        guarded = self.step(
            workflow_id,
            step_id,
            wait_for_approval=wait_for_approval,
            wait_for_claim=wait_for_claim,
            backoff=backoff,
            **options,
        )
        async with guarded as step:
            if not step.done:
                step.output = await function(**options.get("input", {}))
        return dict(step.output or {})

    # -- the wire ------------------------------------------------------------------------------

    async def _has_ended(self, flow_id: str) -> bool:
        """A stream ends with its flow, or because the engine stops."""
        answer = await self._exchange("GET", f"/api/v1/flows/{part(flow_id)}/result", query={"wait": 0})
        return answer.status == 200
