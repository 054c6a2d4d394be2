"""Every command in the documentation, run as it stands, page by page; what is shown is what is printed."""

from __future__ import annotations

import re
import resource
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.acceptance.terminal import Terminals, follow
from tests.clients import require_client
from tests.integration.hooking import order, post, put_hook, start_expecting, waiting
from tests.pages import DOCS, ROOT, blocks_of, needs
from tests.running import Connect, Node, StartNode
from tests.wire import Api

PAGE_SECONDS = 120
RUNNING = [page for page in DOCS if any(block.runs for block in blocks_of(page))]


@pytest.fixture
async def terminals(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Terminals]:
    opened = Terminals(tmp_path, unused_tcp_port_factory)
    await opened.open()
    yield opened
    await opened.close()


@pytest.mark.timeout(PAGE_SECONDS)
@pytest.mark.parametrize("page", RUNNING, ids=lambda page: str(page.relative_to(ROOT)))
async def test_a_page_works_as_pasted(page: Path, terminals: Terminals) -> None:
    require_client(*needs(page))
    await follow(page, terminals)


async def test_a_failing_command_is_noticed(terminals: Terminals) -> None:
    """The proof is worth nothing if a broken command in the middle of a block passes."""
    assert (await terminals.run("true\nfalse | cat\ntrue\n")).failed == ""
    assert "false" in (await terminals.run("true\nfalse\ntrue\n")).failed
    assert "grep" in (await terminals.run("echo a | grep b\necho c\n")).failed


async def test_a_session_keeps_its_variables_and_shows_the_ports_of_the_page(terminals: Terminals) -> None:
    await terminals.run("url=http://127.0.0.1:8080/x")
    printed = await terminals.run('echo "$url"; echo oops >&2')
    assert (printed.output, printed.errors, printed.failed) == ("http://127.0.0.1:8080/x\n", "oops\n", "")
    assert ":8080" not in terminals.as_run("http://127.0.0.1:8080/x")


def documented_data() -> dict[str, tuple[set[str], set[str]]]:
    """Event type -> names that its data always has, and names that it may have (behind the semicolon)."""
    page = (ROOT / "docs" / "reference" / "journal.md").read_text("utf-8")
    found = {}
    for kind, data in re.findall(r"^\| `(\w+)` \| .+? \| (.+) \|$", page, re.MULTILINE):
        always, _, sometimes = re.sub(r"\(.*?\)", "", data).partition(";")
        found[kind] = (set(re.findall(r"`(\w+)`", always)), set(re.findall(r"`(\w+)`", sometimes)))
    return found


async def eventful_attempts(api: Api, endpoint: StepEndpoint) -> list[str]:
    """Flows of one step, with all that can happen to an attempt."""
    work = {"max_retries": 1, "init_backoff_ms": 60_000, "max_backoff_ms": 60_000}
    flows = []

    async def start(step_id: str, *more: str, answer: Answer | None = None, **definition: Any) -> Any:
        endpoint.answer(f"/{step_id}", answer or Answer())
        await api.put_step(step_id, endpoint.url(f"/{step_id}"), work=work, **definition)
        flows.append(await api.start(step_id, *more))
        return await endpoint.received(f"/{step_id}")

    good = await start("good", answer=Answer(body="not JSON"))
    await api.until_acknowledged(flows[-1])
    await api.post(f"{good.webhook_url}/heartbeat", {"progress": 0.5})
    await api.succeed(good, text="done")

    bad = await start("bad", "good")
    await api.complete(bad, {"success": False, "error": "no"})

    unavailable = await start("unavailable", answer=Answer(status=503), cancel_url=endpoint.url("/told"))
    await api.until_work(flows[-1], "not_completed")
    await api.complete(unavailable, {"success": False, "retriable": True, "retry_after": 90})
    (await api.post(f"/api/v1/flows/{flows[-1]}/cancel")).ok()
    await api.until_event(flows[-1], "cancel_delivered")

    flows.append(await unsent_attempt(api, endpoint))

    endpoint.answer("/deaf", Answer(status=404))
    await start("untold", cancel_url=endpoint.url("/deaf"))
    (await api.post(f"/api/v1/flows/{flows[-1]}/cancel")).ok()
    await api.until_event(flows[-1], "cancel_undelivered")
    return flows


async def unsent_attempt(api: Api, endpoint: StepEndpoint) -> str:
    """A flow whose one step was approved, and could not be sent for want of descriptors."""
    approval = {"approval": {"approvals": 1}}
    elsewhere = endpoint.url("/unsent").replace("127.0.0.1", "localhost")  # no connection is open to there
    await api.put_step("unsent", elsewhere, work={"ack_timeout_ms": 200}, control=approval)
    flow_id = await api.start("unsent")
    await api.until_work(flow_id, "held")
    [asked] = (await api.get("/api/v1/approvals", status="pending")).ok()["approvals"]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        (await api.post(f"/api/v1/approvals/{asked['approval_id']}/approve")).ok()
        await api.until_work(flow_id, "not_completed")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    await endpoint.received("/unsent")
    return flow_id


async def eventful_plans(api: Api, endpoint: StepEndpoint) -> list[str]:
    """Flows of several steps, with all that can happen to a step."""
    endpoint.answer("/yes", Answer(body={"success": True, "outputs": {"x": 1, "y": 1}}))
    endpoint.answer("/no", Answer(body={"success": False, "error": "no"}))
    gives, takes = {"role": "output"}, {"role": "required"}
    yes, no, later = endpoint.url("/yes"), endpoint.url("/no"), endpoint.url("/later")

    many = {"attributes": {"n": {**takes, "for_each": True}}, "predicate": "inputs.n > 0", "kind": "sync"}
    await api.put_step("many", yes, fan_out={"parallelism": 1}, **many)
    fanned = await api.start("many", init={"n": [0, 1, 2]})
    await api.put_step("unwanted", yes, predicate="false", kind="sync")
    skipped = await api.start("unwanted")

    inner = {"kind": "flow", "flow": {"goals": ["many"], "inputs": {"n": "n"}}, "attributes": {"n": takes}}
    (await api.request("PUT", "/api/v1/steps/inner", json=inner)).ok(201)
    outer = await api.start("inner", init={"n": [1]})
    assert (await api.final(outer))["status"] == "completed"
    child = (await api.flow(outer))["steps"]["inner"]["work"][0]["child_flow_id"]
    await api.put_step("wrong", no, kind="sync")
    (await api.request("PUT", "/api/v1/steps/around", json={"kind": "flow", "flow": {"goals": ["wrong"]}})).ok(201)
    around = await api.start("around")
    assert (await api.final(around))["status"] == "failed"
    (await api.post(f"/api/v1/flows/{around}/redrive")).ok()
    revived = (await api.flow(around))["steps"]["around"]["work"][0]["child_flow_id"]

    await api.put_step("later", later, attributes={"z": gives})
    patient = {"role": "optional", "timeout_ms": 60_000}
    await api.put_step("patient", yes, kind="sync", attributes={"z": patient})
    waited = await api.start("later", "patient", deadline_ms=3_600_000)
    await api.until_event(waited, "step_waiting")
    await api.succeed(await endpoint.received("/later"), z=1)

    undone = {"kind": "sync", "attributes": {"x": gives}, "compensate": {"endpoint": yes}}
    stuck = {"kind": "sync", "attributes": {"x": takes, "y": gives}, "compensate": {"endpoint": no}}
    await api.put_step("undone", yes, **undone)
    await api.put_step("stuck", yes, **stuck)
    await api.put_step("broken", no, kind="sync", attributes={"y": takes, "z": gives})
    await api.put_step("blocked", yes, kind="sync", attributes={"z": takes, "v": gives}, wait_for={"of": ["broken"]})
    redriven = await api.start("blocked", deadline_ms=3_600_000)
    assert (await api.final(redriven))["status"] == "failed"
    (await api.post(f"/api/v1/flows/{redriven}/redrive")).ok()
    assert (await api.final(redriven))["status"] == "failed"

    slow = {"endpoint": endpoint.url("/slow"), "kind": "async"}
    await api.put_step("undone", yes, **{**undone, "compensate": slow})
    await api.put_step("last", no, kind="sync", attributes={"x": takes})
    stopped = await api.start("last")
    await endpoint.received("/slow")
    (await api.post(f"/api/v1/flows/{stopped}/cancel")).ok()
    older = await api.start("later", idempotency_key="k", retain_key_for="1h")
    newer = await api.start("later", idempotency_key="k", on_conflict="supersede")
    for flow_id in (fanned, skipped, waited):
        assert (await api.final(flow_id))["status"] == "completed"
    return [fanned, skipped, outer, child, around, revived, waited, redriven, stopped, older, newer]


async def eventful_gates(api: Api) -> list[str]:
    """Workflows with all that the gate and people can say."""

    async def begin() -> str:
        created = await api.post("/api/v1/workflows", {"workflow_name": "w", "idempotency_scope": "global"})
        workflow_id: str = created.ok(201)["workflow_id"]
        return workflow_id

    async def ask(workflow_id: str, step_id: str, **fields: Any) -> dict[str, Any]:
        answer: dict[str, Any] = (await api.post(f"/api/v1/workflows/{workflow_id}/steps/{step_id}/gate", fields)).ok()
        return answer

    async def held(step_id: str, **terms: Any) -> str:
        policy = {"name": step_id, "match": {"step_id": step_id}, "action": {"type": "require_approval", **terms}}
        (await api.request("PUT", f"/api/v1/policies/{step_id}", json=policy)).ok(201)
        return f"/api/v1/approvals/{(await ask(first, step_id))['approval_id']}"

    first, second = await begin(), await begin()
    await ask(first, "done", idempotency_key="k")
    done = f"/api/v1/workflows/{first}/steps/done/complete"
    for error in ("no", "not yet"):
        await api.post(done, {"success": False, "error": error, "metadata": {"m": 1}, "idempotency_key": "k"})
    await api.post(done, {"output": {"a": 1}, "idempotency_key": "k"})
    (await api.post(f"/api/v1/workflows/{first}/checkpoints/resume")).ok()
    assert (await ask(second, "done", idempotency_key="k", on_duplicate="replay"))["replayed"]
    (await api.post(f"{await held('yes')}/approve")).ok()
    (await api.post(f"{await held('no')}/reject")).ok()
    (await api.post(f"{await held('half', approvals=2)}/approve")).ok()
    await held("late", expires_in="1s")
    await api.until_event(first, "approval_expired")
    return [first, second]


async def eventful_effects(api: Api, endpoint: StepEndpoint) -> list[str]:
    """Flows whose attempts have unknown outcomes, and flows that share a key."""
    work = {"init_backoff_ms": 60_000, "max_backoff_ms": 60_000}
    reconcile, shared = {"policy": "reconcile"}, {"policy": "reconcile", "scope": "global"}

    async def beat(received: Received) -> Answer:
        (await api.post(f"{received.webhook_url}/heartbeat", {})).ok()
        return Answer()

    endpoint.answer("/quick", beat)
    await api.put_step("quick", endpoint.url("/quick"), work=work)
    quick = await api.start("quick")

    endpoint.answer("/lost", Answer(status=500))
    endpoint.answer("/status", Answer(status=404))
    await api.put_step("lost", endpoint.url("/lost"), work=work, effect=reconcile, status_url=endpoint.url("/status"))
    resumed = await api.start("lost")
    await api.until_event(resumed, "work_probed")
    await beat(await endpoint.received("/lost"))

    endpoint.answer("/running", Answer(status=500))
    endpoint.answer("/running/status", Answer(body={"state": "running"}))
    often = {"work": {"init_backoff_ms": 10}, "status_url": endpoint.url("/running/status")}
    await api.put_step("running", endpoint.url("/running"), effect=reconcile, **often)
    running = await api.start("running")
    await api.until_event(running, "work_probed", 2)  # the first answer makes the item active, the second finds it so

    settled = await api.start("lost")
    held = await api.until_work(settled, "not_completed", hold="reconcile")
    (await api.post(f"/api/v1/flows/{settled}/cancel")).ok()
    (await api.post(f"/api/v1/reconciliations/{held['work_id']}", {"outcome": "not_applied"})).ok()

    flows = [quick, resumed, running, settled]
    for step_id, effect, report in (
        ("reused", {"policy": "dedupe"}, {"success": True}),
        ("failed", {"policy": "dedupe"}, {"success": False, "error": "no"}),
        ("freed", {"policy": "dedupe"}, None),
        ("doubtful", shared, None),
    ):
        await api.put_step(step_id, endpoint.url(f"/{step_id}"), work=work, effect=effect)
        owner, waiting = [await api.start(step_id, init_keys={step_id: "k"}) for _ in range(2)]
        received = await endpoint.received(f"/{step_id}")
        await api.until_event(waiting, "dedup_wait")
        if report is None:
            (await api.post(f"/api/v1/flows/{owner}/cancel")).ok()
            await api.until_event(waiting, "dedup_ready" if step_id == "freed" else "dedup_unknown")
        else:
            (await api.complete(received, report)).ok()
            await api.final(waiting)
        flows += [owner, waiting]
    return flows


async def eventful_hooks(api: Api, node: Node, endpoint: StepEndpoint) -> list[str]:
    """Flows with a hook: expected, in the queue, registered, given payloads, past its deadline, redriven."""
    quick = {"deadline_ms": 400}
    await put_hook(api, "queueing", hook={"on_conflict": "wait", "collect": 2}, work=quick)
    owner, queued = await order(api, "q", "queueing"), await order(api, "q", "queueing")
    await api.until_event(queued, "hook_queued")
    (await api.post(f"/api/v1/flows/{owner}/cancel")).ok()
    await api.until_event(queued, "hook_timed_out")
    await put_hook(api, "blocking", hook={})
    blocking = await order(api, "q", "blocking")
    (await api.post(f"/api/v1/flows/{queued}/redrive")).ok()
    await api.until_event(queued, "hook_queued", 2)
    (await api.post(f"/api/v1/flows/{blocking}/cancel")).ok()
    for number in (1, 2):
        (await post(api, "order:q", number, f"d{number}")).ok()
    await put_hook(api, "ending", hook={"on_timeout": "complete"}, work=quick)
    ending = await order(api, "e", "ending")
    await api.final(ending)
    attributes = {"order_id": {"role": "required"}, "checked": {"role": "output"}}
    await api.put_step("checking", endpoint.url("/checking"), attributes=attributes)
    for step_id, token in (("later", "later:{order_id}"), ("linked", None)):
        late = {"order_id": {"role": "required"}, "checked": {"role": "required"}, step_id: {"role": "output"}}
        await put_hook(api, step_id, hook={"token": token}, attributes=late)
    expecting = await start_expecting(node, "later", "linked", init={"order_id": "1"})
    (await post(api, "later:1", {"later": 1})).ok()
    await put_hook(api, "taking", hook={"collect": 3}, accept={"answer": {"accepted": 202}})
    taking = await order(api, "t", "taking")
    item = await waiting(api, taking)
    (await post(api, "order:t", 1)).ok(202)
    await replay(api, taking)
    (await api.post(f"/api/v1/work/{item['work_id']}/payload", {})).ok()
    return [owner, queued, blocking, ending, expecting, taking]


async def eventful_reports(api: Api, endpoint: StepEndpoint) -> list[str]:
    """Reports with each outcome: for a vendor that wants another status than 200, and replayed by an operator."""
    work = {"max_retries": 1, "init_backoff_ms": 60_000, "max_backoff_ms": 60_000}
    again = {"success": False, "retriable": True}
    outcomes = ({"success": True}, {"success": False, "error": "no"}, again)
    flows = []
    for step_id, more in (
        ("answering", {"accept": {"answer": {"accepted": 202}}}),
        ("signed", {"require_signature": True}),
    ):
        for path, status, reports in (
            (step_id, 200, outcomes),
            (f"busy-{step_id}", 503, ({**again, "retry_after": 90},)),
        ):
            endpoint.answer(f"/{path}", Answer(status=status))
            await api.put_step(path, endpoint.url(f"/{path}"), work=work, **more)
            for number, report in enumerate(reports, 1):
                flows.append(await api.start(path))
                received = await endpoint.received(f"/{path}", number)
                await api.until_work(flows[-1], "active" if status == 200 else "not_completed")
                if (await api.complete(received, report)).status == 401:
                    await replay(api, flows[-1])
    return flows


async def replay(api: Api, flow_id: str) -> None:
    """Replay the one callback of a flow."""
    (callback,) = (await api.get("/api/v1/callbacks", flow=flow_id)).ok()["callbacks"]
    (await api.post(f"/api/v1/callbacks/{callback['callback_id']}/replay")).ok()


async def test_the_journal_is_as_its_reference_says(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """Flows that make every type of event at least once."""
    node = await start_node(callbacks={"keep_bodies": "all"}, signing_secret="whsec_c2VjcmV0")
    api = connect(node)
    flows = [*await eventful_attempts(api, endpoint), *await eventful_plans(api, endpoint), *await eventful_gates(api)]
    flows += [*await eventful_effects(api, endpoint), *await eventful_hooks(api, node, endpoint)]
    flows += await eventful_reports(api, endpoint)
    documented = documented_data()
    events = [event for flow_id in flows for event in await api.events(flow_id)]
    assert {event["type"] for event in events} == set(documented)
    seen: dict[str, set[str]] = {kind: set() for kind in documented}
    for event in events:
        always, sometimes = documented[event["type"]]
        assert always <= set(event["data"]) <= always | sometimes, event
        seen[event["type"]] |= set(event["data"])
    assert seen == {kind: always | sometimes for kind, (always, sometimes) in documented.items()}
