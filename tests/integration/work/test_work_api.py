"""Section 3: work items on their own: list, filters, attempts."""

from __future__ import annotations

import orjson
import pytest

from counterfoil.testing import Answer, StepEndpoint
from tests.integration.scenario import PATH, STEP, dispatched
from tests.wire import Api, moment

FIELDS = {
    "work_id",
    "flow_id",
    "step_id",
    "status",
    "attempt",
    "next_attempt_at",
    "deadline_at",
    "hold",
    "progress",
    "message",
    "outputs",
    "error",
    "created_at",
    "recorded_at",
}


async def test_a_work_item_with_its_attempts(api: Api, endpoint: StepEndpoint) -> None:
    endpoint.answer(PATH, Answer(503), Answer(fault="cut"), Answer())
    await api.put_step(STEP, endpoint.url(PATH), work={"init_backoff_ms": 5})
    flow_id = await api.start(STEP)
    third = await endpoint.received(PATH, 3)
    await api.until_acknowledged(flow_id)
    work_id = (await api.work(flow_id))["work_id"]
    document = (await api.get(f"/api/v1/work/{work_id}")).ok()
    assert set(document) >= FIELDS
    assert (document["flow_id"], document["step_id"], document["attempt"]) == (flow_id, STEP, 3)
    assert [attempt["attempt"] for attempt in document["attempts"]] == [1, 2, 3]
    moment(document["created_at"])
    assert third.token not in orjson.dumps(document).decode()
    await api.succeed(third, a=1)
    document = (await api.get(f"/api/v1/work/{work_id}")).ok()
    assert (document["status"], document["outputs"]) == ("succeeded", {"a": 1})
    moment(document["recorded_at"])


async def test_list_and_filters(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step("other", endpoint.url("/other"), work={"parallelism": 1})
    first, received = await dispatched(api, endpoint)
    second, _ = await dispatched(api, endpoint)
    third = await api.start("other")
    await endpoint.received("/other")
    fourth = await api.start("other")
    await api.succeed(received)

    async def flows(**filters: str) -> list[str]:
        return sorted(item["flow_id"] for item in (await api.get("/api/v1/work", **filters)).ok()["work"])

    assert await flows() == sorted([first, second, third, fourth])
    assert await flows(status="succeeded") == [first]
    assert await flows(status="active") == sorted([second, third])
    assert await flows(status="pending") == [fourth]
    assert await flows(step="other") == sorted([third, fourth])
    assert await flows(step="other", status="active") == [third]
    assert await flows(step="nobody") == []
    assert not {second, third} & set(await flows(overdue="true"))
    for item in (await api.get("/api/v1/work")).ok()["work"]:
        assert set(item) >= FIELDS


async def test_pages(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step(STEP, endpoint.url(PATH), work={"parallelism": 1})
    for _ in range(12):
        await api.start(STEP)
    seen: list[str] = []
    params: dict[str, str] = {"limit": "5"}
    for _ in range(10):
        page = (await api.get("/api/v1/work", **params)).ok()
        seen += [item["work_id"] for item in page["work"]]
        if page["next_cursor"] is None:
            break
        params = {"limit": "5", "cursor": page["next_cursor"]}
    assert len(seen) == len(set(seen)) == 12


@pytest.mark.either_store
@pytest.mark.parametrize(
    "filters", [{"status": "nonsense"}, {"limit": "0"}, {"overdue": "perhaps"}, {"cursor": "nonsense"}]
)
async def test_wrong_filters_are_refused(api: Api, filters: dict[str, str]) -> None:
    (await api.get("/api/v1/work", **filters)).refused(422, "INVALID_INPUT")


async def test_unknown_work(api: Api) -> None:
    (await api.get("/api/v1/work/nobody")).refused(404, "UNKNOWN_WORK")
