"""Redrives after compensation: what was undone is done anew, what could not be undone is kept."""

from __future__ import annotations

from typing import Any

from counterfoil.testing import Answer, StepEndpoint
from tests.wire import Api


def answer(**body: Any) -> Answer:
    return Answer(body={"success": True, **body})


async def test_what_was_undone_has_another_key_and_what_failed_the_same(api: Api, endpoint: StepEndpoint) -> None:
    endpoint.answer("/pay", answer(outputs={"payment": 1}))
    endpoint.answer("/refund", answer())
    endpoint.answer("/ship", Answer(body={"success": False, "error": "no carrier"}))
    attributes = {"payment": {"role": "output"}}
    undo = {"endpoint": endpoint.url("/refund")}
    await api.put_step("pay", endpoint.url("/pay"), kind="sync", attributes=attributes, compensate=undo)
    takes = {"payment": {"role": "required"}}
    await api.put_step("ship", endpoint.url("/ship"), kind="sync", attributes=takes)
    flow_id = await api.start("ship")
    assert (await api.final(flow_id))["status"] == "failed"
    (await api.post(f"/api/v1/flows/{flow_id}/redrive")).ok()
    assert (await api.final(flow_id))["status"] == "failed"
    work = (await api.flow(flow_id))["steps"]

    def keys(step_id: str, *, undoing: bool = False) -> list[str]:
        return [item["idempotency_key"] for item in work[step_id]["work"] if bool(item["undoes"]) is undoing]

    assert len(set(keys("pay"))) == 2
    assert len(set(keys("pay", undoing=True))) == 2
    assert len(keys("ship")) == 2
    assert len(set(keys("ship"))) == 1


async def test_what_could_not_be_undone_is_kept_with_its_values_and_undone_again(
    api: Api, endpoint: StepEndpoint
) -> None:
    endpoint.answer("/pay", answer(outputs={"payment": 1}))
    endpoint.answer("/refund", Answer(body={"success": False, "error": "no refunds today"}))
    endpoint.answer("/ship", Answer(body={"success": False, "error": "no carrier"}))
    undo = {"endpoint": endpoint.url("/refund")}
    gives, takes = {"payment": {"role": "output"}}, {"payment": {"role": "required"}}
    await api.put_step("pay", endpoint.url("/pay"), kind="sync", attributes=gives, compensate=undo)
    await api.put_step("ship", endpoint.url("/ship"), kind="sync", attributes=takes)
    flow_id = await api.start("ship")
    assert (await api.final(flow_id))["status"] == "failed"
    assert (await api.flow(flow_id))["compensation"] == [{"step_id": "pay", "status": "failed"}]

    endpoint.answer("/refund", answer())
    (await api.post(f"/api/v1/flows/{flow_id}/redrive")).ok()
    assert (await api.final(flow_id))["status"] == "failed"
    flow = await api.flow(flow_id)
    assert flow["compensation"] == [{"step_id": "pay", "status": "completed"}]
    work = flow["steps"]["pay"]["work"]
    assert sorted((bool(item["undoes"]), item["status"]) for item in work) == [
        (False, "succeeded"),
        (True, "failed"),
        (True, "succeeded"),
    ]

    endpoint.answer("/ship", answer())
    (await api.post(f"/api/v1/flows/{flow_id}/redrive")).ok()
    assert (await api.final(flow_id))["outputs"] == {"payment": 1}
