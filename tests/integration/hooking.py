"""Hook steps as tests write them: registered, waited for, and given payloads."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.hooks.tokens import made_token
from counterfoil.engine.flows.start import Start
from tests.eventually import eventually
from tests.running import Node
from tests.wire import Api, Reply

ORDER = {"order_id": {"role": "required", "type": "string"}}
CONFIRMED = {"confirmed": {"role": "output", "type": "boolean"}}
PAYLOADS = {"payloads": {"role": "output", "type": "array"}}
HOOK = "order"


async def put_hook(api: Api, step_id: str = HOOK, **definition: Any) -> Reply:
    """Register a hook step: ``order:{order_id}`` unless the test says otherwise."""
    hook = {"token": "order:{order_id}", **definition.pop("hook", {})}
    gives = PAYLOADS if hook.get("collect", 1) not in (0, 1) else CONFIRMED
    body = {"kind": "hook", "hook": hook, "attributes": {**ORDER, **gives}, **definition}
    return await api.request("PUT", f"/api/v1/steps/{step_id}", json=body)


def path_of(token: str) -> str:
    return f"/api/v1/hooks/{quote(token, safe='')}"


async def post(api: Api, token: str, payload: Any, delivery_id: str | None = None) -> Reply:
    """Deliver a payload; null is JSON, too."""
    headers = {} if delivery_id is None else {"webhook-id": delivery_id}
    data = b"null" if payload is None else None
    if data is not None:
        headers["Content-Type"] = "application/json"
    return await api.request("POST", path_of(token), json=payload, data=data, headers=headers)


async def waiting(api: Api, flow_id: str, step_id: str | None = None, status: str = "waiting") -> dict[str, Any]:
    """The work item of a hook, once its hook is in this state."""

    async def look() -> dict[str, Any] | None:
        item = await api.work(flow_id, step_id)
        return item if item.get("hook", {}).get("status") == status else None

    return await eventually(look, what=f"a hook that is {status}")


async def start_expecting(node: Node, *goals: str, **fields: Any) -> str:
    """Start a flow whose hooks are expected, as a start with a run key does."""
    engine = node.engine.engine
    command = Start(StartFlow(goals=list(goals), **fields), engine.context, expects=True)
    return str((await engine.commit.submit(command))["flow_id"])


def made(node: Node, flow_id: str, step_id: str, item: int = 0) -> str:
    """The made token of a hook."""
    return made_token(node.engine.engine.context.receipts, flow_id, step_id, item)


async def order(api: Api, order_id: str = "1", *goals: str, **fields: Any) -> str:
    """Start a flow whose hook waits for ``order:<order_id>``."""
    return await api.start(*(goals or (HOOK,)), init={"order_id": order_id}, **fields)
