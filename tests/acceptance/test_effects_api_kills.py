"""kill -9 between the reservation of an effect and its outcome: no answer is lost, and no key is run twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from tests.acceptance.conftest import ClientOf, NewEngine
from tests.acceptance.effect_cells import doctor_is_content, errors_logged
from tests.eventually import elapsed, eventually
from tests.integration.effects.reserving import audit, complete, reserve, reserved, settle, show
from tests.wire import Api

pytestmark = pytest.mark.timeout(180)


async def test_a_reservation_outlives_the_engine(new_engine: NewEngine, client_of: ClientOf) -> None:
    engine = new_engine()
    await engine.start()
    api = client_of(engine)
    fence = await reserved(api, "k", ttl_seconds=600)
    await reserved(api, "short", ttl_seconds=1, **{"class": "irreversible"})
    await engine.kill()
    doctor_is_content(engine)
    await engine.start()
    (await reserve(api, "k", holder="agent-2")).refused(409, "RETRY_IN_FLIGHT")
    assert (await reserve(api, "k", ttl_seconds=600)).ok(200)["fence"] == fence, "the holder comes back"
    (await complete(api, "k", fence, result={"id": 1})).ok()
    await engine.kill()
    await engine.start()
    hit = (await reserve(api, "k", holder="agent-2")).ok(200)
    assert (hit["state"], hit["result"]) == ("complete-success", {"id": 1})
    await eventually(lambda: lapsed(api, "short"), what="the end of the reservation")
    (await reserve(api, "short", **{"class": "irreversible"})).refused(409, "UNSAFE_ONCE_INCOMPLETE")
    (await settle(api, "short", "not_applied")).ok()
    assert await reserved(api, "short", **{"class": "irreversible"}) == 2
    assert [kind for kind, _ in await audit(api, "k")] == ["effect_reserved", "effect_completed", "dedup_hit"]
    assert await engine.stop() == 0
    assert errors_logged(engine) == []
    doctor_is_content(engine)


async def lapsed(api: Api, key: str) -> bool:
    return bool((await show(api, key)).ok()["lapsed"])


async def test_every_effect_is_run_once_though_engines_are_killed(new_engine: NewEngine, client_of: ClientOf) -> None:
    """Callers that hammer a few keys while the engine is killed: each key is run by the one that was granted it."""
    engine = new_engine()
    await engine.start()
    api = client_of(engine)
    keys = [f"k{number}" for number in range(8)]
    ran: Counter[str] = Counter()
    done: set[str] = set()

    async def caller(number: int) -> None:
        """Goes on until each of its keys is recorded; a lost answer is asked for again under the same name."""
        for key in keys[number % 4 :] + keys[: number % 4]:
            while True:
                try:
                    reply = await reserve(api, key, holder=f"h{number}", ttl_seconds=3600)
                    if reply.status in (200, 201) and reply.body["state"] == "pending":
                        if (number, key) not in effects:
                            effects.add((number, key))
                            ran[key] += 1
                        reply = await complete(api, key, reply.body["fence"], result=number)
                    if reply.status == 200:
                        done.add(key)
                        break
                except aiohttp.ClientError:
                    pass
                await elapsed(0.02)

    effects: set[tuple[int, str]] = set()
    callers = asyncio.gather(*(caller(number) for number in range(20)))
    for kill in range(3):
        await eventually(lambda seen=kill: len(done) > seen, what="some outcomes")  # type: ignore[misc]
        await engine.kill()
        await engine.start()
    await callers
    assert ran == dict.fromkeys(keys, 1)
    for key in keys:
        shown = (await show(api, key)).ok()
        assert (shown["state"], shown["fence"]) == ("complete-success", 1)
        assert (shown["result"], shown["holder"]) == (int(shown["holder"][1:]), f"h{shown['result']}")
    assert await engine.stop() == 0
    doctor_is_content(engine)


@pytest.mark.postgresql_only
async def test_a_node_takes_over_what_another_node_granted(
    new_engine: NewEngine, client_of: ClientOf, tmp_path: Path
) -> None:
    first, second = new_engine(tmp_path / "one"), new_engine(tmp_path / "two")
    await first.start()
    await second.start()
    fence = await reserved(client_of(first), "k")
    await first.kill()
    (await reserve(client_of(second), "k", holder="agent-2")).refused(409, "RETRY_IN_FLIGHT")
    (await complete(client_of(second), "k", fence)).ok()
    assert (await reserve(client_of(second), "k", holder="agent-2")).ok(200)["state"] == "complete-success"
    assert await second.stop() == 0
    doctor_is_content(second)
