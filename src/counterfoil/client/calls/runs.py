"""Starting flows: with a run key, at most one flow with that key is active, and the caller decides about the others."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, cast, get_args

from counterfoil.client.arguments import goal_list, mapping, optional_mapping
from counterfoil.client.connection import ApiConnection, part
from counterfoil.client.documents import Flow, ReusedFlow, StartedFlow
from counterfoil.client.errors import RunKeyConflict, RunKeyReused, UnknownFlow

ConflictStrategy = Literal["reject", "adopt", "signal", "supersede"]
"""How a start is answered while another flow owns its run key."""
InspectOwner = Callable[[Flow], ConflictStrategy | Awaitable[ConflictStrategy]]
"""A function, async or not, that is given the owner of the key and returns the strategy."""

_STRATEGIES = get_args(ConflictStrategy)
_FLOWS = "/api/v1/flows"


class RunCalls(ApiConnection):
    """Flow starts."""

    async def start(
        self,
        goals: Sequence[str],
        init: Mapping[str, Any] | None = None,
        *,
        flow_id: str | None = None,
        idempotency_key: str | None = None,
        on_conflict: ConflictStrategy | InspectOwner | None = None,
        retain_key_for: str | int | None = None,
        retain_failed: bool | None = None,
        signal: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        init_keys: Mapping[str, str] | None = None,
        deadline_ms: int | None = None,
        on_deadline: Literal["fail", "cancel"] | None = None,
        compensate: bool | None = None,
    ) -> StartedFlow | ReusedFlow:
        """Start a flow, or get the flow that owns its run key: ``reused`` in the answer says which.

        ``idempotency_key``: the run key. ``on_conflict``: what happens while another flow owns it: ``"reject"``
        (``RunKeyConflict``, the default), ``"adopt"`` (the answer is that flow), ``"signal"`` (``signal`` is delivered
        to a hook of that flow) or ``"supersede"`` (that flow is cancelled). A function is given the document of that
        flow and returns one of the four. What it returns is done only if the owner, its state and the states of its
        steps are still those that the function saw; otherwise it is asked again.

        ``retain_key_for``: how long after the end of the flow the same start is answered with its result, such as
        ``"24h"``; ``retain_failed=True``: after a failure or a cancellation, too. The same key with other goals or
        another ``init`` raises ``RunKeyReused``. ``signal``: ``hook``, ``payload`` and perhaps ``delivery_id``.

        ``flow_id``: a repeat is refused (``FlowExists``). ``init_keys``: idempotency keys by step id, sent as they are
        in place of the keys that the engine makes. ``compensate=False``: completed steps are not compensated when the
        flow fails.
        """
        body: dict[str, Any] = {"goals": goal_list(goals), "init": optional_mapping("init", init)}
        given = {
            "flow_id": flow_id,
            "idempotency_key": idempotency_key,
            "retain_key_for": retain_key_for,
            "retain_failed": retain_failed,
            "signal": None if signal is None else mapping("signal", signal),
            "deadline_ms": deadline_ms,
            "on_deadline": on_deadline,
            "compensate": compensate,
        }
        body.update({name: value for name, value in given.items() if value is not None})
        described = {
            "labels": optional_mapping("labels", labels),
            "metadata": optional_mapping("metadata", metadata),
            "init_keys": optional_mapping("init_keys", init_keys),
        }
        body.update({name: value for name, value in described.items() if value})
        if callable(on_conflict):
            if idempotency_key is None:
                raise ValueError("on_conflict is a function, but there is no idempotency_key: no other flow can own it")
            return await self._start_inspecting(body, on_conflict)
        if on_conflict is not None:
            body["on_conflict"] = on_conflict
        return await self._start(body)

    async def _start(self, body: dict[str, Any]) -> StartedFlow | ReusedFlow:
        return cast("StartedFlow | ReusedFlow", await self._call("POST", _FLOWS, body=body))

    async def _start_inspecting(self, body: dict[str, Any], inspect_owner: InspectOwner) -> StartedFlow | ReusedFlow:
        """Start, and ask the function whenever another flow owns the key."""
        while True:
            refusal: RunKeyConflict | RunKeyReused | None = None
            owner: Flow | None
            try:
                answer = await self._start(body)
                if not answer["reused"]:
                    return answer
                owner = cast(ReusedFlow, answer)  # it has ended, and its key is retained
            except (RunKeyConflict, RunKeyReused) as conflict:
                refusal, owner = conflict, await self._owner(conflict.flow_id)
            if owner is None:
                continue  # it is gone: so is the conflict
            strategy = await _asked(inspect_owner, owner)
            if refusal is None and strategy != "supersede":
                return answer
            if refusal is not None and strategy == "reject":
                raise refusal
            try:
                return await self._start({**body, "on_conflict": strategy, "if_owner": _as_seen(owner)})
            except RunKeyConflict as conflict:
                if not conflict.details.get("owner_changed"):
                    raise

    async def _owner(self, flow_id: str) -> Flow | None:
        try:
            return cast(Flow, await self._call("GET", f"{_FLOWS}/{part(flow_id)}"))
        except UnknownFlow:
            return None


async def _asked(inspect_owner: InspectOwner, owner: Flow) -> ConflictStrategy:
    answer = inspect_owner(owner)
    strategy = await answer if inspect.isawaitable(answer) else answer
    if strategy not in _STRATEGIES:
        raise ValueError(f"on_conflict must return one of {', '.join(_STRATEGIES)}, not {strategy!r}")
    return strategy


def _as_seen(owner: Flow) -> dict[str, Any]:
    """The states that a decision about the owner may have been based on."""
    steps = {step_id: step["status"] for step_id, step in owner["steps"].items()}
    return {"flow_id": owner["flow_id"], "status": owner["status"], "steps": steps}
