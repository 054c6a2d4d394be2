"""A receipt secret that is gone stops the start of a real engine while receipts are out, and says what to do."""

from __future__ import annotations

from pathlib import Path

from counterfoil.testing import StepEndpoint
from tests.acceptance.conftest import ClientOf
from tests.acceptance.processes import EngineProcess, run_command
from tests.acceptance.starting import logged, refused
from tests.by_hand import by_hand


def lose_secret(engine: EngineProcess) -> str:
    """Take the secret away from where the engine keeps it."""
    if isinstance(engine.place, Path):
        path = engine.data / "receipt.secret"
        text = path.read_text()
        path.unlink()
        return text
    [(text,)] = by_hand(engine.place, "SELECT secret FROM receipt_secret")
    by_hand(engine.place, "DELETE FROM receipt_secret")
    return str(text)


def restore_secret(engine: EngineProcess, text: str) -> None:
    if isinstance(engine.place, Path):
        path = engine.data / "receipt.secret"
        path.touch(mode=0o600)
        path.write_text(text)
    else:
        by_hand(engine.place, f"INSERT INTO receipt_secret (secret) VALUES ('{text}')")


def has_secret(engine: EngineProcess) -> bool:
    if isinstance(engine.place, Path):
        return (engine.data / "receipt.secret").exists()
    return bool(by_hand(engine.place, "SELECT 1 FROM receipt_secret"))


async def test_a_lost_secret_stops_the_start_while_receipts_are_out(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    api = client_of(engine)
    await api.put_step("job", endpoint.url("/job"))
    flows = [await api.start("job") for _ in range(2)]
    for flow_id in flows:
        await api.until_acknowledged(flow_id)
    received = {each.metadata["flow_id"]: each for each in endpoint.requests("/job")}
    assert await engine.stop() == 0
    secret = lose_secret(engine)

    message = await refused(engine)
    for hint in ("2 open work items", "receipt.secret", "receipt_secrets", "--new-receipt-secret"):
        assert hint in message
    assert secret.strip() not in engine.output()
    assert not has_secret(engine), "nothing is made that would have to be removed again"

    restore_secret(engine, secret)
    await engine.start()
    (await api.complete(received[flows[0]], {"success": True})).ok()
    assert await engine.stop() == 0
    lose_secret(engine)
    assert "1 open work items" in await refused(engine)

    await engine.start("--new-receipt-secret")
    [entry] = logged(engine, "receipt_secret_replaced")
    assert (entry["level"], entry["receipts_given_up"]) == ("warning", 1)
    (await api.complete(received[flows[1]], {"success": True})).refused(404, "UNKNOWN_RECEIPT")
    assert await engine.stop() == 0
    await engine.start()
    assert not logged(engine, "receipt_secret_replaced"), "given up once"
    await engine.stop()
    code, output, _ = await run_command("doctor", "--store", engine.store_url)
    assert code == 0, output


async def test_a_lost_secret_is_replaced_and_told_when_nothing_is_out(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    api = client_of(engine)
    await api.put_step("job", endpoint.url("/job"))
    flow_id = await api.start("job")
    await api.succeed(await endpoint.received("/job"))
    await api.final(flow_id)
    assert await engine.stop() == 0
    secret = lose_secret(engine)
    await engine.start()
    [entry] = logged(engine, "receipt_secret_replaced")
    assert entry["receipts_given_up"] == 0
    assert has_secret(engine)
    await engine.stop()
    assert lose_secret(engine) != secret
