"""The effects API over HTTP: which caller may run an effect, what is recorded once, and what is refused."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from counterfoil.testing import MovableClock
from tests.eventually import eventually
from tests.integration.effects.reserving import (
    EFFECTS,
    TOOL,
    WRITE,
    audit,
    complete,
    path_of,
    reserve,
    reserved,
    send,
    settle,
    show,
)
from tests.integration.people import KEYED, clients
from tests.running import Connect, StartNode
from tests.wire import JSON, Api

ODD_KEYS = (
    *(
        "refund:order-7",
        "a/b",
        "/",
        "//",
        "a//b/",
        "%",
        "%2F",
        "%25",
        "100%",
        "..",
        ".",
        "../..",
        "a/../b",
        "\\",
        "?",
        "#",
    ),
    *(
        "a b",
        "+",
        "a&b=c",
        " ",
        "\t",
        "\n",
        "\r\n",
        "\x7f",
        "complete",
        "settle",
        "é",
        "e\u0301",
        "\u2028",
        "日本",
        "😀",
    ),
    *(
        '"',
        "'",
        "null",
        "0",
        "-1",
        "; DROP TABLE reservations",
        "$1",
        ":key",
        "x" * 255,
        "😀" * 255,
        "\ufeff",
        "\ud7ff",
    ),
)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def api(start_node: StartNode, connect: Connect, clock: MovableClock) -> Api:
    """An engine whose clock the test moves."""
    return connect(await start_node(clock))


# ------------------------------------------------------------------------------------------------ reserve


async def test_an_absent_key_is_reserved(api: Api) -> None:
    answer = (await reserve(api, "k", holder="agent-1", ttl_seconds=60)).ok(201)
    assert set(answer) == {"tool", "key", "state", "fence", "holder", "expires_at"}
    assert (answer["tool"], answer["key"], answer["state"]) == (TOOL, "k", "pending")
    assert (answer["fence"], answer["holder"]) == (1, "agent-1")
    shown = (await show(api, "k")).ok()
    assert (shown["expires_at"], shown["class"], shown["lapsed"]) == (answer["expires_at"], WRITE, False)
    assert shown["window_seconds"] == 86_400, "the default of the class"
    assert await audit(api, "k") == [("effect_reserved", "agent-1")]


@pytest.mark.parametrize(
    ("body", "state", "outcome"),
    [
        ({"success": True, "result": {"refund_id": "re_1"}}, "complete-success", {"result": {"refund_id": "re_1"}}),
        ({"success": True, "result": None}, "complete-success", {"result": None}),
        ({"success": True}, "complete-success", {"result": None}),
        ({"success": True, "result": [1, 18446744073709551615, "\u0000"]}, "complete-success", None),
        ({"success": False, "error": {"code": "CARD_EXPIRED"}}, "complete-failed", {"error": {"code": "CARD_EXPIRED"}}),
    ],
)
async def test_a_recorded_outcome_is_given_to_all_callers(
    api: Api, body: dict[str, Any], state: str, outcome: dict[str, Any] | None
) -> None:
    outcome = {name: body[name] for name in ("result", "error") if name in body} if outcome is None else outcome
    fence = await reserved(api, "k")
    done = (await complete(api, "k", fence, **body)).ok()
    assert (done["state"], done["duplicate"], done["fence"]) == (state, False, 1)
    for holder in ("agent-1", "agent-2"):
        hit = (await reserve(api, "k", holder=holder)).ok(200)
        assert {name: hit[name] for name in ("result", "error") if name in hit} == outcome
        assert (hit["state"], hit["recorded_at"], hit["fence"]) == (state, done["recorded_at"], 1)
    assert await audit(api, "k") == [
        ("effect_reserved", "agent-1"),
        ("effect_completed", "agent-1"),
        ("dedup_hit", "agent-1"),
        ("dedup_hit", "agent-2"),
    ]
    assert (await show(api, "k")).ok()["hits"] == 2
    assert 'counterfoil_effect_requests_total{verdict="dedup_hit"} 2.0' in (await api.get("/metrics")).content.decode()


async def test_the_same_holder_gets_its_reservation_back_with_a_new_time_to_live(api: Api, clock: MovableClock) -> None:
    first = (await reserve(api, "k", ttl_seconds=60)).ok(201)
    clock.advance(seconds=50)
    again = (await reserve(api, "k", ttl_seconds=60)).ok(200)
    assert (again["state"], again["fence"]) == ("pending", first["fence"])
    assert again["expires_at"] > first["expires_at"]
    clock.advance(seconds=50)
    (await reserve(api, "k", holder="agent-2")).refused(409, "RETRY_IN_FLIGHT")
    assert await audit(api, "k") == [("effect_reserved", "agent-1")]


async def test_another_holder_is_told_when_to_come_again(api: Api) -> None:
    mine = (await reserve(api, "k")).ok(201)
    details = (await reserve(api, "k", holder="agent-2")).refused(409, "RETRY_IN_FLIGHT")
    assert details == {"retriable": True, "expires_at": mine["expires_at"], "holder": "agent-1"}


@pytest.mark.parametrize("effect_class", ["write-idempotent", "write-non-idempotent"])
@pytest.mark.parametrize("holder", ["agent-1", "agent-2"])
async def test_a_lapsed_reservation_is_given_to_the_next_caller(
    api: Api, clock: MovableClock, effect_class: str, holder: str
) -> None:
    first = await reserved(api, "k", ttl_seconds=1, **{"class": effect_class})
    clock.advance(seconds=1)
    assert await reserved(api, "k", holder=holder, **{"class": effect_class}) == first + 1
    refused = (await complete(api, "k", first)).refused(409, "FENCED")
    assert refused == {"retriable": False, "fence": 2}
    (await complete(api, "k", first + 1)).ok()


@pytest.mark.parametrize("holder", ["agent-1", "agent-2"])
async def test_an_irreversible_effect_is_not_run_again_until_it_is_settled(
    api: Api, clock: MovableClock, holder: str
) -> None:
    mine = (await reserve(api, "k", ttl_seconds=60, **{"class": "irreversible"})).ok(201)
    clock.advance(seconds=60)
    details = (await reserve(api, "k", holder=holder, **{"class": "irreversible"})).refused(
        409, "UNSAFE_ONCE_INCOMPLETE"
    )
    assert (details["retriable"], details["holder"], details["expires_at"]) == (False, "agent-1", mine["expires_at"])
    (await settle(api, "k", "not_applied")).ok()
    assert await reserved(api, "k", holder=holder, **{"class": "irreversible"}) == 2


async def test_a_key_is_for_one_call(api: Api) -> None:
    fence = await reserved(api, "k", arguments_digest="d1")
    for done in (False, True):
        if done:
            (await complete(api, "k", fence)).ok()
        other = (await reserve(api, "k", arguments_digest="d2")).refused(409, "EFFECT_KEY_REUSED")
        assert other == {"retriable": False}
        (await reserve(api, "k", arguments_digest="d1", **{"class": "irreversible"})).refused(409, "EFFECT_KEY_REUSED")
        (await reserve(api, "k", arguments_digest="d1")).ok()
        (await reserve(api, "k")).ok()
    assert await reserved(api, "k", tool="another tool", arguments_digest="d2") == 1, "a key belongs to its tool"


async def test_a_lapsed_reservation_of_other_arguments_is_still_another_call(api: Api, clock: MovableClock) -> None:
    await reserved(api, "k", ttl_seconds=1, arguments_digest="d1")
    clock.advance(seconds=2)
    (await reserve(api, "k", arguments_digest="d2")).refused(409, "EFFECT_KEY_REUSED")


# ------------------------------------------------------------------------------------------------ complete


async def test_the_first_outcome_is_final(api: Api) -> None:
    fence = await reserved(api, "k")
    (await complete(api, "k", fence, result={"b": 1.0, "a": "é"})).ok()
    assert (await complete(api, "k", fence, result={"a": "é", "b": 1})).ok()["duplicate"] is True
    for other in ({"result": {"a": "é"}}, {"success": False, "error": {}}):
        details = (await complete(api, "k", fence, **other)).refused(409, "CONFLICTING_RESULT")
        assert (details["retriable"], details["state"]) == (False, "complete-success")
    assert [kind for kind, _ in await audit(api, "k")] == ["effect_reserved", "effect_completed"]


async def test_a_late_outcome_counts_while_its_fence_is_the_current_one(api: Api, clock: MovableClock) -> None:
    for effect_class in ("write-non-idempotent", "irreversible"):
        fence = await reserved(api, effect_class, ttl_seconds=1, **{"class": effect_class})
        clock.advance(hours=24 * 40)
        assert (await complete(api, effect_class, fence)).ok()["state"] == "complete-success"


async def test_a_fence_that_was_never_given_is_refused(api: Api) -> None:
    fence = await reserved(api, "k")
    (await complete(api, "k", fence + 1)).refused(409, "FENCED")
    (await complete(api, "k", 2**53 - 1)).refused(409, "FENCED")
    (await complete(api, "unheard of", 1)).refused(404, "UNKNOWN_EFFECT")


# ------------------------------------------------------------------------------------------------ settle


@pytest.mark.parametrize(
    ("outcome", "given", "state", "recorded"),
    [
        ("applied", {"result": {"id": 1}}, "complete-success", {"result": {"id": 1}}),
        ("applied", {}, "complete-success", {"result": None}),
        ("failed", {"error": {"code": "NO"}}, "complete-failed", {"error": {"code": "NO"}}),
        ("failed", {}, "complete-failed", None),
    ],
)
async def test_a_settled_outcome_is_recorded(
    api: Api, clock: MovableClock, outcome: str, given: dict[str, Any], state: str, recorded: Any
) -> None:
    await reserved(api, "k", ttl_seconds=1, **{"class": "irreversible"})
    (await settle(api, "k", outcome, **given)).refused(409, "RETRY_IN_FLIGHT")
    clock.advance(seconds=1)
    settled = (await settle(api, "k", outcome, note="looked", **given)).ok()
    assert (settled["state"], settled["fence"]) == (state, 1)
    hit = (await reserve(api, "k", **{"class": "irreversible"})).ok()
    assert hit["state"] == state
    if recorded is not None:
        assert {name: hit[name] for name in recorded} == recorded
    else:
        assert hit["error"]["code"] == "SETTLED_AS_FAILED"
    (await settle(api, "k", outcome, **given)).refused(409, "CONFLICTING_RESULT")
    entry = (await show(api, "k")).ok()["audit"][1]
    assert {**entry, "at": None} == {
        "at": None,
        "type": "effect_settled",
        "holder": "agent-1",
        "outcome": outcome,
        "by": "local",
        "note": "looked",
    }


async def test_what_was_not_applied_may_be_reserved_again_with_a_higher_fence(api: Api, clock: MovableClock) -> None:
    for number in (1, 2, 3):
        fence = await reserved(api, "k", ttl_seconds=1, arguments_digest=f"d{number}", **{"class": "irreversible"})
        assert fence == number
        clock.advance(seconds=1)
        assert (await settle(api, "k", "not_applied")).ok()["state"] == "free"
        (await complete(api, "k", fence)).refused(409, "FENCED")
        (await settle(api, "k", "not_applied")).refused(404, "UNKNOWN_EFFECT")
        (await show(api, "k")).refused(404, "UNKNOWN_EFFECT")
    assert await reserved(api, "k") == 4, "also for another class"
    kinds = [kind for kind, _ in await audit(api, "k")]
    assert kinds == ["effect_reserved", "effect_settled"] * 3 + ["effect_reserved"]


# ------------------------------------------------------------------------------------------------ windows


async def test_a_record_past_its_window_is_forgotten_but_its_fence_is_not(api: Api, clock: MovableClock) -> None:
    fence = await reserved(api, "k", window="90s")
    (await complete(api, "k", fence)).ok()
    clock.advance(seconds=89)
    (await show(api, "k")).ok()
    clock.advance(seconds=1)
    (await show(api, "k")).refused(404, "UNKNOWN_EFFECT")
    (await complete(api, "k", fence)).refused(404, "UNKNOWN_EFFECT")
    assert (await api.get(EFFECTS)).ok()["effects"] == []
    await eventually(lambda: swept(api), what="the sweep")
    assert await reserved(api, "k", arguments_digest="another call", **{"class": "irreversible"}) == fence + 1
    assert await audit(api, "k") == [("effect_reserved", "agent-1")]
    (await complete(api, "k", fence)).refused(409, "FENCED")


async def swept(api: Api) -> bool:
    return 'counterfoil_swept_items_total{sweep="forgetting"} 1.0' in (await api.get("/metrics")).content.decode()


@pytest.mark.parametrize(
    ("effect_class", "seconds"),
    [("write-idempotent", None), ("write-non-idempotent", 86_400), ("irreversible", 30 * 86_400)],
)
async def test_each_class_has_its_window(api: Api, effect_class: str, seconds: int | None) -> None:
    await reserved(api, "k", **{"class": effect_class})
    assert (await show(api, "k")).ok()["window_seconds"] == seconds
    await reserved(api, "other", window="7d", **{"class": effect_class})
    assert (await show(api, "other")).ok()["window_seconds"] == 7 * 86_400


# ------------------------------------------------------------------------------------------------ keys and bodies


@pytest.mark.both_paths
@pytest.mark.parametrize("place", ["key", "tool"])
async def test_a_key_is_any_text(node: Any, connect: Connect, place: str) -> None:
    api = connect(node)
    for text in ODD_KEYS:
        tool, key = (TOOL, text) if place == "key" else (text, "k")
        assert await reserved(api, key, tool=tool) == 1, text
        done = (await complete(api, key, 1, tool=tool, result=text)).ok()
        assert (done["tool"], done["key"]) == (tool, key)
        shown = (await show(api, key, tool=tool)).ok()
        assert (shown["tool"], shown["key"], shown["result"]) == (tool, key, text)
    pages: list[tuple[str, str]] = []
    cursor: str | None = None
    while cursor is not None or not pages:
        query = {"limit": "7"} if cursor is None else {"limit": "7", "cursor": cursor}
        page = (await api.get(EFFECTS, **query)).ok()
        pages += [(effect["tool"], effect["key"]) for effect in page["effects"]]
        cursor = page["next_cursor"]
    expected = [(TOOL, text) if place == "key" else (text, "k") for text in ODD_KEYS]
    assert pages == sorted(expected, key=lambda pair: tuple(text.encode() for text in pair))


async def test_a_path_that_names_no_effect(api: Api) -> None:
    await reserved(api, "%FF")
    for path in (
        f"{EFFECTS}/{TOOL}/%FF",  # no UTF-8, and not the key "%FF"
        f"{EFFECTS}/{TOOL}/%ED%A0%80",
        f"{EFFECTS}/{TOOL}/a%00b",
        f"{EFFECTS}/{TOOL}/{'x' * 256}",
        f"{EFFECTS}/{TOOL}/nothing",
    ):
        (await send(api, "GET", path)).refused(404, "UNKNOWN_EFFECT")
        (await send(api, "POST", f"{path}/complete", {"fence": 1, "success": True})).refused(404, "UNKNOWN_EFFECT")
    (await send(api, "GET", path_of("%FF"))).ok()
    for path in (f"{EFFECTS}/{TOOL}/", f"{EFFECTS}/{TOOL}//complete", f"{EFFECTS}//k", f"{EFFECTS}/{TOOL}/a//b"):
        assert (await send(api, "GET", path)).refused(404, "NOT_FOUND") is not None


BODY: dict[str, Any] = {"tool": "t", "key": "k", "class": WRITE, "holder": "h"}


@pytest.mark.either_store
@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"color": "red"}, "color"),
        ({"effect_class": "irreversible"}, "effect_class"),
        ({"tool": None}, "tool"),
        ({"tool": ""}, "tool"),
        ({"tool": 7}, "tool"),
        ({"key": ""}, "key"),
        ({"key": "x" * 256}, "key"),
        ({"key": "a\x00b"}, "key"),
        ({"class": "read"}, "class"),
        ({"class": None}, "class"),
        ({"holder": ""}, "holder"),
        ({"holder": "h" * 256}, "holder"),
        ({"ttl_seconds": 0.5}, "ttl_seconds"),
        ({"ttl_seconds": 0}, "ttl_seconds"),
        ({"ttl_seconds": -1}, "ttl_seconds"),
        ({"ttl_seconds": "60"}, "ttl_seconds"),
        ({"ttl_seconds": True}, "ttl_seconds"),
        ({"ttl_seconds": 10**12}, "ttl_seconds"),
        ({"window": "0s"}, "window"),
        ({"window": "1w"}, "window"),
        ({"window": ""}, "window"),
        ({"window": 7}, "window"),
        ({"arguments_digest": ""}, "arguments_digest"),
        ({"arguments_digest": {}}, "arguments_digest"),
    ],
)
async def test_a_bad_reservation_is_refused_with_its_place(api: Api, change: dict[str, Any], place: str) -> None:
    details = (await api.post(EFFECTS, {**BODY, **change})).refused(422, "INVALID_INPUT")
    assert any(error["place"].split(".")[0] == place for error in details["errors"]), details
    assert (await api.get(EFFECTS)).ok()["effects"] == []


@pytest.mark.either_store
@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("complete", {"fence": 1}),
        ("complete", {"success": True}),
        ("complete", {"fence": 1, "success": "yes"}),
        ("complete", {"fence": 0, "success": True}),
        ("complete", {"fence": "1", "success": True}),
        ("complete", {"fence": 2**70, "success": True}),
        ("complete", {"fence": 1, "success": True, "error": {}}),
        ("complete", {"fence": 1, "success": False}),
        ("complete", {"fence": 1, "success": False, "error": "text"}),
        ("complete", {"fence": 1, "success": False, "error": {}, "result": 1}),
        ("complete", {"fence": 1, "success": True, "note": "n"}),
        ("settle", {}),
        ("settle", {"outcome": "maybe"}),
        ("settle", {"outcome": "applied", "error": {}}),
        ("settle", {"outcome": "not_applied", "result": 1}),
        ("settle", {"outcome": "failed", "note": "n" * 2001}),
        ("settle", {"outcome": "failed", "note": "\x00"}),
        ("settle", {"outcome": "failed", "reason": "unknown field"}),
    ],
)
async def test_a_bad_outcome_is_refused(api: Api, verb: str, body: dict[str, Any]) -> None:
    await reserved(api, "k")
    (await send(api, "POST", path_of("k", verb), body)).refused(422, "INVALID_INPUT")
    assert (await show(api, "k")).ok()["state"] == "pending"


async def test_bodies_are_json(api: Api) -> None:
    for path in (EFFECTS, path_of("k", "complete"), path_of("k", "settle")):
        (await api.request("POST", path, data=b"{", headers=JSON)).refused(422, "INVALID_INPUT")
        (await api.request("POST", path, data=b"[]", headers=JSON)).refused(422, "INVALID_INPUT")
        (await api.request("POST", path, data=b"{}", headers={"Content-Type": "text/xml"})).refused(
            415, "UNSUPPORTED_MEDIA_TYPE"
        )


# ------------------------------------------------------------------------------------------------ lists and roles


async def test_effects_are_listed_by_tool_and_state(api: Api) -> None:
    for tool in ("b", "a", "c"):
        for key in ("3", "1", "2"):
            await reserved(api, key, tool=tool)
        (await complete(api, "1", 1, tool=tool)).ok()
        (await complete(api, "2", 1, tool=tool, success=False, error={"code": "NO"})).ok()

    async def listed(**query: str) -> list[str]:
        return [effect["tool"] + effect["key"] for effect in (await api.get(EFFECTS, **query)).ok()["effects"]]

    assert await listed() == ["a1", "a2", "a3", "b1", "b2", "b3", "c1", "c2", "c3"]
    assert await listed(tool="b") == ["b1", "b2", "b3"]
    assert await listed(state="pending") == ["a3", "b3", "c3"]
    assert await listed(state="complete-success", tool="c") == ["c1"]
    assert await listed(state="complete-failed") == ["a2", "b2", "c2"]
    assert await listed(tool="aa") == []
    first = (await api.get(EFFECTS, tool="b", limit="2")).ok()
    assert [effect["key"] for effect in first["effects"]] == ["1", "2"]
    assert await listed(tool="b", limit="2", cursor=first["next_cursor"]) == ["b3"]
    assert await listed(tool="c", cursor=first["next_cursor"]) == ["c1", "c2", "c3"], "a cursor of another list"
    assert await listed(tool="a", cursor=first["next_cursor"]) == []


@pytest.mark.either_store
@pytest.mark.parametrize(
    "query", [{"state": "free"}, {"limit": "0"}, {"cursor": "!"}, {"cursor": "bnVsbA"}, {"x": "1"}]
)
async def test_a_bad_query_is_refused(api: Api, query: dict[str, str]) -> None:
    (await api.get(EFFECTS, **query)).refused(422, "INVALID_INPUT")


async def test_roles(start_node: StartNode, session: aiohttp.ClientSession) -> None:
    people = clients(session, (await start_node(**KEYED)).url)
    await reserved(people["olga"], "k")
    for name in ("vic", "rita"):
        (await reserve(people[name], "k2")).refused(403, "FORBIDDEN")
        (await complete(people[name], "k", 1)).refused(403, "FORBIDDEN")
        (await settle(people[name], "k", "applied")).refused(403, "FORBIDDEN")
        (await show(people[name], "k")).ok()
        (await people[name].get(EFFECTS)).ok()
    (await complete(people["ada"], "k", 1)).ok()


async def test_the_audit_has_the_first_and_the_last_entries(api: Api) -> None:
    fence = await reserved(api, "k")
    (await complete(api, "k", fence)).ok()
    for number in range(40):
        (await reserve(api, "k", holder=f"h{number}")).ok()
    shown = (await show(api, "k")).ok()
    assert (shown["hits"], shown["audit_omitted"], len(shown["audit"])) == (40, 10, 32)
    holders = [entry["holder"] for entry in shown["audit"]]
    assert holders[:8] == ["agent-1", "agent-1", *(f"h{number}" for number in range(6))]
    assert holders[8:] == [f"h{number}" for number in range(16, 40)]


async def test_no_receipt_is_kept(api: Api) -> None:
    receipt = "0" * 32 + "." + "A" * 43
    kept = "0" * 32 + ".[redacted]"
    answer = (await reserve(api, f"key {receipt}", holder=f"h {receipt}", arguments_digest=receipt)).ok(201)
    assert (answer["key"], answer["holder"]) == (f"key {kept}", f"h {kept}")
    (await complete(api, f"key {receipt}", 1)).refused(400, "BAD_REQUEST")
    assert (await send(api, "GET", path_of(f"key {receipt}"))).refused(400, "BAD_REQUEST") == {}
    (await complete(api, f"key {kept}", 1, result={receipt: [receipt]})).ok()
    shown = (await show(api, f"key {kept}")).ok()
    assert (shown["result"], shown["arguments_digest"]) == ({kept: [kept]}, kept)
