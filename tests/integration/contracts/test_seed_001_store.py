"""Seed 001, statement by statement: where the key lives, how long, and what the contract layer does on retry."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import pytest

from counterfoil.contracts import (
    CallInFlight,
    ContractPhase,
    InvalidContract,
    PhaseEvent,
    SqliteDedupStore,
    ToolCall,
    ToolClass,
    ToolError,
    Transient,
    tool_contract,
)
from counterfoil.contracts.declaration import DEFAULT_WINDOWS
from counterfoil.contracts.testing import ContractCheckFailed, window
from tests.integration.contracts.payments import Payments
from tests.integration.contracts.seed_bench import ARGUMENTS, Bench, CountingStore
from tests.integration.contracts.shop_tools import Refund, good_refund

CALL: ToolCall[Any] = ToolCall(ARGUMENTS, idempotency_key="k-1")


# ------------------------------------------------------------------------------------------------ where the key lives


async def test_a_call_is_looked_up_executed_recorded_and_replayed(bench: Bench) -> None:
    """
    > The contract layer maintains a dedup store. On every incoming call: 1. Compute or accept the key. 2. Look up the
    > key in the dedup store. 3. If found, return the stored result without re-executing. 4. If not found, execute,
    > record (key → result) atomically with the side effect, and return.
    """
    accepted = await bench.tool().run(CALL)
    computed = await bench.tool().run(ToolCall(ARGUMENTS, conversation_id="c", step_id="s"))
    assert (bench.paid, accepted.refund_id, computed.refund_id) == (2, "re_1", "re_2")
    assert await bench.tool().run(CALL) == accepted
    assert await bench.tool().run(ToolCall(ARGUMENTS, conversation_id="c", step_id="s")) == computed
    assert bench.requests == 2


async def test_a_crash_before_the_effect_is_not_a_success(bench: Bench) -> None:
    """
    > If you record the key first and crash before the side effect, you will return the recorded "success" to a future
    > retry without ever having done the work.

    A reservation is no success: the retry does the work.
    """
    await bench.crash("reserve", CALL)
    assert bench.paid == 0
    bench.pass_time(seconds=301)
    assert (await bench.tool().run(CALL)).refund_id == "re_1"
    assert bench.paid == 1


async def test_a_crash_after_the_effect_does_not_repeat_it(bench: Bench) -> None:
    """
    > The atomicity in step 4 is the load-bearing detail.

    > If you record the side effect first and crash before storing the key, the next retry will execute the side
    > effect again. Atomicity has two reasonable implementations:

    > Q2. What is wrong with recording the dedup key after the side effect lands? Crash between the side effect and
    > the record. The side effect is done; the dedup store does not know. The next retry will re-execute the side
    > effect, producing a duplicate. The fix is two-phase: reserve the key as "pending" with a TTL before the side
    > effect, then transition to "complete" after; alternatively, pass the key to the downstream system as its own
    > idempotency parameter and let it handle atomicity. Wrong-answer notes: "use a transaction" is too vague; the
    > discussion is about the boundary between two systems (contract layer and downstream) that don't share a
    > transaction.

    The library does both: the reservation keeps retries out until its TTL, and the key goes to the downstream system.
    """
    await bench.crash("execute", CALL)
    assert bench.paid == 1
    assert await bench.code(bench.tool(), CALL) == "RETRY_IN_FLIGHT"
    bench.pass_time(seconds=301)
    assert (await bench.tool().run(CALL)).refund_id == "re_1"
    assert bench.paid == 1


async def test_the_downstream_system_gets_the_key_as_its_own(bench: Bench) -> None:
    """
    > Option A — Atomic on the downstream system. Pass the key to the downstream system as its own idempotency
    > parameter (Stripe-style). The contract layer just records what it received; the downstream system handles dedup.
    > This is the cleanest design when the downstream system supports it.
    """
    first = await bench.tool().run(CALL)
    lost = SqliteDedupStore(bench.folder / "another.db", clock=bench.clock)  # the contract layer knows nothing any more
    again = await bench.tool().bind(lost).run(CALL)
    lost.close()
    assert (again, bench.requests, bench.paid) == (first, 2, 1)


async def test_a_key_is_pending_then_complete(bench: Bench) -> None:
    """
    > Option B — Two-phase record in the contract layer. Reserve the key in a "pending" state with a short TTL,
    > execute the side effect, then transition the record to "complete". A retry seeing "pending" can wait; a retry
    > seeing "complete" returns the stored result. A pending record older than its TTL is treated as a failure and the
    > side effect can be retried.
    """
    states: list[tuple[str, str | None]] = []

    async def look(event: PhaseEvent) -> None:
        if event.moment == "end":
            shown = await bench.store.show("issue_refund", "k-1")
            states.append((event.phase, None if shown is None else shown.state))

    result = await bench.tool().bind(on_phase=look).run(CALL)
    assert dict(states) == {
        "receive": None,
        "validate": None,
        "look_up": "pending",
        "reserve": "pending",
        "execute": "pending",
        "record": "complete-success",
        "audit": "complete-success",
        "return": "complete-success",
    }
    assert await bench.tool().run(CALL) == result
    other = ToolCall(ARGUMENTS, idempotency_key="k-2")
    await bench.crash("reserve", other)
    assert await bench.code(bench.tool(), other) == "RETRY_IN_FLIGHT"
    waited = await bench.tool().bind(wait=400.0).run(other)  # the pauses move the clock past the TTL of 300 s
    assert (waited.refund_id, bench.paid) == ("re_2", 2)


async def test_a_record_made_after_the_effect_would_lose_it(bench: Bench) -> None:
    """
    > A separate "dedup table" updated after the side effect, with no atomicity. This is the silent-duplicate factory.

    > no atomicity between side effect and dedup record.

    No effect happens before its reservation is on disk: another connection to the file sees it while the tool runs.
    """
    seen: list[str] = []

    @tool_contract(name="issue_refund", version="1.0.0", effect="write-non-idempotent")
    async def refund(call: ToolCall[Refund]) -> None:
        beside = SqliteDedupStore(bench.folder / "effects.db", clock=bench.clock)
        shown = await beside.show("issue_refund", "k-1")
        beside.close()
        assert shown is not None
        seen.append(shown.state)

    await bench.bound(refund).run(CALL)
    assert seen == ["pending"]


async def test_two_concurrent_retries_do_not_both_miss_the_key(bench: Bench) -> None:
    """
    > A dedup table with eventual consistency on lookup. Two concurrent retries both miss the key and both execute.

    > Two retries arrive in parallel. Both miss the dedup lookup (because neither has completed) and both execute. The
    > fix is the "pending" record with a TTL: the second sees pending, waits (or returns RETRY_IN_FLIGHT), and the
    > first finishes. Without the pending record, race-on-retry produces silent duplicates.
    """
    codes = await asyncio.gather(*(bench.code(bench.tool(), CALL) for _ in range(20)))
    assert set(codes) <= {None, "RETRY_IN_FLIGHT"}
    assert codes.count(None) >= 1
    assert bench.requests == bench.paid == 1
    waiting = good_refund(bench.payments.url).bind(bench.store)  # these wait, in real time
    other = ToolCall(ARGUMENTS, idempotency_key="k-2")
    results = await asyncio.gather(*(waiting.run(other) for _ in range(20)))
    assert {result.refund_id for result in results} == {"re_2"}
    assert bench.paid == 2


# ------------------------------------------------------------------------------------------------ the window


async def test_a_key_is_honoured_for_its_window_and_then_forgotten(bench: Bench) -> None:
    """
    > A dedup record cannot live forever (storage cost, key collision over time). Each tool has a window during which
    > the key is honoured. After the window, the key is forgotten.
    """
    bench.payments.window = 0  # only the dedup store of the contract layer counts
    tool = bench.tool(window="24h")
    await tool.run(CALL)
    bench.pass_time(hours=23)
    await tool.run(CALL)
    assert bench.paid == 1
    bench.pass_time(hours=2)
    assert await bench.store.show("issue_refund", "k-1") is None
    await tool.run(CALL)
    assert bench.paid == 2


async def test_a_slow_retry_after_a_short_window_is_executed_again(bench: Bench) -> None:
    """
    > Window too short — a slow retry (network blip, system pause) lands after the window and the side effect executes
    > again.

    > dedup window shorter than the retry interval;
    """
    bench.payments.window = 0
    short, long = bench.tool(window="60s"), good_refund(bench.payments.url, window="24h")
    await short.run(CALL)
    bench.pass_time(seconds=90)
    await short.run(CALL)
    assert bench.paid == 2
    enough = bench.bound(long)
    other = ToolCall(ARGUMENTS, idempotency_key="k-2")
    await enough.run(other)
    bench.pass_time(seconds=90)
    await enough.run(other)
    assert bench.paid == 3


async def test_what_is_past_its_window_is_deleted_and_its_key_is_free(bench: Bench) -> None:
    """
    > Window too long — storage cost grows; key reuse across unrelated actions becomes possible.
    """
    tool = bench.tool(window="1h")
    for number in range(5):
        await tool.run(ToolCall(ARGUMENTS, idempotency_key=f"k-{number}"))
    other = ToolCall({**ARGUMENTS, "payment_id": "unrelated"}, idempotency_key="k-0")
    assert await bench.code(tool, other) == "EFFECT_KEY_REUSED"  # inside of the window, reuse is refused
    bench.pass_time(hours=2)
    assert await bench.store.forget() == 5
    assert await bench.code(tool, other) is None


def test_the_window_of_each_class() -> None:
    """
    > write-idempotent Forever (resource ID is the key) The resource ID is the dedup; the window is bounded by the
    > resource's lifetime

    > write-non-idempotent (low value) 24h Most retries land within minutes; a day covers crashes and deploy windows

    > write-non-idempotent (high value) 7d Refunds, charges; cover a long incident, weekend support cycle

    > Match the recovery window; longer if regulatory
    """

    def terms(effect: ToolClass, **more: Any) -> Any:
        @tool_contract(name="t", version="1.0.0", effect=effect, **more)
        async def tool(call: ToolCall[Refund]) -> None: ...

        return tool.terms

    assert terms("write-idempotent").window == "forever"
    assert terms("write-non-idempotent").window == "24h"
    assert terms("write-non-idempotent", value="high").window == "7d"
    assert terms("irreversible").window == "30d"
    assert terms("irreversible", window="7d").window == "7d"
    assert terms("irreversible", window="90d").window_ms == 90 * 86_400_000
    assert set(DEFAULT_WINDOWS) == set(get_args(ToolClass))


async def test_a_downstream_window_that_is_shorter_makes_the_contract_a_lie(payments: Payments) -> None:
    """
    > The window is documented in the contract (chapter 02 covered the slot). If your downstream system has a shorter
    > window than your contract claims, the contract is lying. Test this in the contract-testing layer (chapter 10).

    > The downstream system's dedup is shorter than yours. You record the key for 24h; the downstream system honours
    > it for 1h. After 1h, a retry with the same key creates a duplicate. The downstream truth wins. Test it (chapter
    > 10).

    > Document the dedup window per tool in the contract. Compare to the downstream system's actual behaviour.
    """
    with pytest.raises(InvalidContract, match="window 24h is longer than the downstream_window 1h"):
        good_refund(payments.url, window="24h", downstream="1h")
    payments.window = 3600  # what it really honours, whatever the contract says of it
    contract = good_refund(payments.url, window="24h", downstream="24h")
    with pytest.raises(ContractCheckFailed, match="claims a window of 24h, but the downstream system does not"):
        await window(
            contract,
            ARGUMENTS,
            effects=payments.paid,
            advance=lambda seconds: payments.clock.advance(seconds=round(seconds)),
        )


# ------------------------------------------------------------------------------------------------ on retry


async def test_the_eight_steps_in_their_order(bench: Bench) -> None:
    """
    > The full sequence, including retry decisions inside the contract layer itself.
    """
    phases: list[str] = []
    audit: list[str] = []
    tool = bench.tool().bind(
        on_phase=lambda event: phases.append(event.phase) if event.moment == "begin" else None,
        on_audit=lambda event: audit.append(event.type),
    )
    await tool.run(CALL)
    assert phases == list(ContractPhase)
    assert audit == ["effect_reserved", "effect_completed"]


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (ToolCall({"payment_id": "p"}, idempotency_key="k", scope="payments"), "INVALID_ARGUMENTS"),
        (ToolCall({**ARGUMENTS, "amount_minor": -1}, idempotency_key="k", scope="payments"), "INVALID_ARGUMENTS"),
        (ToolCall(ARGUMENTS, idempotency_key="k", version="3.0.0"), "VERSION_MISMATCH"),
        (ToolCall(ARGUMENTS, idempotency_key="k", version="2", scope="reads"), "SCOPE_MISMATCH"),
    ],
)
async def test_schema_scope_and_version_are_validated_before_anything_else(
    bench: Bench, call: ToolCall[Any], code: str
) -> None:
    """
    > 1. Receive call (key, args, scope, version). 2. Validate schema, scope, version.
    """
    assert await bench.code(bench.tool(scopes=["payments"]), call) == code
    assert (await bench.store.list_effects()).effects == ()
    assert bench.requests == 0


async def test_what_a_look_up_finds_decides(bench: Bench) -> None:
    """
    > 3. Look up key in dedup store. - If complete: return stored result; emit audit "dedup_hit". - If pending and
    > within TTL: wait or return "in flight" error. - If pending and beyond TTL: treat as failed; proceed to execute.
    > - If not present: proceed to execute. 4. Reserve key as "pending" with TTL.
    """
    audit: list[str] = []
    tool = bench.tool(pending_ttl=60).bind(on_audit=lambda event: audit.append(event.type))
    await bench.crash("reserve", CALL, tool)
    assert await bench.code(tool, CALL) == "RETRY_IN_FLIGHT"
    bench.pass_time(seconds=61)
    await tool.run(CALL)
    await tool.run(CALL)
    assert audit == ["call_refused", "effect_reserved", "effect_completed", "dedup_hit"]
    shown = await bench.store.show("issue_refund", "k-1")
    assert shown is not None
    assert (shown.fence, shown.audit[-1].type) == (2, "dedup_hit")
    assert bench.requests == 1


async def test_the_side_effect_gets_the_key_and_transient_errors_are_retried_with_it(bench: Bench) -> None:
    """
    > 5. Execute side effect against downstream system. - Pass key to downstream if it supports idempotency. - On
    > transient error: retry up to N times *with the same key*. - On non-retriable error: record key as
    > "complete-failed" with the error.

    > Step 5's internal retries reuse the key. This is the second place agents get this wrong: the contract layer's
    > HTTP client generates a new key on each retry. The contract layer must inject the key.
    """
    bench.payments.faults.extend([503, "cut-after", None])
    await bench.tool(retries=2).run(CALL)
    assert bench.payments.keys == {"k-1": 3}
    assert bench.paid == 1
    bench.payments.faults.extend([503] * 3)
    assert await bench.code(bench.tool(retries=2), ToolCall(ARGUMENTS, idempotency_key="k-2")) == "UPSTREAM_TIMEOUT"
    assert bench.payments.keys["k-2"] == 3
    bench.payments.faults.append(402)
    final = ToolCall(ARGUMENTS, idempotency_key="k-3")
    assert await bench.code(bench.tool(), final) == "CARD_EXPIRED"
    shown = await bench.store.show("issue_refund", "k-3")
    assert shown is not None
    assert (shown.state, (shown.error or {})["code"]) == ("complete-failed", "CARD_EXPIRED")


async def test_outcomes_are_recorded_before_they_are_returned(bench: Bench) -> None:
    """
    > 6. Record (key → result) atomically. Transition to "complete-success" or "complete-failed". 7. Emit audit. 8.
    > Return result.
    """
    at_return: list[tuple[str, list[str]]] = []

    async def look(event: PhaseEvent) -> None:
        if (event.phase, event.moment) == ("return", "begin"):
            shown = await bench.store.show("issue_refund", event.key or "")
            assert shown is not None
            at_return.append((shown.state, [entry.type for entry in shown.audit]))

    tool = bench.tool().bind(on_phase=look)
    await tool.run(CALL)
    bench.payments.faults.append(402)
    assert await bench.code(tool, ToolCall(ARGUMENTS, idempotency_key="k-2")) == "CARD_EXPIRED"
    trail = ["effect_reserved", "effect_completed"]
    assert at_return == [("complete-success", trail), ("complete-failed", trail)]


async def test_a_lapsed_reservation_is_the_recovery_hatch(bench: Bench) -> None:
    """
    > Step 3 "pending and beyond TTL" is the recovery hatch for cases where step 4–6 crashed midway. The pending TTL
    > must be longer than the realistic execution time of the tool, with margin.
    """  # noqa: RUF002 (the dash is that of the seed)
    for number, phase in enumerate(("look_up", "reserve", "execute")):
        call = ToolCall({**ARGUMENTS, "payment_id": f"p-{number}"}, idempotency_key=f"k-{number}")
        await bench.crash(phase, call)
        assert await bench.code(bench.tool(), call) == "RETRY_IN_FLIGHT"
        bench.pass_time(seconds=301)
        assert await bench.code(bench.tool(), call) is None
        assert bench.paid == number + 1
    with pytest.raises(InvalidContract, match="longer than the tool ever runs"):
        good_refund(bench.payments.url, pending_ttl=0.5)


async def test_a_tool_that_takes_longer_than_its_ttl_is_fenced_off(bench: Bench) -> None:
    """
    > The pending TTL must be longer than the realistic execution time of the tool, with margin.

    Where it is not, the late holder's outcome does not overwrite that of the caller that took the key over.
    """

    @tool_contract(name="issue_refund", version="1.0.0", effect="write-non-idempotent", pending_ttl=60)
    async def slow(call: ToolCall[Refund]) -> str:
        if call.fence == 1:
            bench.pass_time(seconds=61)
            return f"late, after {await bench.bound(slow).run(CALL)}"
        return "in time"

    assert await bench.code(bench.bound(slow), CALL) == "FENCED"
    assert await bench.bound(slow).run(CALL) == "in time"


async def test_a_recorded_failure_is_replayed_and_a_new_key_is_a_new_decision(bench: Bench) -> None:
    """
    > Step 6's "complete-failed" record is important. A failed call should not be retried after the dedup window
    > unless the caller decides to (with a new key for a new logical action). Storing the failure prevents accidental
    > retry-on-replay.
    """
    bench.payments.faults.append(402)
    tool = bench.tool()
    for _ in range(3):
        with pytest.raises(ToolError) as failed:
            await tool.run(CALL)
        assert (failed.value.code, failed.value.retriable) == ("CARD_EXPIRED", False)
    assert failed.value.replayed
    assert bench.requests == 1
    assert await bench.code(tool, ToolCall(ARGUMENTS, idempotency_key="another decision")) is None
    assert bench.paid == 1


async def test_a_transient_error_keeps_the_reservation(bench: Bench) -> None:
    """
    > except UpstreamTimeout: # let outer layer retry; do NOT release the reservation return
    > ToolResult.error("UPSTREAM_TIMEOUT", retriable=True)
    """
    bench.payments.faults.extend(["cut-after"] * 3)
    with pytest.raises(Transient) as failed:
        await bench.tool().run(CALL)
    assert (failed.value.code, failed.value.retriable) == ("UPSTREAM_TIMEOUT", True)
    shown = await bench.store.show("issue_refund", "k-1")
    assert shown is not None
    assert shown.state == "pending"
    with pytest.raises(CallInFlight):
        await bench.tool().run(CALL)
    bench.pass_time(seconds=301)
    assert await bench.code(bench.tool(), CALL) is None
    assert bench.paid == 1


async def test_a_call_asks_the_store_twice_and_a_replay_once(bench: Bench) -> None:
    """
    > The dedup store is the bottleneck. Every call is a read-then-write on the dedup store. At scale, this is real
    > load.

    Looking up and reserving are one question; a replay is that question alone.
    """
    counting: Any = CountingStore(bench.store)
    tool = good_refund(bench.payments.url).bind(counting)
    await tool.run(CALL)
    assert counting.asked == {"reserve": 1, "complete": 1}
    await tool.run(CALL)
    assert counting.asked == {"reserve": 2, "complete": 1}
