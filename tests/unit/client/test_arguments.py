"""Calls that Python accepts and that mean nothing are refused before anything is sent, with the reason."""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any, cast

import pytest

from counterfoil.client import Assignment, Client, Worker
from tests.unit.canned_engine import CannedEngine, Reply

Call = Callable[[Any], Awaitable[Any]]


@pytest.fixture
async def engine() -> AsyncIterator[CannedEngine]:
    async with CannedEngine() as running:
        for route in ("GET /api/v1/flows", "GET /api/v1/workflows", "POST /api/v1/work/redrive"):
            running.reply(route, Reply(200, {}))
        yield running


@pytest.fixture
async def client(engine: CannedEngine) -> AsyncIterator[Any]:
    """The client, of which a test may want what its annotations forbid."""
    async with Client(engine.url) as opened:
        yield opened


async def pay() -> dict[str, Any]:
    return {}


def blocking() -> dict[str, Any]:
    return {}


WRONG: list[tuple[str, Call, str]] = [
    (
        "a goal",
        lambda client: client.start_flow("boom"),
        "goals must be a list of step ids, not a text: write ['boom']",
    ),
    ("a planned goal", lambda client: client.plan("boom"), "goals must be a list of step ids, not a text"),
    ("no goals", lambda client: client.start_flow(None), "goals must be a list of step ids, not None"),
    ("goals by name", lambda client: client.start_flow({"boom": 1}), "goals must be a list of step ids, not a dict"),
    ("init", lambda client: client.start_flow(["boom"], ["ab"]), "init must be a mapping, not a list"),
    ("empty init", lambda client: client.start_flow(["boom"], ""), "init must be a mapping, not a str"),
    ("labels", lambda client: client.start_flow(["boom"], labels="a:b"), "labels must be a mapping, not a str"),
    (
        "listed labels",
        lambda client: client.start_flow(["boom"], labels=["ab"]),
        "labels must be a mapping, not a list",
    ),
    ("metadata", lambda client: client.start_flow(["boom"], metadata=["ab"]), "metadata must be a mapping"),
    ("keys", lambda client: client.start_flow(["boom"], init_keys=["ab"]), "init_keys must be a mapping, not a list"),
    ("outputs", lambda client: client.settle("w", "applied", outputs=["ab"]), "outputs must be a mapping, not a list"),
    ("a time", lambda client: client.reconciliations(since=7), "since must be a datetime with a time zone"),
    ("a definition", lambda client: client.put_step("s", ["ab"]), "definition must be a mapping, not a list"),
    ("no definition", lambda client: client.put_schedule("s", None), "definition must be a mapping, not None"),
    ("a policy", lambda client: client.put_policy("p", "ab"), "definition must be a mapping, not a str"),
    ("a subscription", lambda client: client.put_subscription("s", "ab"), "definition must be a mapping, not a str"),
    ("a recorded step", lambda client: client.test_policy(recorded="ws"), "recorded must be a pair of texts"),
    ("a label without a value", lambda client: client.flows(label="team"), "label 'team' has no value"),
    ("a label of three", lambda client: client.flows(label=("a", "b", "c")), "label must be a pair of texts"),
    (
        "a label by name",
        lambda client: client.flows(label={"a": "b"}),
        "label must be a pair of texts, ('name', 'value')",
    ),
    ("a colon in a name", lambda client: client.flows(label=("a:b", "c")), "has no colon; this one is 'a:b'"),
    ("a label of workflows", lambda client: client.list_workflows(label="team"), "label 'team' has no value"),
    ("a time without a zone", lambda client: client.flows(since=datetime(2026, 11, 16)), "since has no time zone"),  # noqa: DTZ001
    ("a day", lambda client: client.flows(since=date(2026, 11, 16)), "since must be a datetime with a time zone"),
    ("seconds", lambda client: client.flows(since=1_800_000_000), "since must be a datetime with a time zone"),
    ("a filter", lambda client: client.redrive_matching("charge"), "filter must be a mapping, not a str"),
    (
        "a time in a filter",
        lambda client: client.redrive_matching({"until": datetime(2026, 11, 16)}),  # noqa: DTZ001
        "until has no time zone",
    ),
    ("a label in a filter", lambda client: client.redrive_matching({"label": "a"}), "label 'a' has no value"),
    ("an id that is none", lambda client: client.flow(None), "an id must be a text, not NoneType"),
    ("an empty id", lambda client: client.delete_step(""), "an id must not be empty"),
    ("labels of a workflow", lambda client: client.create_workflow("w", labels=["ab"]), "labels must be a mapping"),
    ("an output", lambda client: client.complete_step("w", "s", ["ab"]), "output must be a mapping, not a list"),
    ("an input", lambda client: client.gate("w", "s", input=["ab"]), "input must be a mapping, not a list"),
    ("an option", lambda client: client.gate("w", "s", ky="k"), "unknown option 'ky'; the options are key, "),
    ("a blocking function", lambda client: client.run_step("w", "s", blocking), "define blocking with `async def`"),
    (
        "a called function",
        lambda client: client.run_step("w", "s", {}),
        "function must be an async function, not a dict",
    ),
]


@pytest.mark.parametrize(("call", "reason"), [pytest.param(call, reason, id=name) for name, call, reason in WRONG])
async def test_a_call_without_a_meaning_is_refused_before_it_is_sent(
    engine: CannedEngine, client: Any, call: Call, reason: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(reason)):
        await call(client)
    assert engine.asked == []


async def test_options_of_a_guarded_step_are_checked_at_once(engine: CannedEngine, client: Any) -> None:
    with pytest.raises(TypeError, match="unknown option 'ky'"):
        client.step("w", "s", ky="k")
    with pytest.raises(TypeError, match="input must be a mapping"):
        client.step("w", "s", input="x")


@pytest.mark.parametrize("label", ["team:a:b", ("team", "a:b"), ["team", "a:b"]])
async def test_a_label_is_a_pair_or_the_text_of_one(engine: CannedEngine, client: Any, label: Any) -> None:
    await client.flows(label=label)
    await client.list_workflows(label=label)
    await client.redrive_matching({"label": label})
    assert [asked.query.get("label") for asked in engine.asked[:2]] == ["team:a:b", "team:a:b"]
    assert engine.asked[2].body["filter"] == {"label": "team:a:b"}


async def test_a_time_is_a_text_or_a_datetime_with_a_zone(engine: CannedEngine, client: Any) -> None:
    vienna = datetime(2026, 11, 16, 14, 26, 10, 123000, tzinfo=timezone(timedelta(hours=1)))
    await client.flows(since=vienna)
    await client.flows(since="2026-11-16T13:26:10Z")
    await client.redrive_matching({"since": vienna.astimezone(UTC), "until": None, "step_id": "charge"})
    assert [asked.query.get("since") for asked in engine.asked[:2]] == [
        "2026-11-16T14:26:10.123000+01:00",
        "2026-11-16T13:26:10Z",
    ]
    assert engine.asked[2].body["filter"] == {
        "since": "2026-11-16T13:26:10.123000+00:00",
        "until": None,
        "step_id": "charge",
    }


# -- steps of a worker -----------------------------------------------------------------------------


async def handler(assignment: Assignment) -> dict[str, Any]:
    return {}


def plain(assignment: Assignment) -> dict[str, Any]:
    return {}


async def generator(assignment: Assignment) -> AsyncIterator[dict[str, Any]]:
    yield {}


@functools.wraps(handler)
def decorated(assignment: Assignment) -> Awaitable[dict[str, Any]]:
    return handler(assignment)


class Handlers:
    async def __call__(self, assignment: Assignment) -> dict[str, Any]:
        return {}

    async def method(self, assignment: Assignment) -> dict[str, Any]:
        return {}

    def plain_method(self, assignment: Assignment) -> dict[str, Any]:
        return {}


class PlainCallable:
    def __call__(self, assignment: Assignment) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    "wrong", [plain, generator, Handlers().plain_method, PlainCallable(), functools.partial(plain), lambda work: {}]
)
def test_a_handler_that_is_not_async_is_refused_when_it_is_registered(wrong: Any) -> None:
    worker = Worker()
    with pytest.raises(TypeError, match=r"a step handler must be an async function: .*asyncio\.to_thread"):
        worker.step("/s")(wrong)
    assert list(worker.app().router.resources()) == []


def test_what_is_no_function_is_no_handler() -> None:
    with pytest.raises(TypeError, match="a step handler must be an async function, not a dict"):
        Worker().step("/s")(cast(Any, {}))


@pytest.mark.parametrize(
    "right",
    [handler, decorated, Handlers(), Handlers().method, functools.partial(handler)],
    ids=["function", "decorated", "callable object", "method", "partial"],
)
def test_every_kind_of_async_function_is_a_handler(right: Any) -> None:
    worker = Worker()
    assert worker.step("/s")(right) is right
    assert [resource.canonical for resource in worker.app().router.resources()] == ["/s"]


def test_a_step_after_the_application_was_made_is_refused() -> None:
    worker = Worker()
    worker.step("/s")(handler)
    worker.app()
    with pytest.raises(RuntimeError, match=r"step /late comes too late: add all steps before app\(\) or mount\(\)"):
        worker.step("/late")(handler)


def test_a_second_handler_of_a_path_is_refused() -> None:
    worker = Worker()
    worker.step("/s")(handler)
    with pytest.raises(ValueError, match="step /s has a handler already"):
        worker.step("/s")(handler)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (handler, 'write @worker.step("/path")'),
        (None, "the path of a step must be a text, not NoneType"),
        ("pay", "must begin with a slash: write '/pay'"),
    ],
    ids=["no path", "none", "no slash"],
)
def test_a_step_has_a_path(path: Any, reason: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(reason)):
        Worker().step(path)
