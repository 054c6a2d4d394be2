"""Whatever is sent to a step that accepts a vendor's callback, it is a clear refusal: never a 500, never a change."""

from __future__ import annotations

import random

import orjson
import pytest

from counterfoil.testing import MovableClock, StepEndpoint
from tests.integration.callbacks.vendor_calls import DONE, SECRETS, called
from tests.running import Connect, StartNode
from tests.seeds import announce
from tests.vendors import VENDORS, Vendor

pytestmark = [pytest.mark.both_paths, pytest.mark.fuzz]

ROUNDS = 150
NONSENSE: list[bytes] = [
    b"",
    b"null",
    b"[]",
    b"{",
    b"[" * 10_000,
    b'{"type":' * 90 + b"1" + b"}" * 90,
    b'{"type": "\\ud800"}',
    b'{"type": "a\\u0000b", "status": 1e999}',
    b'{"type": 123456789012345678901234567890}',
    b'{"success": true, "outputs": {"text": "forged"}}',
    orjson.dumps({"type": {"a": [1]}, "status": ["completed"], "result": None}),
    orjson.dumps({"type": "job", "status": "failed", "error": {"message": {"a": 1}}}),
]
"""Nothing of this can be read by the map."""
BODIES = [*NONSENSE, b"\xff\xfe\x00", orjson.dumps(DONE), b'{"type": "ping"}']
PARTS = ["t=", "v1=", "v0=", "v1,", "sha256=", ",", ";", " ", "=", "0" * 64, "é", "-1", "9" * 30, "{", "}", "%00", "\t"]


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.preset)
async def test_no_body_and_no_header_makes_an_error_of_the_engine(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, vendor: Vendor
) -> None:
    clock = MovableClock()
    dice = random.Random(announce())
    call = await called(connect(await start_node(clock, secrets=SECRETS)), endpoint, clock, vendor)
    names = list(vendor.sign(vendor.secret, b"", 0))
    for _ in range(ROUNDS):
        body = dice.choice(BODIES)
        seconds = clock() // 1000
        headers: dict[str, str] = {name: "".join(dice.choices([*PARTS, str(seconds)], k=4)).strip() for name in names}
        reply = await call.plain(body, **headers)
        assert (reply.status, reply.code) == (401, "INVALID_SIGNATURE"), (headers, body[:80])
    await call.unchanged()
    for body in NONSENSE:  # signed as it should be: the vendor itself sends it
        assert (await call.signed(body)).refused(422, "INVALID_PAYLOAD")["errors"], body[:80]
    await call.unchanged()
    assert (await call.signed(DONE)).ok()["verdict"] == "accepted"
