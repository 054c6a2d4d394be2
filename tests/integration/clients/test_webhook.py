"""Workers of any kind report to the webhook: with the HTTP clients that they have, as these are used."""

from __future__ import annotations

import pytest

from counterfoil.testing import StepEndpoint
from tests.integration.clients.calls import Call
from tests.integration.clients.senders import Send, by_clients
from tests.integration.scenario import dispatched, webhook_path
from tests.wire import Api

pytestmark = pytest.mark.both_paths

SUCCESS = {"success": True, "outputs": {"text": "héllo"}}


@by_clients("completion, repeat, refusals")
async def test_a_result_is_reported(api: Api, endpoint: StepEndpoint, send: Send) -> None:
    flow_id, received = await dispatched(api, endpoint)
    forged = api.url + webhook_path(received, token="forged.token")
    answers = await send(
        [
            Call("POST", received.webhook_url, json={"success": "yes"}),
            Call("POST", forged, json=SUCCESS),
            Call("POST", received.webhook_url, json=SUCCESS),
            Call("POST", received.webhook_url, json=SUCCESS),
            Call("POST", received.webhook_url, json={"success": False, "error": "no"}),
        ]
    )
    assert answers[0].refused(422, "INVALID_RESULT")["details"]["errors"][0]["place"] == "success"
    answers[1].refused(404, "UNKNOWN_RECEIPT")
    accepted = answers[2].ok()
    assert (accepted["verdict"], accepted["status"], accepted["flow_id"]) == ("accepted", "succeeded", flow_id)
    assert answers[3].refused(400, "ALREADY_SUCCEEDED")["details"]["same_result"] is True
    answers[4].refused(400, "CONFLICTING_RESULT")
    assert (await api.final(flow_id))["outputs"] == {"text": "héllo"}


@pytest.mark.sqlite_only
@by_clients("heartbeat, status, receipt in a header")
async def test_a_worker_sends_heartbeats_and_asks_for_the_state(api: Api, endpoint: StepEndpoint, send: Send) -> None:
    flow_id, received = await dispatched(api, endpoint, work={"heartbeat_timeout_ms": 60_000})
    url = received.webhook_url
    by_header = url.rpartition("/")[0]
    answers = await send(
        [
            Call("POST", received.metadata["heartbeat_url"], json={"progress": 0.4, "message": "half"}),
            Call("POST", received.metadata["heartbeat_url"], body=b""),
            Call("GET", url),
            Call(
                "POST",
                by_header,
                json={"success": False, "error": "broken"},
                headers={"Counterfoil-Receipt": received.token},
            ),
            Call("GET", url),
            Call("POST", received.metadata["heartbeat_url"], json={}),
        ]
    )
    assert answers[0].ok()["cancel_requested"] is False
    assert answers[1].ok()["deadline_at"] >= answers[0].ok()["deadline_at"]
    assert (answers[2].ok()["status"], answers[2].ok()["attempt"]) == ("active", 1)
    assert answers[3].ok()["status"] == "failed"
    assert answers[4].ok()["status"] == "failed"
    answers[5].refused(400, "ALREADY_FAILED")
    assert (await api.final(flow_id))["status"] == "failed"
