"""An engine moves from SQLite to PostgreSQL by ``counterfoil store copy``: its clients see no difference."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

from counterfoil.app import run_doctor
from counterfoil.settings import Settings
from counterfoil.testing import Answer, Received, StepEndpoint
from tests.acceptance.conftest import ClientOf, NewEngine
from tests.acceptance.processes import EngineProcess, run_command
from tests.acceptance.starting import refused
from tests.by_hand import by_hand
from tests.databases import NewDatabase
from tests.wire import JSON, Api

pytestmark = pytest.mark.sqlite_only  # where it begins; the target is always PostgreSQL

LATER = {"Retry-After": "3000"}
OUTPUTS = r'{"text":"naïve 🦆 \u2028 \u0000 \\u0000","big":123456789012345678901234567890,"small":-0.1e-7}'
TABLES = (
    *("step_versions", "steps", "flows", "flow_inputs", "flow_labels", "flow_steps"),
    *("work", "journal", "cancel_calls", "schedules", "receipt_secret"),
)


@dataclass
class Old:
    """An engine on SQLite with a flow in every state, and what its workers hold."""

    api: Api
    endpoint: StepEndpoint
    held: dict[str, Received] = field(default_factory=dict)

    async def live(self) -> None:
        for step_id in ("done", "bad", "patient", "narrow", "busy", "told"):
            work = {"parallelism": 1} if step_id == "narrow" else {"max_retries": 5}
            more = {"cancel_url": self.endpoint.url("/cancel")} if step_id == "told" else {}
            await self.api.put_step(step_id, self.endpoint.url(f"/{step_id}"), work=work, **more)
        for path in ("/busy", "/cancel"):
            self.endpoint.answer(path, Answer(503, headers=LATER))
        await self._end_some()
        await self._leave_some_open()
        await self.api.put_step("done", self.endpoint.url("/done"), name="its second version")
        assert (await self.api.request("DELETE", "/api/v1/steps/bad")).status == 204
        for schedule_id in ("nightly", "weekly", "yearly"):
            body = {"cron": "0 0 29 2 *", "timezone": "Europe/Vienna", "flow": {"goals": ["done"]}}
            (await self.api.request("PUT", f"/api/v1/schedules/{schedule_id}", json=body)).ok(201)

    async def _end_some(self) -> None:
        for number in range(3):
            labels = {"tëam": "🦆", "number": str(number)}
            await self._start("done", f"done-{number}", labels=labels, init={"größe": "\0", "n": number})
            body = f'{{"success":true,"outputs":{OUTPUTS}}}'.encode()
            (await self._report(f"done-{number}", body)).ok()
        await self._start("bad", "bad")
        (await self._report("bad", '{"success":false,"error":"zu groß"}'.encode())).ok()
        await self._start("told", "told")
        (await self.api.post("/api/v1/flows/told/cancel")).ok()
        await self.endpoint.received("/cancel")

    async def _leave_some_open(self) -> None:
        await self._start("patient", "patient")
        await self.api.until_acknowledged("patient")
        beat = {"progress": 0.25, "message": "½ von 🦆"}
        (await self.api.post(f"{self.held['patient'].webhook_url}/heartbeat", beat)).ok()
        await self._start("narrow", "first")
        await self.api.until_acknowledged("first")
        await self.api.start("narrow", flow_id="second")
        await self._start("busy", "busy")
        await self.api.until_work("busy", "not_completed")

    async def _start(self, step_id: str, flow_id: str, **fields: Any) -> None:
        seen = len(self.endpoint.requests(f"/{step_id}"))
        await self.api.start(step_id, flow_id=flow_id, **fields)
        self.held[flow_id] = await self.endpoint.received(f"/{step_id}", seen + 1)

    async def _report(self, flow_id: str, body: bytes) -> Any:
        return await self.api.request("POST", self.held[flow_id].webhook_url, data=body, headers=JSON)


async def pages(api: Api, path: str, **params: str) -> list[bytes]:
    """Every page of a list, as it was sent: its cursors too."""
    found: list[bytes] = []
    cursor: dict[str, str] = {}
    while True:
        reply = await api.get(path, **params, **cursor)
        page = reply.ok()
        found.append(reply.content)
        if not page.get("next_cursor") or len(found) > 100:
            return found
        cursor = {"cursor": str(page["next_cursor"])}


async def all_there_is(api: Api) -> dict[str, list[bytes]]:
    """Whatever can be asked of an engine, page by page."""
    flows = [flow["flow_id"] for flow in (await api.get("/api/v1/flows", limit="500")).ok()["flows"]]
    work = [item["work_id"] for item in (await api.get("/api/v1/work", limit="500")).ok()["work"]]
    seen = {
        "flows": await pages(api, "/api/v1/flows", limit="2"),
        "active": await pages(api, "/api/v1/flows", limit="2", status="active"),
        "completed": await pages(api, "/api/v1/flows", limit="1", status="completed"),
        "labelled": await pages(api, "/api/v1/flows", limit="2", label="tëam:🦆"),
        "goal": await pages(api, "/api/v1/flows", limit="1", goal="narrow"),
        "work": await pages(api, "/api/v1/work", limit="2"),
        "waiting": await pages(api, "/api/v1/work", limit="1", status="active"),
        "steps": await pages(api, "/api/v1/steps"),
        "schedules": await pages(api, "/api/v1/schedules", limit="2"),
    }
    assert len(seen["flows"]) == 5
    for flow_id in flows:
        seen[flow_id] = await pages(api, f"/api/v1/flows/{flow_id}")
        seen[f"events of {flow_id}"] = await pages(api, f"/api/v1/flows/{flow_id}/events", limit="3")
    for work_id in work:
        seen[work_id] = await pages(api, f"/api/v1/work/{work_id}")
    return seen


@pytest.fixture
async def old(new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint) -> tuple[EngineProcess, Old]:
    engine = new_engine()
    await engine.start()
    old = Old(client_of(engine), endpoint)
    await old.live()
    return engine, old


async def test_an_engine_moves_and_nothing_is_lost(
    old: tuple[EngineProcess, Old], new_engine: NewEngine, client_of: ClientOf, new_database: NewDatabase
) -> None:
    engine, before = old
    seen = await all_there_is(before.api)
    last_seq = max(event["seq"] for event in await before.api.events("busy"))
    dsn = new_database(empty=True)
    assert await engine.stop() == 0
    file = engine.data / "counterfoil.db"
    content, secret = file.read_bytes(), (engine.data / "receipt.secret").read_text().strip()

    code, output, errors = await run_command("store", "copy", str(engine.data), dsn)
    assert (code, errors) == (0, "")
    rows = {name: by_hand(dsn, f"SELECT count(*) FROM {name}")[0][0] for name in TABLES}
    assert all(rows.values()), rows
    for name in TABLES[:-1]:
        assert re.search(rf"^{name} +{rows[name]:,} +[0-9a-f]{{16}}$", output, re.MULTILINE), output
    assert "copied and verified" in output
    assert secret not in output
    assert file.read_bytes() == content
    assert by_hand(dsn, "SELECT secret FROM receipt_secret") == [(secret,)]
    other = new_engine(engine.data.parent / "other", store=dsn, receipt_secrets="another-secret-0123456789")
    assert "--new-receipt-secret" in await refused(other), "what is out is known to be signed by the old one"

    new = new_engine(engine.data.parent / "new", store=dsn)
    await new.start()
    api = client_of(new)
    assert await all_there_is(api) == seen
    await go_on(api, before, last_seq)
    assert await new.stop() == 0
    assert run_doctor(Settings(store=dsn)) == []


async def go_on(api: Api, before: Old, last_seq: int) -> None:
    """Receipts of before are good, what was recorded stays, what waited moves up, and new flows are the newest."""

    async def report(flow_id: str, result: Any) -> Any:
        return await api.post(api.url + urlsplit(before.held[flow_id].webhook_url).path, result)

    for flow_id in ("patient", "first", "busy"):
        assert (await report(flow_id, {"success": True, "outputs": {"late": flow_id}})).ok()["verdict"] == "accepted"
        assert (await api.final(flow_id))["outputs"] == {"late": flow_id}
    assert (await report("bad", {"success": True})).code == "CONFLICTING_RESULT"
    assert (await report("told", {"success": True})).code == "WORK_CANCELLED"
    moved_up = await before.endpoint.received("/narrow", 2)
    assert moved_up.metadata["flow_id"] == "second"
    await api.succeed(moved_up)
    await api.start("done", flow_id="newest")
    await api.succeed(await before.endpoint.received("/done", 4))
    assert (await api.get("/api/v1/flows", limit="1")).ok()["flows"][0]["flow_id"] == "newest"
    assert min(event["seq"] for event in await api.events("newest")) > last_seq


async def test_what_was_being_sent_when_the_old_engine_died_is_found_by_the_new_one(
    new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint, new_database: NewDatabase
) -> None:
    endpoint.answer("/slow", Answer(fault="silent"), Answer())
    engine = new_engine()
    await engine.start()
    api = client_of(engine)
    await api.put_step("slow", endpoint.url("/slow"), work={"max_retries": 3})
    await api.start("slow", flow_id="cut")
    await endpoint.received("/slow")
    await engine.kill()
    dsn = new_database(empty=True)
    source = f"sqlite:///{engine.data / 'counterfoil.db'}"
    code, output, errors = await run_command("store", "copy", source, dsn)
    assert (code, errors) == (0, ""), output
    assert by_hand(dsn, "SELECT count(*) FROM work WHERE owner IS NOT NULL AND status = 'active'") == [(1,)]

    new = new_engine(engine.data.parent / "new", store=dsn)
    await new.start()
    again = await endpoint.received("/slow", 2)
    api = client_of(new)
    assert (await api.until_event("cut", "work_not_completed"))["data"]["error"]["code"] == "INTERRUPTED"
    await api.succeed(again, good=1)
    assert (await api.final("cut"))["outputs"] == {"good": 1}
    assert await new.stop() == 0
    assert run_doctor(Settings(store=dsn)) == []
