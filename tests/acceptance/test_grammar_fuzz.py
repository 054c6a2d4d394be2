"""Hostile requests by the engine's own OpenAPI document, against live state: nothing breaks, and no receipt gets out.

``FUZZ_REQUESTS`` says how many (some seconds' worth by default, 100,000 by ``make fuzz``), ``TEST_SEED`` which. What is
sent follows from the seed, but for what depends on answers and on the order in which a dozen connections are served.
"""

from __future__ import annotations

import os
import random
import sys
import time

import aiohttp
import orjson
import pytest

from tests.acceptance.conftest import NewEngine
from tests.acceptance.fuzzing.campaign import Campaign
from tests.acceptance.fuzzing.endpoints import Endpoints
from tests.acceptance.fuzzing.jsontexts import BODY_LIMIT
from tests.acceptance.fuzzing.oracle import Reading, complaints, files_with_receipts, rows_with_receipts
from tests.acceptance.fuzzing.plausible import API_KEYS, KEYS
from tests.acceptance.fuzzing.receipts import Wallet
from tests.acceptance.processes import EngineProcess, run_command
from tests.seeds import announce

REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "2500"))
MANY = 20_000
"""With so many requests every operation must have been answered 2xx: a fuzzer that is only refused proves little."""
SETTINGS = {
    "api_keys": API_KEYS,
    "signing_secret": "whsec_Zm9yIHRoZSBmdXp6ZXIgYWxvbmUsIGFuZCBubyBvdGhlcg==",
    "max_body_bytes": str(BODY_LIMIT),
    "max_response_bytes": str(BODY_LIMIT),
    "access_log": "true",
    "callbacks__keep_bodies": "all",  # the receipts in bodies must be redacted
}


@pytest.mark.fuzz
@pytest.mark.timeout(180 + REQUESTS // 25)
async def test_whatever_is_sent_can_be_read_back_and_no_receipt_gets_out(
    new_engine: NewEngine, session: aiohttp.ClientSession
) -> None:
    seed = announce(FUZZ_REQUESTS=REQUESTS)
    engine = new_engine(**SETTINGS)
    await engine.start()
    wallet = Wallet()
    async with Endpoints(random.Random(f"{seed}-endpoints"), wallet).serving() as endpoints:
        async with session.get(f"{engine.url}/openapi.json") as response:
            document = orjson.loads(await response.read())
        campaign = Campaign(engine.url, seed, endpoints, wallet, document)
        began = time.monotonic()
        await campaign.run(REQUESTS)
        seconds = time.monotonic() - began
        reading = Reading(session, engine.url, KEYS["admin"], wallet)
        if engine.exit_code is None:
            await reading.everything(campaign.started)
        findings = [*campaign.findings, *reading.findings, *await end_of(engine, wallet)]
        if endpoints.leaks:
            findings.append(f"{endpoints.leaks} messages to subscribers or status URLs had a receipt in them")
    tell(f"{campaign.summary()}, in {seconds:.1f} s ({campaign.sent / seconds:.0f} a second)")
    tell(f"calls of the engine: {dict(endpoints.calls)}")
    tell(f"read back: {dict(reading.records)}")
    tell(f"{len(wallet.signatures)} receipts looked for, {len(findings)} findings")
    assert not findings, "\n".join(findings[:40])
    assert campaign.never_sent() == set()
    assert len(wallet.signatures) > REQUESTS / 100
    assert REQUESTS < MANY or not campaign.never_accepted(), campaign.never_accepted()


def tell(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201 (pytest shows it with a failure, and make fuzz at once)


async def end_of(engine: EngineProcess, wallet: Wallet) -> list[str]:
    """Stop the engine, and look at what it leaves."""
    found = files_with_receipts(engine.data, wallet)  # with what is not yet in the main file
    if engine.exit_code is not None:
        found.append(f"the engine ended with {engine.exit_code}")
    elif (code := await engine.stop()) != 0:
        found.append(f"the engine stopped with {code}")
    found += complaints(engine.log.read_bytes(), wallet)
    found += files_with_receipts(engine.data, wallet)
    found += rows_with_receipts(engine.place, wallet)
    code, output, errors = await run_command("doctor", "--store", engine.store_url, within=600)
    return found if code == 0 else [*found, f"doctor: {output[-3000:]}{errors[-3000:]}"]
