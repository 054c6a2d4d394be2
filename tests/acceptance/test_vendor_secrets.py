"""Secrets of vendors are settings of the process: nothing that it writes, stores or answers contains one."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import aiohttp
import orjson
import pytest

from counterfoil.testing import StepEndpoint
from tests.acceptance.conftest import NewEngine
from tests.acceptance.processes import EngineProcess, run_command
from tests.by_hand import by_hand
from tests.vendors import STANDARD, STRIPE
from tests.wire import JSON, Api

SECRETS = [STRIPE.secret, STRIPE.other_secret, STANDARD.secret, STANDARD.secret.removeprefix("whsec_")]
DONE = {"type": "job", "text": "hello"}


async def a_day_of_vendors(api: Api, endpoint: StepEndpoint) -> str:
    """Registered, refused, accepted, ignored, forged, unreadable; a flow that is left open. Returns all answers."""
    answers = []
    for step_id, vendor, name in (("pay", STRIPE, "stripe"), ("text", STANDARD, "transcripts")):
        signature = {"preset": vendor.preset, "secret": f"setting:{name}"}
        reads = {"ignore": "payload.type == 'ping'", "outputs": {"text": "payload.text"}}
        definition = {"endpoint": endpoint.url(f"/{step_id}"), "accept": {"signature": signature, "map": reads}}
        literal = {**definition, "accept": {"signature": {**signature, "secret": vendor.secret}}}
        unknown = {**definition, "accept": {"signature": {**signature, "secret": "setting:none"}}}
        path = f"/api/v1/steps/{step_id}"
        answers += [await api.request("PUT", path, json=body) for body in (literal, unknown, definition)]
        await api.start(step_id)
        await api.start(step_id)
        received = await endpoint.received(f"/{step_id}")
        for payload in ({"type": "ping"}, {"type": "job"}, DONE, DONE):
            for secret in (vendor.other_secret, vendor.secret):
                content = orjson.dumps(payload)
                headers = {**JSON, **vendor.sign(secret, content, int(time.time()))}
                answers.append(await api.request("POST", received.webhook_url, data=content, headers=headers))
        answers.append(await api.get(f"/api/v1/steps/{step_id}"))
        answers.append(await api.get(f"/api/v1/flows/{received.metadata['flow_id']}/events"))
    answers += [
        await api.get(path) for path in ("/api/v1/steps", "/api/v1/work", "/metrics", "/openapi.json", "/readyz")
    ]
    assert {reply.status for reply in answers} == {200, 201, 401, 422}
    return "".join(reply.content.decode() for reply in answers)


def stored(engine: EngineProcess) -> str:
    """Everything in the database, as text."""
    place = engine.place
    if isinstance(place, Path):
        with sqlite3.connect(place) as connection:
            dumped = "\n".join(connection.iterdump())
        files = [path.read_bytes() for path in engine.data.rglob("*") if path.is_file()]
        return dumped + b"".join(files).decode("latin-1")
    names = by_hand(place, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    return "".join(str(by_hand(place, f"SELECT t::text FROM {name} t")) for (name,) in names)


@pytest.mark.parametrize("log_format", ["json", "pretty"])
async def test_no_secret_of_a_vendor_is_ever_seen(
    new_engine: NewEngine, endpoint: StepEndpoint, session: aiohttp.ClientSession, log_format: str
) -> None:
    engine = new_engine(
        log_level="debug",
        log_format=log_format,
        access_log="true",
        secret_stripe=STRIPE.secret,
        secret_transcripts=STANDARD.secret,
        secret_unused=STRIPE.other_secret,
    )
    await engine.start()
    answers = await a_day_of_vendors(Api(session, engine.url), endpoint)
    doctor = await run_command("doctor", "--store", engine.store_url, "--json")
    assert doctor[0] == 0, doctor
    assert await engine.stop() == 0
    written = engine.log.read_text()
    assert "work_succeeded" in written
    assert '"setting:stripe"' in answers
    seen = {"answers": answers, "log": written, "database": stored(engine), "doctor": f"{doctor}"}
    for secret in SECRETS:
        assert not [place for place, text in seen.items() if secret in text]
