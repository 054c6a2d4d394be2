"""Run keys: the list of flows of a key, fields that are refused, and decisions about an owner that the caller saw."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.testing import StepEndpoint
from tests.integration.flows.run_keys import FLOWS, KEY, end, flows_of_key, start
from tests.integration.scenario import PATH, STEP
from tests.integration.several_nodes import metric
from tests.wire import Api

# ------------------------------------------------------------------------------------------------------------- the list


async def test_flows_are_listed_by_key(api: Api, endpoint: StepEndpoint, owned: str) -> None:
    ids = [owned]
    for number in range(6):
        labels = {"parity": str(number % 2)}
        ids.append((await start(api, "supersede", labels=labels)).ok(201)["flow_id"])
    await api.start(STEP)
    (await start(api, key="order:47")).ok(201)
    newest_first = ids[::-1]
    assert await flows_of_key(api) == newest_first
    assert await flows_of_key(api, status="active") == newest_first[:1]
    assert await flows_of_key(api, status="cancelled") == newest_first[1:]
    assert await flows_of_key(api, label="parity:0") == [ids[5], ids[3], ids[1]]
    assert await flows_of_key(api, goal="other") == []
    assert await flows_of_key(api, since="2100-01-01T00:00:00Z") == []
    assert await flows_of_key(api, key="nothing") == []
    found, cursor = list[str](), ""
    while True:
        page = (await api.get(FLOWS, key=KEY, limit="3", **({"cursor": cursor} if cursor else {}))).ok()
        found += [flow["flow_id"] for flow in page["flows"]]
        cursor = page["next_cursor"]
        if not cursor:
            break
    assert found == newest_first
    (await api.get(FLOWS, key="k" * 256)).refused(422, "INVALID_INPUT")


@pytest.mark.parametrize("key", ["ä" * 255, " spaces ", "'; DROP TABLE flows --", "100%", "a/b?c=d&e#f", "\U0001f9fe"])
async def test_any_text_is_a_key(api: Api, endpoint: StepEndpoint, key: str) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    flow_id = (await start(api, key=key)).ok(201)["flow_id"]
    assert (await start(api, key=key)).refused(409, "RUN_KEY_CONFLICT")["flow_id"] == flow_id
    assert (await api.flow(flow_id))["idempotency_key"] == key
    assert await flows_of_key(api, key) == [flow_id]


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.either_store
@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "k" * 256}, "idempotency_key"),
        ({"idempotency_key": "a\u0000b"}, "idempotency_key"),
        ({"idempotency_key": 7}, "idempotency_key"),
        ({"on_conflict": "supersede"}, "idempotency_key"),
        ({"on_conflict": "adopt", "idempotency_key": None}, "idempotency_key"),
        ({"retain_failed": True}, "idempotency_key"),
        ({"idempotency_key": "k", "on_conflict": "replace"}, "on_conflict"),
        ({"idempotency_key": "k", "on_conflict": "signal"}, "signal"),
        ({"idempotency_key": "k", "retain_key_for": "soon"}, "retain_key_for"),
        ({"idempotency_key": "k", "retain_key_for": -1}, "retain_key_for"),
        ({"idempotency_key": "k", "retain_key_for": "400d"}, "retain_key_for"),
        ({"idempotency_key": "k", "retain_key_for": True}, "retain_key_for"),
        ({"idempotency_key": "k", "signal": {"payload": {}}}, "signal.hook"),
        ({"idempotency_key": "k", "if_owner": {}}, "if_owner.flow_id"),
    ],
)
async def test_a_wrong_field_is_named(api: Api, endpoint: StepEndpoint, fields: dict[str, Any], place: str) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    details = (await api.post(FLOWS, {"goals": [STEP], **fields})).refused(422, "INVALID_INPUT")
    assert details["errors"][0]["place"].startswith(place)


@pytest.mark.either_store
@pytest.mark.parametrize("given", [0, "0", "0s", None, "90s", 5_000, "366d"])
async def test_how_long_a_key_is_retained_may_be_written_in_several_ways(
    api: Api, endpoint: StepEndpoint, given: Any
) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    (await start(api, retain_key_for=given)).ok(201)


# ------------------------------------------------------------------------------------------------- as the caller saw it


async def test_a_decision_applies_only_to_the_owner_that_the_caller_saw(
    api: Api, endpoint: StepEndpoint, owned: str
) -> None:
    await endpoint.received(PATH)
    await api.until_acknowledged(owned)
    for seen in (
        {"flow_id": "other"},
        {"flow_id": owned, "status": "compensating"},
        {"flow_id": owned, "steps": {STEP: "pending"}},
    ):
        details = (await start(api, "supersede", if_owner=seen)).refused(409, "RUN_KEY_CONFLICT")
        assert details == {"flow_id": owned, "status": "active", "owner_changed": True}
    seen = {"flow_id": owned, "status": "active", "steps": {STEP: "active"}}
    assert (await start(api, "supersede", if_owner=seen)).ok(201)["superseded"] == owned


async def test_a_key_that_became_free_is_taken(api: Api, endpoint: StepEndpoint, owned: str) -> None:
    await end(api, endpoint, owned, "failed")
    (await start(api, "supersede", if_owner={"flow_id": owned, "status": "active"})).ok(201)


# ------------------------------------------------------------------------------------------------------------ metrics


async def test_starts_that_met_an_owner_are_counted(api: Api, endpoint: StepEndpoint, owned: str) -> None:
    same: dict[str, Any] = {"init": {"order": 4711}}
    (await start(api, **same)).refused(409, "RUN_KEY_CONFLICT")
    (await start(api, "adopt")).refused(409, "RUN_KEY_REUSED")
    for _ in range(2):
        (await start(api, "adopt", **same)).ok(200)
    (await start(api, "supersede", **same, retain_key_for="1h")).ok(201)
    await api.succeed(await endpoint.received(PATH, 2))
    (await start(api, "adopt", **same)).ok(200)
    counted = {
        ("reject", "rejected"): 1,
        ("adopt", "mismatched"): 1,
        ("adopt", "adopted"): 2,
        ("supersede", "superseded"): 1,
        ("adopt", "retained"): 1,
    }
    for (on_conflict, outcome), count in counted.items():
        line = f'counterfoil_run_key_conflicts_total{{on_conflict="{on_conflict}",outcome="{outcome}"}}'
        assert await metric(api, line) == count, line
