"""The commands against canned answers: what they ask, what they print, how they exit."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from counterfoil import __version__
from tests.unit.canned_engine import CannedEngine, Reply, error
from tests.unit.commands import AT, FLOW, WORK, run

EVENT = {
    "seq": 1,
    "type": "work_not_completed",
    "at": AT,
    "flow_id": "f-1",
    "step_id": "resize",
    "work_id": "wk-1",
    "attempt": 1,
    "data": {"error": {"code": "ENDPOINT_UNAVAILABLE"}},
}


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CannedEngine]:
    async with CannedEngine() as running:
        monkeypatch.setenv("COUNTERFOIL_URL", running.url)
        yield running


async def test_a_step_is_put_from_options(engine: CannedEngine) -> None:
    engine.reply("PUT /api/v1/steps/resize", Reply(201, {"step_id": "resize"}))
    result = await run("step", "put", "resize", "--endpoint", "http://w/r", "--work", "max_retries=3")
    assert (result.exit_code, result.output) == (0, "step resize is registered\n")
    assert engine.asked[0].body == {"endpoint": "http://w/r", "work": {"max_retries": 3}}


async def test_warnings_of_the_engine_are_told_on_stderr(engine: CannedEngine) -> None:
    warnings = [{"code": "approval_unreachable", "message": "too few"}]
    engine.reply("PUT /api/v1/steps/resize", Reply(201, {"step_id": "resize", "warnings": warnings}))
    engine.reply("PUT /api/v1/policies/ask", Reply(201, {"version": 1, "enabled": True, "warnings": warnings}))
    for words in (("step", "put", "resize", "-"), ("policy", "put", "-", "--id", "ask")):
        result = await run(*words, stdin='{"action": {}}')
        assert (result.exit_code, result.stderr) == (0, "warning: approval_unreachable: too few\n")


async def test_options_win_over_the_file_of_a_step(engine: CannedEngine) -> None:
    engine.reply("PUT /api/v1/steps/resize", Reply(200, {"step_id": "resize"}))
    definition = {"kind": "sync", "endpoint": "http://old/", "work": {"max_retries": 1, "jitter": False}}
    options = ["--endpoint", "http://new/", "--work", "max_retries=2"]
    result = await run("step", "put", "resize", "-", "--json", *options, stdin=json.dumps(definition))
    assert json.loads(result.output) == {"step_id": "resize"}
    assert engine.asked[0].body == {
        "kind": "sync",
        "endpoint": "http://new/",
        "work": {"max_retries": 2, "jitter": False},
    }


async def test_a_step_without_a_definition_is_a_wrong_use(engine: CannedEngine) -> None:
    result = await run("step", "put", "resize")
    assert result.exit_code == 2
    assert engine.asked == []


async def test_steps_are_listed_shown_and_deleted(engine: CannedEngine) -> None:
    step = {"step_id": "resize", "kind": "async", "endpoint": "http://w/r", "name": "Resize"}
    engine.reply("GET /api/v1/steps", Reply(200, {"steps": [step]}))
    engine.reply("GET /api/v1/steps/resize", Reply(200, step))
    engine.reply("DELETE /api/v1/steps/resize", Reply(204))
    listed = await run("step", "list")
    assert listed.output.splitlines()[1].split() == ["resize", "async", "http://w/r", "Resize"]
    assert json.loads((await run("step", "list", "--json")).output) == {"steps": [step]}
    assert json.loads((await run("step", "show", "resize")).output) == step
    assert (await run("step", "delete", "resize")).output == "step resize is deleted\n"


SCHEDULE: dict[str, Any] = {
    "schedule_id": "news",
    "cron": "0 6 * * *",
    "timezone": "Europe/Vienna",
    "every_ms": None,
    "flow": {"goals": ["resize"], "init": {"width": 1}},
    "catch_up": "one",
    "enabled": True,
    "next_at": "2099-01-01T05:00:00.000Z",
    "last_at": AT,
    "last_flow_id": "f-1",
    "last_error": {"code": "UNKNOWN_STEP", "message": "a goal is not a registered step", "at": AT},
    "upcoming": [],
    "created_at": AT,
}


async def test_a_schedule_is_put_from_options_over_a_file(engine: CannedEngine) -> None:
    engine.reply("PUT /api/v1/schedules/news", Reply(201, SCHEDULE))
    file = json.dumps({"every_ms": 5, "flow": {"goals": ["old"], "labels": {"a": "b"}}})
    options = ["--every-ms", "1000", "--goal", "a", "--goal", "b", "--init", "width=1", "--catch-up", "all"]
    result = await run("schedule", "put", "news", "-", *options, stdin=file)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("schedule news: 0 6 * * * (Europe/Vienna), next in ")
    assert engine.asked[0].body == {
        "every_ms": 1000,
        "catch_up": "all",
        "flow": {"goals": ["a", "b"], "labels": {"a": "b"}, "init": {"width": 1}},
    }
    shown = await run("schedule", "put", "news", "--cron", "0 6 * * *", "--timezone", "UTC", "--json")
    assert json.loads(shown.output) == SCHEDULE
    assert engine.asked[1].body == {"cron": "0 6 * * *", "timezone": "UTC"}
    assert (await run("schedule", "put", "news")).exit_code == 2


async def test_schedules_are_listed_page_by_page(engine: CannedEngine) -> None:
    interval = {"schedule_id": "often", "cron": None, "every_ms": 1000, "last_at": None, "last_error": None}
    paused = {**SCHEDULE, **interval, "enabled": False, "next_at": None}
    pages = [{"schedules": [SCHEDULE], "next_cursor": "news"}, {"schedules": [paused], "next_cursor": None}]
    engine.reply("GET /api/v1/schedules", *(Reply(200, page) for page in pages))
    result = await run("schedule", "list")
    first, second = result.output.splitlines()[1:]
    assert first.startswith("news")
    assert "UNKNOWN_STEP: a goal is not a registered step" in first
    assert second.split() == ["often", "every", "1000", "ms", "paused"]
    assert [asked.query.get("cursor") for asked in engine.asked] == [None, "news"]


async def test_a_schedule_is_paused_resumed_and_deleted(engine: CannedEngine) -> None:
    path = "/api/v1/schedules/news"
    engine.reply(f"GET {path}", Reply(200, SCHEDULE))
    engine.reply(f"PUT {path}", Reply(200, SCHEDULE))
    engine.reply(f"DELETE {path}", Reply(204))
    definition = {name: SCHEDULE[name] for name in ("cron", "timezone", "every_ms", "flow", "catch_up", "enabled")}
    assert (await run("schedule", "pause", "news")).output == "schedule news is paused\n"
    assert engine.asked[-1].body == {**definition, "enabled": False}
    assert (await run("schedule", "resume", "news")).output.startswith("schedule news is resumed, next in ")
    assert engine.asked[-1].body == definition
    assert json.loads((await run("schedule", "show", "news")).output) == SCHEDULE
    assert (await run("schedule", "delete", "news")).output == "schedule news is deleted\n"


async def test_a_flow_starts_with_inputs_labels_and_an_id(engine: CannedEngine, tmp_path: Path) -> None:
    engine.reply("POST /api/v1/flows", Reply(201, {"flow_id": "f-1"}))
    inputs = tmp_path / "init.json"
    inputs.write_text('{"width": 1, "image": "cat.png"}')
    arguments = ["--init-file", str(inputs), "-i", "width=640", "-l", "team=1", "-m", "run=7", "--id", "f-1"]
    result = await run("flow", "start", "resize", *arguments)
    assert result.output == "f-1\n"
    assert engine.asked[0].body == {
        "goals": ["resize"],
        "init": {"width": 640, "image": "cat.png"},
        "flow_id": "f-1",
        "labels": {"team": "1"},
        "metadata": {"run": 7},
    }


async def test_a_started_flow_can_be_waited_for(engine: CannedEngine) -> None:
    engine.reply("POST /api/v1/flows", Reply(201, {"flow_id": "f-1"}))
    final = {"flow_id": "f-1", "status": "completed", "outputs": {"file": "small.png"}, "error": None}
    engine.reply("GET /api/v1/flows/f-1/result", Reply(200, final))
    result = await run("flow", "start", "resize", "--wait", "5")
    assert json.loads(result.output) == {"file": "small.png"}


@pytest.mark.parametrize(
    ("reply", "line"),
    [
        (
            Reply(200, {"flow_id": "f", "status": "failed", "outputs": {}, "error": {"code": "X", "message": "no"}}),
            "error: flow f failed: X: no; `counterfoil flow events f` shows its journal\n",
        ),
        (
            Reply(200, {"flow_id": "f", "status": "cancelled", "outputs": {}, "error": None}),
            "error: flow f was cancelled; `counterfoil flow events f` shows its journal\n",
        ),
        (
            Reply(202, {"flow_id": "f", "status": "active"}),
            "error: flow f is still active; `counterfoil flow show f` shows what it is waiting for\n",
        ),
    ],
)
async def test_a_flow_that_did_not_complete_exits_with_1(engine: CannedEngine, reply: Reply, line: str) -> None:
    engine.reply("GET /api/v1/flows/f/result", reply)
    result = await run("flow", "result", "f", "--wait", "0")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", line)
    as_json = await run("flow", "result", "f", "--wait", "0", "--json")
    assert (as_json.exit_code, json.loads(as_json.stdout)) == (1, reply.body)


async def test_flows_are_listed_with_filters(engine: CannedEngine) -> None:
    summary = {name: FLOW[name] for name in ("flow_id", "status", "goals", "created_at")}
    engine.reply("GET /api/v1/flows", Reply(200, {"flows": [summary], "next_cursor": "abc"}))
    filters = ["--status", "active", "--label", "team=a", "--goal", "resize", "--since", "15m", "--limit", "1"]
    result = await run("flow", "list", *filters)
    assert result.stdout.splitlines()[1].split()[:3] == ["f-1", "active", "resize"]
    assert result.stderr == "more: --cursor abc\n"
    query = engine.asked[0].query
    assert query.pop("since").endswith("Z")
    assert query == {"status": "active", "label": "team:a", "goal": "resize", "limit": "1"}


async def test_no_flow_is_not_an_error(engine: CannedEngine) -> None:
    engine.reply("GET /api/v1/flows", Reply(200, {"flows": [], "next_cursor": None}))
    result = await run("flow", "list", "--since", AT)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no matching flow\n")
    assert engine.asked[0].query["since"] == AT


async def test_a_flow_shows_its_work(engine: CannedEngine) -> None:
    engine.reply("GET /api/v1/flows/f-1", Reply(200, FLOW))
    text = (await run("flow", "show", "f-1")).output
    for part in ("f-1", "active", '{"team": "a"}', "wk-1", "not_completed", "retry", "the endpoint answered 503"):
        assert part in text
    assert json.loads((await run("flow", "show", "f-1", "--json")).output) == FLOW


async def test_the_journal_is_shown_line_by_line(engine: CannedEngine) -> None:
    engine.reply("GET /api/v1/flows/f-1/events", Reply(200, {"events": [EVENT], "next_cursor": None}))
    line = (await run("flow", "events", "f-1")).output
    assert line.split()[:5] == ["14:26:10.123", "work_not_completed", "resize", "attempt", "1"]
    assert json.loads((await run("flow", "events", "f-1", "--json")).output)["events"] == [EVENT]


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("failed", 1)])
async def test_a_watched_flow_ends_with_its_outcome(engine: CannedEngine, status: str, code: int) -> None:
    stream = f"id: 1\nevent: x\ndata: {json.dumps(EVENT)}\n\n".encode()
    engine.reply("GET /api/v1/flows/f-1/stream", Reply(200, stream), Reply(200, b""))
    engine.reply("GET /api/v1/flows/f-1/result", Reply(200, {"flow_id": "f-1", "status": status, "error": None}))
    result = await run("flow", "watch", "f-1", "--json")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [EVENT]
    assert result.exit_code == code


async def test_a_flow_is_cancelled(engine: CannedEngine) -> None:
    engine.reply("POST /api/v1/flows/f-1/cancel", Reply(200, {**FLOW, "status": "cancelled"}))
    assert (await run("flow", "cancel", "f-1")).output == "flow f-1 is cancelled\n"


async def test_work_is_listed_and_shown(engine: CannedEngine) -> None:
    attempts = [{"attempt": 1, "sent_at": AT, "error": {"code": "X", "message": "no"}}, {"attempt": 2, "sent_at": AT}]
    engine.reply("GET /api/v1/work", Reply(200, {"work": [WORK], "next_cursor": None}))
    engine.reply("GET /api/v1/work/wk-1", Reply(200, {**WORK, "attempts": attempts}))
    listed = await run("work", "list", "--step", "resize", "--overdue")
    assert listed.output.splitlines()[1].split()[:4] == ["wk-1", "resize", "not_completed", "2"]
    assert engine.asked[0].query == {"step": "resize", "overdue": "true", "limit": "50"}
    shown = (await run("work", "show", "wk-1")).output
    assert "X: no" in shown
    assert "14:26:10.123" in shown


async def test_an_error_of_the_engine_is_one_line(engine: CannedEngine) -> None:
    engine.reply("GET /api/v1/flows/f-1", error(404, "UNKNOWN_FLOW", "no flow has this id"))
    result = await run("flow", "show", "f-1")
    advice = "`counterfoil flow list` lists the flows"
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: UNKNOWN_FLOW: no flow has this id; {advice}\n"


async def test_the_key_is_sent_from_option_or_environment(
    engine: CannedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.reply("GET /api/v1/steps", Reply(200, {"steps": []}))
    monkeypatch.setenv("COUNTERFOIL_KEY", "from-environment")
    await run("step", "list")
    await run("step", "list", "--key", "from-option")
    sent = [asked.headers["Authorization"] for asked in engine.asked]
    assert sent == ["Bearer from-environment", "Bearer from-option"]


async def test_without_an_engine_the_command_says_how_to_start_one(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    result = await run("flow", "list", "--url", url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: no engine answers at {url}: start one with `counterfoil serve`\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["flow", "start"],
        ["flow", "start", "resize", "--init", "width"],
        ["flow", "start", "resize", "--deadline", "soon"],
        ["flow", "start", "resize", "--on-deadline", "cancel"],
        ["flow", "list", "--status", "sleeping"],
        ["plan"],
        ["work", "redrive"],
        ["work", "redrive", "wk-1", "--step", "resize"],
        ["work", "redrive", "--step", "resize", "--label", "team"],
        ["serve", "--port", "99999"],
        ["demo", "--flows", "0"],
        ["keys", "new", "--name", "ci", "--role", "king"],
        ["keys", "new", "--name", "a:b", "--role", "admin"],
        ["doctor", "--data", "d", "--store", "sqlite:///x"],
    ],
)
async def test_a_wrong_use_exits_with_2(arguments: list[str]) -> None:
    assert (await run(*arguments)).exit_code == 2


@pytest.mark.parametrize(
    "group",
    [[], ["plan"], ["flow"], ["flow", "start"], ["step"], ["work"], ["work", "redrive"], ["keys"], ["serve"], ["demo"]],
)
async def test_everything_has_help(group: list[str]) -> None:
    result = await run(*group, "--help")
    assert result.exit_code == 0
    assert "..." not in result.output.partition("Commands:")[2]


async def test_the_version_is_told() -> None:
    assert (await run("--version")).output == f"counterfoil {__version__}\n"


async def test_a_new_key_is_an_entry_with_a_strong_secret() -> None:
    first, second = [await run("keys", "new", "--name", "ci", "--role", "operator") for _ in range(2)]
    name, role, secret = first.stdout.strip().split(":")
    assert (name, role) == ("ci", "operator")
    assert len(secret) > 40
    assert "," not in secret
    assert secret not in second.stdout
    assert f"COUNTERFOIL_KEY={secret}" in first.stderr


async def test_keys_are_listed_without_their_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = json.loads((await run("keys", "new", "--name", "ci", "--role", "admin", "--json")).stdout)
    monkeypatch.setenv("COUNTERFOIL_API_KEYS", f"{made['entry']},ops:viewer:another-long-secret")
    listed = await run("keys", "list")
    assert [line.split()[:2] for line in listed.output.splitlines()[1:]] == [["ci", "admin"], ["ops", "viewer"]]
    as_json = await run("keys", "list", "--json")
    assert json.loads(as_json.output)["keys"] == [{"name": "ci", "role": "admin"}, {"name": "ops", "role": "viewer"}]
    assert made["secret"] not in listed.output + as_json.output


async def test_a_wrong_setting_is_named_and_its_secret_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERFOIL_API_KEYS", "ci:king:s3cret")
    result = await run("keys", "list")
    assert result.exit_code == 1
    assert "COUNTERFOIL_API_KEYS" in result.stderr
    assert "s3cret" not in result.stderr
