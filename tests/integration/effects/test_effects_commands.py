"""``counterfoil effects``, ``reconcile list`` and the client's calls for effects, against a real engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from counterfoil.client import (
    Client,
    ConflictingResult,
    EffectFenced,
    EffectIncomplete,
    EffectInFlight,
    EffectKeyReused,
    InvalidInput,
    UnknownEffect,
)
from counterfoil.testing import MovableClock
from tests.running import StartNode
from tests.unit.commands import run

pytestmark = pytest.mark.sqlite_only  # a command cannot tell which store the engine has

TOOL, KEY = "issue refund", "order/7 .."


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def client(start_node: StartNode, clock: MovableClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """With an engine in this process: what it logs must not stand between the lines of a command."""
    node = await start_node(clock)
    monkeypatch.setenv("COUNTERFOIL_URL", node.url)
    with capture_logs():
        async with Client(node.url) as opened:
            yield opened


async def reserve(client: Client, key: str = KEY, holder: str = "agent-1") -> int:
    answer = await client.reserve_effect(TOOL, key, effect_class="irreversible", holder=holder, ttl_seconds=60)
    assert answer["state"] == "pending"
    return answer["fence"]


async def command(*arguments: str, exit_code: int = 0) -> str:
    result = await run(*arguments)
    assert result.exit_code == exit_code, result.output
    return result.output


async def test_the_calls_of_a_tool_and_their_errors(client: Client, clock: MovableClock) -> None:
    fence = await reserve(client)
    with pytest.raises(EffectInFlight) as in_flight:
        await reserve(client, holder="agent-2")
    assert (in_flight.value.retriable, in_flight.value.expires_at[-1]) == (True, "Z")
    with pytest.raises(EffectKeyReused):
        await client.reserve_effect(TOOL, KEY, effect_class="write-idempotent", holder="agent-1")
    clock.advance(seconds=60)
    with pytest.raises(EffectIncomplete) as incomplete:
        await reserve(client, holder="agent-2")
    assert (incomplete.value.retriable, incomplete.value.holder) == (False, "agent-1")
    with pytest.raises(EffectFenced):
        await client.complete_effect(TOOL, KEY, fence + 1)
    assert (await client.complete_effect(TOOL, KEY, fence, {"id": 1}))["duplicate"] is False
    assert (await client.complete_effect(TOOL, KEY, fence, {"id": 1}))["duplicate"] is True
    with pytest.raises(ConflictingResult) as conflict:
        await client.fail_effect(TOOL, KEY, fence, {"code": "NO"})
    assert conflict.value.status == 409
    shown = await client.effect(TOOL, KEY)
    assert (shown["result"], shown["key"], shown["audit"][0]["type"]) == ({"id": 1}, KEY, "effect_reserved")
    with pytest.raises(UnknownEffect):
        await client.effect(TOOL, "another")
    with pytest.raises(InvalidInput):
        await client.reserve_effect(TOOL, KEY, effect_class="irreversible", holder="h", ttl_seconds=0.1)
    await reserve(client, "failing")
    assert (await client.fail_effect(TOOL, "failing", 1, {"code": "NO"}))["state"] == "complete-failed"
    page = await client.effects(tool=TOOL, state="complete-failed", limit=5)
    assert [effect["key"] for effect in page["effects"]] == ["failing"]


@pytest.mark.parametrize("key", [".", "..", "a/b", "%2F", "é", "a?b#c"])
async def test_the_client_encodes_every_key(client: Client, key: str) -> None:
    fence = await reserve(client, key)
    await client.complete_effect(TOOL, key, fence)
    assert (await client.effect(TOOL, key))["key"] == key


async def test_a_lapsed_reservation_is_found_and_settled(client: Client, clock: MovableClock) -> None:
    await reserve(client)
    assert "pending" in await command("effects", "list", "--state", "pending")
    clock.advance(minutes=10)
    queue = await command("reconcile", "list", "--hold", "irreversible")
    for part in (TOOL, KEY, "reservation_lapsed, agent-1", "counterfoil effects settle TOOL KEY --applied"):
        assert part in queue
    assert "reconcile settle" not in queue
    assert "lapsed" in await command("effects", "list")
    shown = await command("effects", "show", TOOL, KEY)
    assert f"counterfoil effects settle '{TOOL}' '{KEY}' --not-applied" in shown
    refused = await command("effects", "settle", TOOL, KEY, exit_code=2)
    assert "give one of --applied" in refused
    settled = await command(
        *("effects", "settle", TOOL, KEY, "--applied", "--result", '{"refund_id": "re_1"}', "--note", "ledger")
    )
    assert settled == "settled: complete-success\n"
    shown = await command("effects", "show", TOOL, KEY)
    for part in ("complete-success", '"refund_id": "re_1"', "effect_settled", "applied, by local, ledger", "agent-1"):
        assert part in shown
    document = json.loads(await command("effects", "show", TOOL, KEY, "--json"))
    assert document["audit"][-1]["note"] == "ledger"
    assert "CONFLICTING_RESULT" in await command("effects", "settle", TOOL, KEY, "--not-applied", exit_code=1)
    assert "no work item waits" in await command("reconcile", "list")


async def test_the_other_settlements(client: Client, clock: MovableClock) -> None:
    for key in ("a", "b", "c"):
        await reserve(client, key)
    clock.advance(minutes=1)
    assert await command("effects", "settle", TOOL, "a", "--not-applied") == "settled: the key may be reserved again\n"
    failed = ("effects", "settle", TOOL, "b", "--failed", "--error", '{"code": "DECLINED"}')
    assert await command(*failed) == "settled: complete-failed\n"
    assert "DECLINED" in await command("effects", "show", TOOL, "b")
    document = json.loads(await command("effects", "settle", TOOL, "c", "--applied", "--json"))
    assert document["state"] == "complete-success"
    page = json.loads(await command("effects", "list", "--limit", "1", "--json"))
    rest = await command("effects", "list", "--cursor", page["next_cursor"])
    assert ("DECLINED" not in rest, " c " in rest) == (True, True)
    for wrong in (("--failed", "--result", "1"), ("--applied", "--error", "{}"), ("--applied", "--result", "{")):
        await command("effects", "settle", TOOL, "c", *wrong, exit_code=2)
    assert "UNKNOWN_EFFECT" in await command("effects", "show", TOOL, "nothing", exit_code=1)
    assert "no effect is recorded" in await command("effects", "list", "--tool", "other")
