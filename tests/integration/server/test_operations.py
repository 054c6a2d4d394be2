"""Section 6: health, readiness, metrics, the OpenAPI document and its page."""

from __future__ import annotations

import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from counterfoil.testing import Answer, StepEndpoint
from tests.eventually import eventually
from tests.integration.scenario import PATH, STEP, dispatched
from tests.wire import Api


async def test_healthz(api: Api) -> None:
    reply = await api.get("/healthz")
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith("application/json")


async def test_readyz(api: Api) -> None:
    """Ready means: the store answers and the sweeps run."""
    body = await eventually(lambda: _ready(api))
    assert set(body) >= {"store", "sweeps"}


async def _ready(api: Api) -> Any:
    reply = await api.get("/readyz")
    return reply.body if reply.status == 200 else None


async def samples(api: Api) -> dict[str, list[tuple[dict[str, str], float]]]:
    """All samples by name; the parser fails on text that is not the Prometheus format."""
    reply = await api.get("/metrics")
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith(("text/plain", "application/openmetrics-text"))
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(reply.content.decode()):
        assert family.documentation, family.name
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def total(found: dict[str, list[tuple[dict[str, str], float]]], name: str, **labels: str) -> float:
    return sum(value for have, value in found.get(name, []) if labels.items() <= have.items())


async def test_metrics_tell_the_story(api: Api, endpoint: StepEndpoint) -> None:
    """Work by state, dispatches by outcome, completions by verdict, latency, age, batches, backlog, sweeps."""
    endpoint.answer("/busy", Answer(503))
    endpoint.answer("/no", Answer(404))
    await api.put_step("busy", endpoint.url("/busy"), work={"init_backoff_ms": 60_000, "max_backoff_ms": 60_000})
    await api.put_step("no", endpoint.url("/no"))
    _, received = await dispatched(api, endpoint)
    await dispatched(api, endpoint)
    await api.succeed(received, a=1)
    (await api.complete(received, {"success": True, "outputs": {"a": 1}})).refused(400, "ALREADY_SUCCEEDED")
    (await api.complete(received, {"success": "yes"})).refused(422, "INVALID_RESULT")
    (await api.complete(received, {"success": True, "outputs": {"a": 2}})).refused(400, "CONFLICTING_RESULT")
    (await api.post(f"/webhook/x/y/{'z' * 40}", {"success": True})).refused(404, "UNKNOWN_RECEIPT")
    busy = await api.start("busy")
    await api.until_work(busy, "not_completed")
    await api.final(await api.start("no"))
    found = await samples(api)
    text = " ".join(found)
    for part in ("work", "dispatch", "completion", "callback", "oldest", "batch", "commit", "backlog", "sweep"):
        assert part in text, (part, sorted(found))
    assert total(found, "counterfoil_dispatches_total", outcome="acknowledged") == 2
    assert total(found, "counterfoil_dispatches_total") == 4
    assert total(found, "counterfoil_completions_total", verdict="accepted") == 1
    assert total(found, "counterfoil_completions_total", verdict="already_succeeded") == 1
    assert total(found, "counterfoil_completions_total", verdict="conflicting_result") == 1
    assert total(found, "counterfoil_completions_total", verdict="unknown_receipt") == 1
    assert total(found, "counterfoil_completions_total", verdict="invalid_result") == 1
    assert total(found, "counterfoil_callback_seconds_count") == 1
    assert total(found, "counterfoil_batch_size_count") > 5
    assert total(found, "counterfoil_commit_seconds_count") == total(found, "counterfoil_batch_size_count")
    counts = await work_by_state(api, active=1, not_completed=1, pending=0)
    assert (counts.get("succeeded", 1), counts.get("failed", 1)) == (1, 1), "what is not counted is not shown as none"
    assert total(await samples(api), "counterfoil_oldest_waiting_seconds", step=STEP) > 0


async def work_by_state(api: Api, **wanted: float) -> dict[str, float]:
    """Wait until the work items are counted so: the gauge may be a moment behind the database."""

    async def look() -> dict[str, float] | None:
        counts = {labels["state"]: value for labels, value in (await samples(api))["counterfoil_work_items"]}
        return counts if wanted.items() <= counts.items() else None

    return await eventually(look, what=f"work items {wanted}")


async def test_metrics_have_no_unbounded_labels(api: Api, endpoint: StepEndpoint) -> None:
    """No flow, work or receipt ids among the labels."""
    flow_id, received = await dispatched(api, endpoint)
    work_id = (await api.work(flow_id))["work_id"]
    text = (await api.get("/metrics")).content.decode()
    assert flow_id not in text
    assert work_id not in text
    assert received.token not in text


async def test_every_metric_is_named_after_the_product(api: Api, endpoint: StepEndpoint) -> None:
    await dispatched(api, endpoint)
    for name in await samples(api):
        assert name.startswith(("counterfoil_", "process_", "python_")), name


async def test_openapi(api: Api) -> None:
    document = (await api.get("/openapi.json")).ok()
    assert document["openapi"].startswith("3.")
    paths = {re.sub(r"{[^}]*}", "{}", path): set(operations) for path, operations in document["paths"].items()}
    expected = {
        "/webhook/{}/{}/{}": {"post", "get"},
        "/webhook/{}/{}": {"post"},
        "/webhook/{}/{}/{}/heartbeat": {"post"},
        "/api/v1/steps": {"get"},
        "/api/v1/steps/{}": {"put", "get", "delete"},
        "/api/v1/flows": {"get", "post"},
        "/api/v1/flows/{}": {"get"},
        "/api/v1/flows/{}/result": {"get"},
        "/api/v1/flows/{}/events": {"get"},
        "/api/v1/flows/{}/stream": {"get"},
        "/api/v1/flows/{}/cancel": {"post"},
        "/api/v1/stream": {"get"},
        "/api/v1/work": {"get"},
        "/api/v1/work/{}": {"get"},
        "/healthz": {"get"},
        "/readyz": {"get"},
        "/metrics": {"get"},
    }
    for path, operations in expected.items():
        assert operations <= paths.get(path, set()), path
    post = next(
        operations["post"]
        for path, operations in document["paths"].items()
        if re.sub(r"{[^}]*}", "{}", path) == "/webhook/{}/{}/{}"
    )
    assert {"200", "400", "404", "413", "415", "422", "401", "503"} <= set(post["responses"])


async def test_docs_need_nothing_from_elsewhere(api: Api) -> None:
    reply = await api.get("/docs")
    assert reply.status == 200
    page = reply.content.decode()
    assert "<html" in page.lower()
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", page)
    for asset in re.findall(r"""(?:src|href)\s*=\s*["'](/[^"']+)["']""", page):
        assert (await api.get(asset)).status == 200, asset


@pytest.mark.either_store
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"])
async def test_they_take_no_other_method(api: Api, path: str) -> None:
    (await api.request("POST", path, json={})).refused(405, "METHOD_NOT_ALLOWED")


async def test_head_is_answered_like_get(api: Api) -> None:
    assert (await api.request("HEAD", "/healthz")).status == 200


async def test_answers_are_not_cached_nor_sniffed(api: Api, endpoint: StepEndpoint) -> None:
    """State must not be served from a cache between the caller and the engine."""
    flow_id, _ = await dispatched(api, endpoint)
    reply = await api.get(f"/api/v1/flows/{flow_id}")
    assert reply.headers.get("Cache-Control") in (None, "no-store", "no-cache")
    assert reply.headers["Content-Type"].split(";")[0] == "application/json"


async def test_what_waits_is_counted(api: Api, endpoint: StepEndpoint) -> None:
    """Also what was there before, and what has ended since."""
    await api.put_step(STEP, endpoint.url(PATH), work={"parallelism": 1})
    flows = [await api.start(STEP) for _ in range(20)]
    received = await endpoint.received(PATH)
    await work_by_state(api, pending=19, active=1)
    (await api.post(f"/api/v1/flows/{flows[-1]}/cancel")).ok()
    await api.succeed(received)
    await work_by_state(api, pending=17, active=1)
