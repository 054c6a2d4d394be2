"""A call of a contract on every store: one effect for one key, whatever is repeated, fails, lapses or is late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from counterfoil.contracts import (
    AuditEvent,
    CallInFlight,
    ContractPhase,
    ContractViolation,
    DedupStore,
    EffectKeyConflict,
    HolderFenced,
    InFlightWait,
    OutcomeConflict,
    OutcomeUnknown,
    PartialSuccess,
    PhaseEvent,
    ToolCall,
    ToolError,
    ToolFailure,
    Transient,
    UnsafeOnceIncomplete,
    tool_contract,
    using,
)
from counterfoil.testing import MovableClock
from tests.contracts.conftest import Dedup
from tests.contracts.refunds import TOOL, Provider, Refund, Refunded, asked, refunding
from tests.eventually import eventually

WRITES = ["write-idempotent", "write-non-idempotent", "irreversible"]


class Sleeps:
    """A sleep that moves the clock instead of waiting."""

    def __init__(self, clock: MovableClock) -> None:
        self.pauses: list[float] = []
        self._clock = clock

    async def __call__(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._clock.advance(milliseconds=round(seconds * 1000))
        await asyncio.sleep(0)


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def sleeps(clock: MovableClock) -> Sleeps:
    return Sleeps(clock)


async def trail(store: DedupStore, key: str = "k") -> list[str]:
    shown = await store.show(TOOL, key)
    return [] if shown is None else [entry.type for entry in shown.audit]


@pytest.mark.parametrize("effect", WRITES)
async def test_a_repeat_gets_the_stored_result_and_executes_nothing(
    dedup: Dedup, provider: Provider, effect: Any
) -> None:
    first = await refunding(provider, dedup.store, effect)(asked())
    again = await refunding(provider, dedup.another(), effect)(asked(arguments={"reason": "another wording"}))
    assert first == again == Refunded(refund_id="r-1", amount_minor=1_400)
    assert provider.executions == 1
    assert await trail(dedup.store) == ["effect_reserved", "effect_completed", "dedup_hit"]


async def test_the_tool_gets_the_key_to_pass_on(store: DedupStore, provider: Provider) -> None:
    await refunding(provider, store)(asked("refund:order-7"))
    [call] = provider.effects
    assert call.headers() == {"Idempotency-Key": "refund:order-7"}
    assert (call.attempt, call.fence) == (1, 1)


async def test_a_key_is_made_of_conversation_step_tool_and_arguments(store: DedupStore, provider: Provider) -> None:
    refund = refunding(provider, store)
    for reason in ("first wording", "second wording"):
        await refund(asked(None, conversation_id="c", step_id="s", arguments={"reason": reason}))
    assert provider.executions == 1
    await refund(asked(None, conversation_id="c", step_id="s2"))
    await refund(asked(None, conversation_id="c", step_id="s", arguments={"amount_minor": 1}))
    assert provider.executions == 3
    assert len({call.idempotency_key for call in provider.effects}) == 3


async def test_other_arguments_with_the_same_key_are_refused(store: DedupStore, provider: Provider) -> None:
    refund = refunding(provider, store)
    await refund(asked())
    with pytest.raises(EffectKeyConflict):
        await refund(asked(arguments={"amount_minor": 1}))
    assert provider.executions == 1


async def test_a_final_failure_is_recorded_and_replayed(store: DedupStore, provider: Provider) -> None:
    refund = refunding(provider, store)
    provider.before = [ToolFailure("CARD_EXPIRED", "the card expired in May", details={"month": 5})]
    with pytest.raises(ToolFailure) as first:
        await refund(asked())
    with pytest.raises(ToolFailure) as again:
        await refund(asked())
    assert (first.value.replayed, again.value.replayed) == (False, True)
    assert first.value.to_dict() == again.value.to_dict()
    assert again.value.to_dict() == {
        "code": "CARD_EXPIRED",
        "retriable": False,
        "hint": "the card expired in May",
        "corrective_action": "Ask for another card.",
        "details": {"month": 5},
    }
    assert provider.executions == 1


async def test_partial_success_is_recorded_with_its_parts_and_never_repeated(
    store: DedupStore, provider: Provider
) -> None:
    refund = refunding(provider, store)
    provider.before = [PartialSuccess(["refund"], ["email", "ledger"])]
    for _ in range(2):
        with pytest.raises(PartialSuccess) as partial:
            await refund(asked())
        assert (partial.value.done, partial.value.undone) == (["refund"], ["email", "ledger"])
        assert partial.value.to_dict()["details"] == {"done": ["refund"], "undone": ["email", "ledger"]}
        assert not partial.value.retriable
    assert provider.executions == 1


async def test_transient_errors_are_retried_inside_with_the_same_key(
    store: DedupStore, provider: Provider, sleeps: Sleeps
) -> None:
    provider.before = [Transient("UPSTREAM_TIMEOUT"), BlockingIOError()]
    await refunding(provider, store, sleep=sleeps)(asked())
    assert provider.executions == 3
    assert sleeps.pauses == [0.2, 0.4]
    [call] = provider.effects
    assert (call.idempotency_key, call.attempt) == ("k", 3)
    assert await trail(store) == ["effect_reserved", "effect_completed"]


async def test_when_retries_are_used_up_the_reservation_is_kept(
    store: DedupStore, provider: Provider, sleeps: Sleeps, clock: MovableClock
) -> None:
    refund = refunding(provider, store, sleep=sleeps, clock=clock, wait=0)
    provider.before = [Transient("UPSTREAM_TIMEOUT") for _ in range(3)]
    with pytest.raises(Transient) as error:
        await refund(asked())
    assert (error.value.code, error.value.retriable, provider.executions) == ("UPSTREAM_TIMEOUT", True, 3)
    assert error.value.retry_after == pytest.approx(60, abs=5)
    with pytest.raises(CallInFlight):
        await refund(asked())
    clock.advance(seconds=60)
    assert (await refund(asked())).refund_id == "r-1"
    assert [call.fence for call in provider.effects] == [2]


async def test_an_irreversible_tool_is_repeated_only_if_surely_nothing_happened(
    store: DedupStore, provider: Provider, sleeps: Sleeps, clock: MovableClock
) -> None:
    refund = refunding(provider, store, "irreversible", sleep=sleeps, clock=clock)
    provider.before = [Transient("UPSTREAM_TIMEOUT", not_applied=True), Transient("UPSTREAM_TIMEOUT")]
    with pytest.raises(Transient) as error:
        await refund(asked())
    assert (error.value.retriable, provider.executions) == (False, 2)
    assert "person" in error.value.corrective_action
    clock.advance(seconds=60)
    with pytest.raises(UnsafeOnceIncomplete):
        await refund(asked())
    assert provider.executions == 2


@pytest.mark.parametrize("effect", WRITES)
async def test_an_exception_that_the_contract_does_not_know_leaves_the_outcome_unknown(
    store: DedupStore, provider: Provider, clock: MovableClock, effect: Any
) -> None:
    refund = refunding(provider, store, effect, clock=clock, wait=0)
    provider.before = [ZeroDivisionError("secret text")]
    with pytest.raises(OutcomeUnknown) as unknown:
        await refund(asked())
    assert unknown.value.retriable is (effect != "irreversible")
    assert isinstance(unknown.value.__cause__, ZeroDivisionError)
    assert "secret text" not in str(unknown.value.to_dict())
    with pytest.raises(CallInFlight):
        await refund(asked())
    clock.advance(seconds=60)
    if effect == "irreversible":
        with pytest.raises(UnsafeOnceIncomplete) as held:
            await refund(asked())
        assert (held.value.tool, held.value.key) == (TOOL, "k")
        assert "'k'" not in str(held.value.to_dict())
    else:
        assert (await refund(asked())).refund_id == "r-1"


async def test_a_declared_exception_type_is_its_code(store: DedupStore, provider: Provider) -> None:
    provider.before = [LookupError("p-1")]
    with pytest.raises(ToolFailure) as error:
        await refunding(provider, store)(asked())
    assert (error.value.code, error.value.corrective_action) == ("NO_SUCH_PAYMENT", "Ask for the payment.")
    assert await trail(store) == ["effect_reserved", "effect_completed"]


async def test_an_undeclared_code_is_a_violation_that_is_recorded(store: DedupStore, provider: Provider) -> None:
    provider.before = [ToolFailure("SURPRISE")]
    for _ in range(2):
        with pytest.raises(ContractViolation) as violation:
            await refunding(provider, store)(asked())
        assert violation.value.details == {"code": "SURPRISE"}
    assert provider.executions == 1


async def test_an_undeclared_transient_code_keeps_the_reservation(store: DedupStore, provider: Provider) -> None:
    provider.before = [Transient("SURPRISE")]
    with pytest.raises(ContractViolation):
        await refunding(provider, store)(asked())
    assert provider.executions == 1
    assert await trail(store) == ["effect_reserved"]


async def test_a_result_that_does_not_fit_is_never_executed_again(store: DedupStore, provider: Provider) -> None:
    async def wrong(call: Any) -> Any:
        provider.executions += 1
        return {"refund_id": 7}

    refund = refunding(provider, store)
    provider.refund = wrong  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(ContractViolation, match="executed"):
            await refund(asked())
    assert provider.executions == 1


async def test_concurrent_calls_wait_for_the_first_one(dedup: Dedup, provider: Provider) -> None:
    released = asyncio.Event()
    provider.before = [released.wait]
    wait = InFlightWait(30, first_pause=0.01, longest_pause=0.05)
    contracts = [refunding(provider, store, wait=wait) for store in (dedup.store, dedup.another())]
    calls = [asyncio.ensure_future(contracts[number % 2](asked())) for number in range(20)]
    await eventually(lambda: provider.executions == 1)
    released.set()
    assert await asyncio.gather(*calls) == [Refunded(refund_id="r-1", amount_minor=1_400)] * 20
    assert provider.executions == 1
    assert (await trail(dedup.store)).count("dedup_hit") == 19


async def test_without_waiting_a_call_in_flight_is_a_retriable_error(
    store: DedupStore, provider: Provider, clock: MovableClock
) -> None:
    released = asyncio.Event()
    provider.before = [released.wait]
    refund = refunding(provider, store, wait=0, clock=clock)
    first = asyncio.ensure_future(refund(asked()))
    await eventually(lambda: provider.executions == 1)
    with pytest.raises(CallInFlight) as error:
        await refund(asked())
    assert (error.value.code, error.value.retriable) == ("RETRY_IN_FLIGHT", True)
    assert error.value.retry_after == pytest.approx(60, abs=5)
    released.set()
    await first


async def test_a_waiting_call_takes_over_when_the_holder_lapses(
    store: DedupStore, provider: Provider, clock: MovableClock, sleeps: Sleeps
) -> None:
    forever = asyncio.Event()
    provider.before = [forever.wait]
    lost = asyncio.ensure_future(refunding(provider, store)(asked()))
    await eventually(lambda: provider.executions == 1)
    wait = InFlightWait(120, first_pause=1, longest_pause=20)
    result = await refunding(provider, store, wait=wait, sleep=sleeps, clock=clock)(asked())
    assert (result.refund_id, provider.effects[0].fence) == ("r-1", 2)
    lost.cancel()


async def test_a_holder_that_comes_back_after_its_ttl_is_fenced_off(
    store: DedupStore, provider: Provider, clock: MovableClock
) -> None:
    released = asyncio.Event()
    provider.before = [released.wait]
    refund = refunding(provider, store, clock=clock)
    late = asyncio.ensure_future(refund(asked()))
    await eventually(lambda: provider.executions == 1)
    clock.advance(seconds=60)
    second = await refund(asked())
    released.set()
    with pytest.raises(HolderFenced) as fenced:
        await late
    assert (fenced.value.code, fenced.value.retriable) == ("FENCED", True)
    assert await refund(asked()) == second


async def test_an_outcome_after_a_settlement_that_says_otherwise_is_a_conflict(
    store: DedupStore, provider: Provider, clock: MovableClock
) -> None:
    released = asyncio.Event()
    provider.before = [released.wait]
    refund = refunding(provider, store, "irreversible", clock=clock)
    late = asyncio.ensure_future(refund(asked()))
    await eventually(lambda: provider.executions == 1)
    clock.advance(seconds=60)
    await store.settle(TOOL, "k", "failed", error={"code": "CARD_EXPIRED"})
    released.set()
    with pytest.raises(OutcomeConflict):
        await late


async def test_a_settled_irreversible_call_is_replayed_or_executed_anew(
    store: DedupStore, provider: Provider, clock: MovableClock
) -> None:
    refund = refunding(provider, store, "irreversible", clock=clock)
    for key in ("applied", "not"):
        provider.before = [OSError()]
        with pytest.raises(OutcomeUnknown):
            await refund(asked(key))
    clock.advance(seconds=60)
    await store.settle(TOOL, "applied", "applied", result={"refund_id": "r-0", "amount_minor": 5})
    await store.settle(TOOL, "not", "not_applied")
    assert await refund(asked("applied")) == Refunded(refund_id="r-0", amount_minor=5)
    assert (await refund(asked("not"))).refund_id == "r-1"
    assert provider.executions == 3


async def test_after_the_window_the_key_is_a_new_action(
    store: DedupStore, provider: Provider, clock: MovableClock
) -> None:
    refund = refunding(provider, store, window="1h", clock=clock)
    await refund(asked())
    clock.advance(minutes=59)
    await refund(asked())
    assert provider.executions == 1
    clock.advance(minutes=1)
    await refund(asked())
    assert provider.executions == 2


async def test_a_cancelled_call_still_records_its_outcome(store: DedupStore, provider: Provider) -> None:
    begun = asyncio.Event()

    def at(event: PhaseEvent) -> None:
        if (event.phase, event.moment) == (ContractPhase.RECORD, "begin"):
            begun.set()

    call = asyncio.ensure_future(refunding(provider, store, on_phase=at)(asked()))
    await begun.wait()
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await refunding(provider, store)(asked())).refund_id == "r-1"
    assert provider.executions == 1


ALL = [(phase, moment) for phase in ContractPhase for moment in ("begin", "end")]


async def test_every_phase_begins_and_ends_in_order(store: DedupStore, provider: Provider) -> None:
    seen: list[PhaseEvent] = []
    with using(store, on_phase=seen.append):
        await refunding(provider)(asked())
    assert [(event.phase, event.moment) for event in seen] == ALL
    assert {event.tool for event in seen} == {TOOL}
    assert seen[-1].fence == 1


class Crash(Exception):
    """What a hook raises to end a call at a point."""


@pytest.mark.parametrize(("phase", "moment"), ALL, ids=str)
@pytest.mark.parametrize("effect", WRITES)
async def test_a_call_that_ends_between_phases_leaves_one_effect_at_most_after_its_retry(
    store: DedupStore, provider: Provider, clock: MovableClock, phase: ContractPhase, moment: str, effect: Any
) -> None:
    """The downstream system honours the key, so two executions with one key are one effect."""

    def crash(event: PhaseEvent) -> None:
        if (event.phase, event.moment) == (phase, moment):
            raise Crash

    with pytest.raises(Crash):
        await refunding(provider, store, effect, on_phase=crash, clock=clock)(asked())
    clock.advance(seconds=60)
    executed = provider.executions
    again = refunding(provider, store, effect, clock=clock)
    shown = await store.show(TOOL, "k")
    if shown is not None and shown.state == "pending" and effect == "irreversible":
        with pytest.raises(UnsafeOnceIncomplete):
            await again(asked())
        assert provider.executions == executed
        return
    await again(asked())
    assert {call.idempotency_key for call in provider.effects} == {"k"}
    recorded = ALL.index((phase, moment)) > ALL.index((ContractPhase.RECORD, "begin"))
    assert provider.executions == executed + (0 if recorded else 1)


async def test_plain_threads_use_every_store(dedup: Dedup) -> None:
    """Their calls run on another event loop than the test: a store has connections for each."""
    paid: list[str] = []

    @tool_contract(name="pay", version="1.0.0", effect="write-non-idempotent", store=dedup.store)
    def pay(call: ToolCall[Refund]) -> int:
        paid.append(call.arguments.payment_id)
        return len(paid)

    answers = await asyncio.gather(*(asyncio.to_thread(pay, asked()) for _ in range(5)), pay.run(asked()))
    assert (answers, paid) == ([1] * 6, ["p-1"])


async def test_audit_events_are_told(store: DedupStore, provider: Provider) -> None:
    told: list[AuditEvent] = []
    refund = refunding(provider, store, on_audit=told.append)
    await refund(asked())
    await refund(asked())
    with pytest.raises(ToolError):
        await refund(asked(None))
    provider.before = [OSError()]
    with pytest.raises(ToolError):
        await refund(asked("other"))
    assert [(event.type, event.key, event.code) for event in told] == [
        ("effect_reserved", "k", None),
        ("effect_completed", "k", None),
        ("dedup_hit", "k", None),
        ("call_refused", None, "KEY_REQUIRED"),
        ("effect_reserved", "other", None),
        ("outcome_unknown", "other", "OUTCOME_UNKNOWN"),
    ]


async def test_a_failing_audit_hook_changes_no_outcome(
    store: DedupStore, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(event: AuditEvent) -> None:
        raise RuntimeError(event.type)

    hook: Callable[[AuditEvent], Awaitable[None]] = broken
    assert (await refunding(provider, store, on_audit=hook)(asked())).refund_id == "r-1"
    assert "on_audit failed" in caplog.text
