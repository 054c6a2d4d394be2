"""``counterfoil reconcile`` against canned answers, and what other commands say of held work."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from counterfoil.cli.events import event_note
from counterfoil.cli.waiting import CAUSES, hold_sentence, waits_for
from counterfoil.client import Event
from counterfoil.client.documents import WorkItem
from counterfoil.domain.effects.policies import UNKNOWN_HOLDS, Cause
from tests.unit.canned_engine import CannedEngine, Reply, error
from tests.unit.commands import AT, FLOW, WORK, run

QUEUE = "/api/v1/reconciliations"
ITEM: dict[str, Any] = {
    "work_id": "01a1e4f10324776c863993f502a99a30",
    "flow_id": "order-7",
    "step_id": "charge",
    "status": "not_completed",
    "hold": "unsafe_once",
    "cause": "ack_timeout",
    "attempt": 2,
    "idempotency_key": "order-7:charge",
    "arguments": {"amount": 7},
    "since": AT,
    "status_url": "http://worker/status",
    "last_probe": {"at": AT, "state": "unknown"},
    "next_probe_at": "2099-01-01T05:00:00.000Z",
}
BARE = {**ITEM, "work_id": "wk-2", "hold": "reconcile", "status_url": None, "last_probe": None, "next_probe_at": None}
HELD = {**WORK, "next_attempt_at": None, "hold": "reconcile"}


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CannedEngine]:
    async with CannedEngine() as running:
        monkeypatch.setenv("COUNTERFOIL_URL", running.url)
        yield running


async def test_the_queue_is_listed_with_filters_and_what_to_do(engine: CannedEngine) -> None:
    engine.reply(f"GET {QUEUE}", Reply(200, {"reconciliations": [ITEM, BARE], "next_cursor": "1-x"}))
    filters = ["--step", "charge", "--hold", "unsafe_once", "--since", "2h", "--limit", "2", "--cursor", "0-a"]
    result = await run("reconcile", "list", *filters)
    head, first, second = result.stdout.splitlines()
    assert head.split()[:5] == ["WORK", "STEP", "SINCE", "CAUSE", "LAST"]
    assert first.split()[:2] == [ITEM["work_id"], "charge"]
    for part in ("ago", "ack_timeout", "unknown, ", "unsafe_once", '{"amount": 7}'):
        assert part in first
    assert "unknown" not in second
    assert result.stderr.splitlines() == [
        "find out what happened, then settle each:",
        "  counterfoil reconcile settle WORK --applied | --not-applied | --failed",
        "more: --cursor 1-x",
    ]
    query = engine.asked[0].query
    assert query.pop("since").endswith("Z")
    assert query == {"step": "charge", "hold": "unsafe_once", "limit": "2", "cursor": "0-a"}


async def test_an_empty_queue_is_no_error_and_json_is_the_answer(engine: CannedEngine) -> None:
    engine.reply(f"GET {QUEUE}", Reply(200, {"reconciliations": [], "next_cursor": None}))
    result = await run("reconcile", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "no work item waits for reconciliation\n"
    assert json.loads((await run("reconcile", "list", "--json")).stdout)["next_cursor"] is None


async def test_an_item_is_shown_with_all_that_is_known(engine: CannedEngine) -> None:
    engine.reply(f"GET {QUEUE}/{ITEM['work_id']}", Reply(200, ITEM))
    result = await run("reconcile", "show", ITEM["work_id"])
    for part in (
        ITEM["work_id"],
        "order-7",
        "charge, attempt 2",
        "only a new approval sends it again",
        f"ack_timeout: {CAUSES['ack_timeout']}",
        "order-7:charge",
        "http://worker/status",
        "unknown, ",
        '"amount": 7',
    ):
        assert part in result.stdout
    commands = [
        f"  counterfoil reconcile settle {ITEM['work_id']} --{each}" for each in ("applied", "not-applied", "failed")
    ]
    assert result.stderr.splitlines()[2:] == commands
    assert all(len(line) < 80 for line in commands)
    assert json.loads((await run("reconcile", "show", ITEM["work_id"], "--json")).stdout) == ITEM


async def test_an_item_without_a_status_url_has_no_line_about_probes(engine: CannedEngine) -> None:
    engine.reply(f"GET {QUEUE}/wk-2", Reply(200, BARE))
    text = (await run("reconcile", "show", "wk-2")).stdout
    assert "probe" not in text
    assert "status_url" not in text
    assert "the engine does not repeat it by itself" in text


@pytest.mark.parametrize(
    ("options", "body", "answer", "line"),
    [
        (
            ["--applied", "--outputs", '{"id": "ch_1"}', "--note", "ledger"],
            {"outcome": "applied", "outputs": {"id": "ch_1"}, "note": "ledger"},
            {"status": "succeeded"},
            "work item wk-2 succeeded",
        ),
        (["--not-applied"], {"outcome": "not_applied"}, {"status": "not_completed"}, "work item wk-2 is sent again"),
        (
            ["--failed", "--error", "refused"],
            {"outcome": "failed", "error": "refused"},
            {"status": "failed"},
            "work item wk-2 failed",
        ),
        (
            ["--not-applied"],
            {"outcome": "not_applied"},
            {"status": "held", "approval_id": "apr_1"},
            ("work item wk-2 is sent once more after a new approval\napprove: counterfoil approvals approve apr_1"),
        ),
        (
            ["--not-applied"],
            {"outcome": "not_applied"},
            {"status": "cancelled"},
            "recorded: not_applied; work item wk-2 stays cancelled",
        ),
    ],
)
async def test_an_item_is_settled(
    engine: CannedEngine, options: list[str], body: dict[str, Any], answer: dict[str, Any], line: str
) -> None:
    engine.reply(f"POST {QUEUE}/wk-2", Reply(200, {"work_id": "wk-2", **answer}))
    result = await run("reconcile", "settle", "wk-2", *options)
    assert (result.exit_code, result.stdout) == (0, f"{line}\n")
    assert engine.asked[0].body == body
    as_json = await run("reconcile", "settle", "wk-2", *options, "--json")
    assert json.loads(as_json.stdout) == {"work_id": "wk-2", **answer}


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--applied", "--failed"],
        ["--failed", "--outputs", "{}"],
        ["--not-applied", "--error", "no"],
        ["--applied", "--outputs", "[]"],
        ["--applied", "--outputs", "{"],
    ],
)
async def test_an_unclear_settlement_is_a_wrong_use_and_settles_nothing(
    engine: CannedEngine, options: list[str]
) -> None:
    assert (await run("reconcile", "settle", "wk-2", *options)).exit_code == 2
    assert engine.asked == []


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("NOT_WAITING_FOR_RECONCILIATION", "`counterfoil work show` shows what became of it"),
        ("UNSAFE_ONCE_REQUIRES_CONTROL", "add control.approval to the step, or first put a policy that names it"),
    ],
)
async def test_a_refusal_has_a_hint(engine: CannedEngine, code: str, hint: str) -> None:
    engine.reply(f"POST {QUEUE}/wk-2", error(409, code, "no"))
    result = await run("reconcile", "settle", "wk-2", "--applied")
    assert (result.exit_code, result.stderr) == (1, f"error: {code}: no; {hint}\n")


@pytest.mark.parametrize("arguments", [["reconcile"], ["reconcile", "settle"]])
async def test_the_commands_have_help(arguments: list[str]) -> None:
    assert (await run(*arguments, "--help")).exit_code == 0


async def test_a_flow_starts_with_keys_for_its_steps(engine: CannedEngine) -> None:
    engine.reply("POST /api/v1/flows", Reply(201, {"flow_id": "f-1"}))
    await run("flow", "start", "ship", "--init-key", "charge=order-7", "--init-key", "ship=a=b")
    assert engine.asked[0].body["init_keys"] == {"charge": "order-7", "ship": "a=b"}
    assert (await run("flow", "start", "ship", "--init-key", "charge")).exit_code == 2


# What other commands say of it ------------------------------------------------------------------------------------


async def test_work_shows_each_attempt_and_why_it_is_held(engine: CannedEngine) -> None:
    attempt = {
        "attempt": 1,
        "planned_at": "2026-11-16T14:26:01.000Z",
        "approved_at": "2026-11-16T14:26:02.000Z",
        "started_at": "2026-11-16T14:26:03.000Z",
        "acknowledged_at": None,
        "finished_at": "2026-11-16T14:26:04.000Z",
        "outcome": "not_completed",
        "delivery": "unknown",
        "cause": "ack_timeout",
        "error": {"code": "OUTCOME_UNKNOWN", "message": "no answer"},
    }
    more = {"attempts": [attempt], "dedup_of": "wk-0", "probed": True, "idempotency_key": "order-7"}
    engine.reply("GET /api/v1/work/wk-1", Reply(200, {**HELD, **more}))
    text = (await run("work", "show", "wk-1")).output
    row = text.splitlines()[-1].split()
    assert row[:4] == ["1", "not_completed", "unknown", "ack_timeout"]
    assert row[4:8] == [f"14:26:0{second}.000" for second in (1, 2, 3, 4)]
    assert "whether attempt 2 had an effect is unknown" in text
    assert "`counterfoil reconcile show wk-1`" in text
    for name, value in (("result of", "wk-0"), ("found by", "status_url"), ("key", "order-7")):
        assert any(line.split()[: len(name.split())] == name.split() and value in line for line in text.splitlines())


async def test_lists_and_flows_say_what_held_work_waits_for(engine: CannedEngine) -> None:
    engine.reply("GET /api/v1/work", Reply(200, {"work": [HELD], "next_cursor": None}))
    assert "reconciliation" in (await run("work", "list")).stdout
    flow = {**FLOW, "steps": {"resize": {"status": "active", "work": [HELD]}}}
    engine.reply("GET /api/v1/flows/f-1", Reply(200, flow))
    text = (await run("flow", "show", "f-1")).output
    assert "counterfoil reconcile show wk-1" in " ".join(text.split())
    many = [{**HELD, "work_id": f"wk-{number}", "item": number} for number in range(2)]
    engine.reply(
        "GET /api/v1/flows/f-1",
        Reply(200, {**FLOW, "steps": {"resize": {"status": "active", "items": 2, "work": many}}}),
    )
    text = " ".join((await run("flow", "show", "f-1")).output.split())
    assert "2 items had an effect: counterfoil reconcile list --step resize" in text


def work(**fields: Any) -> WorkItem:
    known: WorkItem = {**WORK, "next_attempt_at": None, "error": None, **fields}  # type: ignore[typeddict-item]
    return known


def hook_of_work(**fields: Any) -> dict[str, Any]:
    return {"status": "waiting", "token": None, "received": 0, "collect": 1, **fields}


@pytest.mark.parametrize(
    ("fields", "words", "sentence"),
    [
        ({"hold": "reconcile"}, "reconciliation", "the engine does not repeat it by itself"),
        ({"hold": "unsafe_once"}, "reconciliation", "only a new approval sends it again"),
        ({"status": "pending", "hold": "dedup"}, "the result of an equal item", "takes its result when it has ended"),
        ({"status": "held", "hold": "apr_1"}, "an approval", "`counterfoil approvals show apr_1`"),
        ({"error": {"code": "DEADLINE_EXCEEDED", "message": ""}}, "its status_url", None),
        ({"error": {"code": "NOT_REPORTED", "message": ""}}, "its agent", None),
        ({"status": "pending"}, "dispatch", None),
        ({"status": "active", "hold": "apr_1"}, "", None),
        ({"status": "active", "hook": hook_of_work()}, "a payload", None),
        ({"status": "active", "hook": hook_of_work(received=1, collect=3)}, "payloads, 1 of 3", None),
        ({"status": "active", "hook": hook_of_work(status="queued")}, "the token of another hook", None),
    ],
)
def test_what_work_waits_for_in_words(fields: dict[str, Any], words: str, sentence: str | None) -> None:
    item = work(**fields)
    assert waits_for(item) == words
    told = hold_sentence(item)
    assert told is None if sentence is None else sentence in str(told)


def test_every_cause_and_every_hold_has_words() -> None:
    assert set(CAUSES) == {*map(str, Cause), "reservation_lapsed"}
    assert all("is unknown" in str(hold_sentence(work(hold=hold))) for hold in UNKNOWN_HOLDS)


@pytest.mark.parametrize(
    ("kind", "data", "note"),
    [
        (
            "work_reconciled",
            {"outcome": "applied", "by": "olga", "note": "ledger", "hold": "reconcile"},
            "ledger, applied, settled by olga",
        ),
        ("work_probed", {"state": "error", "note": "answered 404"}, "answered 404, status_url: error"),
        ("dedup_wait", {"dedup_of": "wk-0"}, "waits for the result of wk-0"),
        ("dedup_hit", {"dedup_of": "wk-0", "flow_id": "f"}, "takes the result of wk-0"),
        ("work_not_completed", {"hold": "unsafe_once", "cause": "node_lost"}, "held for reconciliation (node_lost)"),
        ("work_not_completed", {"hold": "apr_1", "unsent": True}, ""),
    ],
)
def test_events_of_effects_are_told_in_words(kind: str, data: dict[str, Any], note: str) -> None:
    event: Event = {
        "seq": 1,
        "type": kind,
        "at": AT,
        "flow_id": "f",
        "step_id": "s",
        "work_id": "w",
        "attempt": 1,
        "data": data,
    }
    assert event_note(event) == note
