"""Values whose check takes long: others are served meanwhile, and what takes too much work is refused."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from counterfoil.testing import MovableClock, Received, StepEndpoint
from tests.eventually import eventually
from tests.integration.conftest import StartProcesses
from tests.integration.planned import Workshop, each, gives, succeeded, takes
from tests.rawhttp import post_bytes, raw_connection
from tests.running import Connect, Node, StartNode
from tests.wire import Api, Reply

CPU_MS = 1_000
"""Long enough that much else is done meanwhile, even on a busy machine."""
OTHERS = 5

HERE = {"$ref": "#/$defs/n"}
SEVERAL_WAYS = {
    "$ref": "#/$defs/n",
    "$defs": {"n": {"anyOf": [{"type": "array", "items": HERE}, {"items": HERE, "minItems": 1, "type": "array"}]}},
}
"""Of n levels, the library tells in 2 to the n ways why a value does not fit."""
MANY_CONSTANTS = {"contains": {"anyOf": [{"const": number} for number in range(2_000)]}}
FRACTIONS = {"contains": {"enum": [number + 0.5 for number in range(4_000)]}}

LONG_LIST = list(range(20_000))
"""Too long to be checked on the spot, and no trouble at all."""
WHOLE_NUMBERS = {"items": {"type": "integer"}}


def nested(depth: int) -> Any:
    value: Any = 5
    for _ in range(depth):
        value = [value]
    return value


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    return await start_node(value_check_ms=CPU_MS)


@pytest.fixture
async def receipts(shop: Workshop) -> list[Received]:
    """Work of a plain step that can be completed while something else takes long."""
    await shop.waits("plain", {})
    for _ in range(OTHERS):
        await shop.api.start("plain")
    return [await shop.endpoint.received("/plain", number + 1) for number in range(OTHERS)]


async def served_meanwhile(api: Api, receipts: list[Received], long: Coroutine[Any, Any, Reply]) -> Reply:
    """The answer to a request that takes long; everything else is answered before it."""
    asked = asyncio.create_task(long)
    await asyncio.sleep(0)
    for received in receipts:
        await api.succeed(received)
        (await api.get("/healthz")).ok()
        (await api.get("/readyz")).ok()
    assert not asked.done(), "the others had to wait for it"
    return await asked


async def completed(shop: Workshop, schema: Any, value: Any) -> tuple[Reply, dict[str, Any]]:
    """Register a step that gives a value of this schema, have it give this one; the answer, and the flow's end."""
    await shop.waits("first", {"x": gives(schema=schema)})
    flow_id = await shop.api.start("first")
    received = await shop.endpoint.received("/first")
    answer = await shop.api.complete(received, {"success": True, "outputs": {"x": value}})
    return answer, await shop.end(flow_id)


# ------------------------------------------------------------------------------------------------ the three of issue 13


@pytest.mark.parametrize("depth", [14, 18, 60])
async def test_a_value_that_may_be_refused_in_many_ways_is_refused_at_once(shop: Workshop, depth: int) -> None:
    begun = time.perf_counter()
    answer, flow = await completed(shop, SEVERAL_WAYS, nested(depth))
    assert answer.ok()["status"] == "failed"
    assert (flow["error"]["code"], flow["error"]["attribute"]) == ("INVALID_OUTPUT", "x")
    assert flow["error"]["message"] == "x does not match its schema: the value: does not match the schema"
    assert time.perf_counter() - begun < 20


async def test_completions_go_on_while_an_output_is_checked_that_takes_too_much_work(
    shop: Workshop, receipts: list[Received]
) -> None:
    await shop.waits("first", {"x": gives("array", schema=MANY_CONSTANTS)})
    flow_id = await shop.api.start("first")
    received = await shop.endpoint.received("/first")
    result = {"success": True, "outputs": {"x": [-1] * 100_000}}
    answer = await served_meanwhile(shop.api, receipts, shop.api.complete(received, result))
    assert answer.ok()["status"] == "failed"
    error = (await shop.end(flow_id))["error"]
    assert (error["code"], error["attribute"]) == ("INVALID_OUTPUT", "x")
    assert error["message"] == "x takes too long to check against its schema"


@pytest.mark.parametrize("path", ["/api/v1/plan", "/api/v1/flows"])
async def test_completions_go_on_while_a_plan_is_checked_that_takes_too_much_work(
    shop: Workshop, receipts: list[Received], path: str
) -> None:
    await shop.waits("goal", {"x": takes("array", schema=MANY_CONSTANTS)})
    body = {"goals": ["goal"], "init": {"x": [-1] * 100_000}}
    answer = await served_meanwhile(shop.api, receipts, shop.api.post(path, body))
    [error] = answer.refused(422, "INVALID_INPUT")["errors"]
    assert error["place"] == "init.x"
    assert error["message"] == "takes too long to check against its schema, for step goal"


# ------------------------------------------------------------------------------------------------ other ways in


async def test_the_same_by_the_express_lane(shop: Workshop, receipts: list[Received]) -> None:
    await shop.waits("first", {"x": gives("array", schema=FRACTIONS)})
    await shop.api.start("first")
    received = await shop.endpoint.received("/first")
    result = orjson.dumps({"success": True, "outputs": {"x": [-1.5] * 5_000}})

    async def complete() -> Reply:
        async with raw_connection(received.webhook_url) as connection:
            connection.send(b"".join(post_bytes(received.webhook_url, result)))
            answer = await connection.answer()
            return Reply(answer.status, answer.headers, answer.content)

    answer = await served_meanwhile(shop.api, receipts, complete())
    assert answer.ok()["status"] == "failed"


async def test_the_same_by_the_answer_of_a_sync_step(shop: Workshop, receipts: list[Received]) -> None:
    await shop.sync("first", {"x": gives("array", schema=MANY_CONSTANTS)}, succeeded(x=[-1] * 100_000))
    flow_id = await shop.api.start("first")
    await shop.endpoint.received("/first")
    await served_meanwhile(shop.api, receipts, shop.api.get(f"/api/v1/flows/{flow_id}/result", wait="20"))
    assert (await shop.end(flow_id))["error"]["code"] == "INVALID_OUTPUT"


async def test_a_constant_that_takes_too_much_work_is_refused_at_registration(
    shop: Workshop, receipts: list[Received]
) -> None:
    attribute = {"role": "const", "schema": FRACTIONS, "value": [-1.5] * 5_000}
    body = {"endpoint": shop.endpoint.url("/x"), "attributes": {"x": attribute}}
    answer = await served_meanwhile(shop.api, receipts, shop.api.request("PUT", "/api/v1/steps/odd", json=body))
    [error] = answer.refused(422, "INVALID_STEP")["errors"]
    assert error["place"] == "attributes.x.value"


# ------------------------------------------------------------------------------------------------ long, and good


async def test_a_long_value_goes_from_step_to_step(shop: Workshop) -> None:
    """Given, fanned out over, handed to a flow inside, and gathered: each time it is checked elsewhere."""
    numbers: dict[str, Any] = {"schema": WHOLE_NUMBERS}
    await shop.sync("first", {"x": gives("array", **numbers)}, succeeded(x=LONG_LIST))
    await shop.sync(
        "second", {"x": takes("array", **numbers), "y": gives("array", **numbers)}, lambda given: {"y": given["x"]}
    )
    await shop.inner(
        "third", {"y": takes(**numbers), "z": gives(**numbers)}, {"goals": ["inside"], "outputs": {"z": "z"}}
    )
    await shop.sync(
        "inside", {"y": takes("array", **numbers), "z": gives("array", **numbers)}, lambda given: {"z": given["y"][1:]}
    )
    flow = await shop.run("third")
    assert flow["status"] == "completed", flow["error"]
    assert flow["outputs"]["z"] == LONG_LIST[1:]


async def test_the_place_is_told_of_what_is_wrong_in_a_long_value(shop: Workshop) -> None:
    _, flow = await completed(shop, WHOLE_NUMBERS, [*LONG_LIST, "text"])
    assert flow["error"]["message"] == f"x does not match its schema: /{len(LONG_LIST)}: must be of type integer"


async def test_each_element_of_a_long_value_is_checked(shop: Workshop) -> None:
    await shop.sync("goal", {"x": each("any", schema={"items": {"type": "integer"}})}, succeeded())
    few = [[1] * 5_000 for _ in range(8)]
    wrong = [*few, [1] * 5_000 + ["text"]]
    start = {"goals": ["goal"], "init": {"x": wrong}}
    [error] = (await shop.api.post("/api/v1/flows", start)).refused(422, "INVALID_INPUT")["errors"]
    assert error["message"] == "element 8 does not match its schema: /5000: must be of type integer, for step goal"
    assert (await shop.run("goal", init={"x": few}))["status"] == "completed"


async def test_a_schedule_starts_flows_with_a_long_value(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """Of two that are due at once one is quickly decided, and one is not: both are fired, once."""
    clock = MovableClock()
    api = connect(await start_node(clock=clock))
    shop = Workshop(api, endpoint)
    await shop.sync("goal", {"x": takes(schema=WHOLE_NUMBERS)}, succeeded())
    for name, value in (("short", [1]), ("long", LONG_LIST)):
        flow = {"goals": ["goal"], "init": {"x": value}, "labels": {"by": name}}
        (await api.request("PUT", f"/api/v1/schedules/{name}", json={"every_ms": 3_600_000, "flow": flow})).ok(201)
    clock.advance(hours=1)

    async def fired() -> list[str] | None:
        found = [flow["labels"]["by"] for flow in (await api.get("/api/v1/flows")).ok()["flows"]]
        return found if len(found) >= 2 else None

    assert sorted(await eventually(fired, what="both schedules")) == ["long", "short"]
    for name in ("short", "long"):
        assert (await api.get(f"/api/v1/schedules/{name}")).ok()["last_error"] is None


async def test_a_long_constant_is_checked_at_registration_and_taken_when_it_is_read(
    shop: Workshop, node: Node, start_node: StartNode, connect: Connect
) -> None:
    attribute = {"role": "const", "schema": WHOLE_NUMBERS, "value": [*LONG_LIST, 0.5]}
    body = {"endpoint": shop.endpoint.url("/goal"), "attributes": {"x": attribute}}
    [error] = (await shop.api.request("PUT", "/api/v1/steps/goal", json=body)).refused(422, "INVALID_STEP")["errors"]
    assert error["place"] == "attributes.x.value"
    attribute["value"] = LONG_LIST
    await shop.sync("goal", {"x": attribute}, succeeded())
    await node.stop()
    shop.api = connect(await start_node())
    assert (await shop.run("goal"))["status"] == "completed"
    assert shop.calls("goal") == [{"x": LONG_LIST}]


# ------------------------------------------------------------------------------------------------ the process


def children(of: int | None = None) -> set[int]:
    """Processes that check values, of those that this one has started, or another one."""
    found = set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            words = (directory / "cmdline").read_bytes()
            parent = (directory / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if b"counterfoil.checking.child" in words and int(parent) == (of or os.getpid()):
            found.add(int(directory.name))
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")


@needs_proc
async def test_a_process_that_was_killed_is_replaced(shop: Workshop) -> None:
    await shop.sync("goal", {"x": takes(schema=WHOLE_NUMBERS)}, succeeded())
    assert not children(), "there is none before it is needed"
    for number in range(3):
        assert (await shop.run("goal", init={"x": [*LONG_LIST, number]}))["status"] == "completed"
        [child] = children()
        os.kill(child, signal.SIGKILL)
        await eventually(partial(has_ended, child), what="its end")


def has_ended(process: int) -> bool:
    """Whether it has ended, and its exit status was not read yet."""
    return (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"


@needs_proc
async def test_an_engine_that_stops_gives_up_what_it_checks(
    node: Node, shop: Workshop, connect: Callable[[Node], Api]
) -> None:
    await shop.waits("goal", {"x": takes("array", schema=MANY_CONSTANTS)})
    body = {"goals": ["goal"], "init": {"x": [-1] * 100_000}}
    asked = asyncio.create_task(shop.api.post("/api/v1/flows", body))
    await eventually(children, what="the checking process")
    await node.stop()
    assert (await asked).refused(503, "UNAVAILABLE") is not None
    assert not children()


@needs_proc
async def test_a_check_does_not_outlive_its_engine(start_processes: StartProcesses, endpoint: StepEndpoint) -> None:
    engine, api = (await start_processes())[0]
    await Workshop(api, endpoint).waits("goal", {"x": takes("array", schema=MANY_CONSTANTS)})
    body = {"goals": ["goal"], "init": {"x": [-1] * 100_000}}
    asked = asyncio.create_task(api.post("/api/v1/flows", body))
    [child] = await eventually(lambda: children(engine.pid), what="the checking process")
    await engine.kill()
    await eventually(lambda: not (Path("/proc") / str(child)).exists(), what="its end")
    await asyncio.gather(asked, return_exceptions=True)
    assert "Traceback" not in engine.output()
