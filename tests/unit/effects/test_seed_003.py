"""Seed 003, statement by statement: what each effect policy allows after a crash, and what settles the rest.

An operation of the seed is a step here, a plan its registration, the journal the database, and a resume the start of an
engine after a crash.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import orjson
import pytest

from counterfoil.domain.effects.keys import idempotency_key
from counterfoil.domain.effects.reconciling import Settlement
from counterfoil.domain.errors import NotPending, NotWaitingForReconciliation, UnsafeOnceRequiresControl
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.policies.definitions import PolicyDefinition
from counterfoil.domain.work.results import StepResult
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import CrashPoint, Simulator, answered
from tests.quotations import document, left_out, not_in, quotations, words
from tests.store.records import ENDPOINT, definition
from tests.unit.effects.charges import HELD, RETRIED, approve, crash, item_of, look, much_later, queue, sent, start

ALL = (*RETRIED, *HELD)
SUCCESS = StepResult(success=True, outputs={"charge_id": "ch_1"})


async def crashed(simulator: Simulator, policy: str, **fields: Any) -> str:
    """A charge on the wire whose engine crashed and runs again: an intent without a result."""
    work_id = await start(simulator, policy, **fields)
    await crash(simulator)
    await much_later(simulator)
    return work_id


async def events(simulator: Simulator, flow_id: str = "f") -> list[str]:
    page = orjson.loads(orjson.dumps(await simulator.engine.queries.events(flow_id)))
    return [event["type"] for event in page["events"]]


async def put_policy(simulator: Simulator, action: str, **fields: Any) -> None:
    body = {"name": "p", "match": {"step_id": "charge"}, "action": {"type": action}, **fields}
    await simulator.engine.policies.put("p", PolicyDefinition.model_validate(body), "ann")


async def pending(simulator: Simulator) -> list[str]:
    page = await simulator.engine.control_queries.approvals(status="pending", flow_id=None, cursor=None, limit=9)
    return [each["approval_id"] for each in page["approvals"]]


async def review(simulator: Simulator, approval_id: str, verdict: Literal["approve", "reject"]) -> None:
    await simulator.engine.approvals.review(approval_id, "ann", verdict, None)
    await simulator.sweep(SweepName.REQUEUE)


# ------------------------------------------------------------------------------------------------ registration


async def test_a_risky_step_is_registered_with_a_control_only(simulator: Simulator) -> None:
    """
    > Declare a single risky operation. The spec refuses to compile until a matching operation control is attached.

    > Remove the control and the plan refuses to compile with
    > {:error, {:unsafe_once_requires_control, "refund_order", :action}}.

    > Jidoka.Agent.Spec.Operation.requires_control?/1 returns true for
    > :unsafe_once. The plan compiler refuses to produce a plan without a
    > matching operation control.

    > {:error, {:unsafe_once_requires_control, name, kind}} | An :unsafe_once operation has no matching operation
    > control. | Add a controls do ... operation ... when: [name: name] end clause. |

    > A simple test exercises both the compile-time gate and the resume-time guard.
    """
    for policy in ALL:
        step = definition(effect={"policy": policy})
        if policy == "unsafe_once":
            with pytest.raises(UnsafeOnceRequiresControl):
                await simulator.engine.steps.put("charge", step)
        else:
            await simulator.engine.steps.put("charge", step)
    await put_policy(simulator, "require_approval", match={"step_id": "refund"})
    with pytest.raises(UnsafeOnceRequiresControl):
        await simulator.engine.steps.put("charge", definition(effect={"policy": "unsafe_once"}))
    await put_policy(simulator, "require_approval")
    await simulator.engine.steps.put("charge", definition(effect={"policy": "unsafe_once"}))
    assert simulator.network.calls == []


@pytest.mark.parametrize(("verdict", "sends"), [("approve", 1), ("reject", 0)])
async def test_a_control_asks_for_a_review(
    simulator: Simulator, verdict: Literal["approve", "reject"], sends: int
) -> None:
    """
    > The control can allow, block, or interrupt for human review. See Human In The Loop for the durable approval flow.

    > :unsafe_oncewith an approval workflow. A blocking control is fine for "never allow"; an interrupting control is
    > needed for "allow once a reviewer says so."
    """
    await put_policy(simulator, "require_approval")
    await simulator.engine.steps.put("charge", definition(effect={"policy": "unsafe_once"}))
    await simulator.engine.flows.start(StartFlow(flow_id="f", goals=["charge"]))
    await crash(simulator)
    [approval_id] = await pending(simulator)
    assert sent(simulator) == 0
    await review(simulator, approval_id, verdict)
    await much_later(simulator)
    assert sent(simulator) == sends


async def test_a_control_blocks(simulator: Simulator) -> None:
    """
    > The control can allow, block, or interrupt for human review.
    """
    await put_policy(simulator, "block")
    await simulator.engine.steps.put("charge", definition(effect={"policy": "unsafe_once"}))
    await simulator.engine.flows.start(StartFlow(flow_id="f", goals=["charge"]))
    assert (await look(simulator, await item_of(simulator)))["error"]["code"] == "POLICY_BLOCKED"
    assert sent(simulator) == 0


# ------------------------------------------------------------------------------------------------ one field


def test_the_default_is_idempotent() -> None:
    """
    > :idempotent(default) - calling twice with the same key has the same external outcome. Most external APIs that
    > accept idempotency keys.

    > :idempotent. It is the spec default for a reason.
    """
    assert definition().effect.policy == "idempotent"


@pytest.mark.parametrize("policy", ALL)
async def test_one_field_decides_what_happens_to_incomplete_work(simulator: Simulator, policy: str) -> None:
    """
    > Every Jidoka operation declares one idempotency policy. That single field
    > drives whether the runtime can retry, whether resume can replay, whether
    > the spec compiles without an operation control, and whether incomplete
    > work surfaces to application reconciliation. This guide documents each
    > policy in detail, the Jidoka.Effect.Journal semantics on resume, and the
    > production guardrails that depend on getting this right.

    > Idempotency policy is the contract between the agent definition, the runtime, and the journal. The runtime never
    > assumes; it always asks.

    > - If only the intent is recorded, the per-policy validation runs.

    > For :dedupe and :reconcile operations, build a journal that already
    > has the desired shape and assert that resume routes correctly.
    """
    work_id = await crashed(simulator, policy)
    assert sent(simulator) == (2 if policy in RETRIED else 1)
    assert [entry["work_id"] for entry in await queue(simulator)] == ([] if policy in RETRIED else [work_id])
    assert (await look(simulator, work_id))["status"] == ("active" if policy in RETRIED else "not_completed")


# ------------------------------------------------------------------------------------------------ the journal


@pytest.mark.parametrize("point", CrashPoint)
@pytest.mark.parametrize("policy", ["pure", "idempotent", "dedupe", "reconcile"])
async def test_an_intent_is_recorded_before_the_call(simulator: Simulator, policy: str, point: CrashPoint) -> None:
    """
    > Every effect is recorded as an intent before the capability runs and as a result when the capability returns. On
    > resume:

    > - If the intent is missing, the runtime asks for the result through the capability.
    """
    await simulator.engine.steps.put("charge", definition(effect={"policy": policy}))
    action = simulator.engine.flows.start(StartFlow(flow_id="f", goals=["charge"]))
    assert await simulator.crash_during(action, point)
    assert sent(simulator) == 0, "nothing is sent before its intent is recorded"
    await simulator.start()
    if point is CrashPoint.BEFORE_COMMIT:
        await simulator.engine.flows.start(StartFlow(flow_id="f", goals=["charge"]))
        assert sent(simulator) == 1
    else:
        assert "work_dispatched" in await events(simulator)
        await simulator.sweep(SweepName.ORPHANS)
        await much_later(simulator)
        assert sent(simulator) == (0 if policy == "reconcile" else 1)


@pytest.mark.parametrize("result", [SUCCESS, StepResult(success=False, error="declined")])
@pytest.mark.parametrize("policy", ALL)
async def test_a_recorded_result_is_final_after_a_crash(simulator: Simulator, policy: str, result: StepResult) -> None:
    """
    > - If the journal already has a result for the pending intent, the effect interpreter replays it and never calls
    > the capability.

    > | Capability called twice on resume | Operation is :idempotent and the journal lost the result. | Persist the full
    > snapshot including its journal; ensure your store preserves all fields. |

    > | Reconciliation never fires | The journal had no incomplete intents because the runtime did call the capability.
    > | Confirm the policy is :reconcile, not :idempotent, and inspect result.journal. |
    """
    work_id = await start(simulator, policy)
    await simulator.engine.reports.complete(work_id, result)
    before = await look(simulator, work_id)
    await crash(simulator)
    await much_later(simulator)
    assert (sent(simulator), await queue(simulator)) == (1, [])
    assert await look(simulator, work_id) == before


@pytest.mark.parametrize("policy", ALL)
async def test_intent_and_result_are_looked_up_in_the_journal(simulator: Simulator, policy: str) -> None:
    """
    > }Jidoka.Effect.Journal.result_for/2 and Jidoka.Effect.Journal.intent_for/2
    > are the lookup helpers. Jidoka.Effect.Journal.incomplete_intent?/2 is
    > true when an intent has no recorded result.

    > - Treat the journal as the contract. Tests should make assertions
    > against
    > Effect.Journal.intent_recorded?/2andEffect.Journal.result_for/2, not on capability call counts alone.
    """
    work_id = await start(simulator, policy)
    assert [event for event in await events(simulator) if event.startswith("work_")][-1] == "work_dispatched"
    [attempt] = (await look(simulator, work_id))["attempts"]
    assert (attempt["outcome"], attempt["finished_at"]) == ("waiting", None)
    await simulator.engine.reports.complete(work_id, SUCCESS)
    assert "work_succeeded" in await events(simulator)
    [attempt] = (await look(simulator, work_id))["attempts"]
    assert (attempt["outcome"], attempt["delivery"]) == ("succeeded", "delivered")


# ---------------------------------------------------------------------------------------- pure, idempotent, dedupe


@pytest.mark.parametrize("policy", RETRIED)
async def test_what_may_be_repeated_is_repeated_with_the_same_key(simulator: Simulator, policy: str) -> None:
    """
    > :pureand:idempotentretry safely from inputs. Resume will replay the journaled result; missing results are
    > recomputed.

    > :pure- the operation is a deterministic function of its arguments with no observable side effects. Lookups,
    > transformations, schema validations.

    > Both policies are safe to retry. The difference is intent:

    > :idempotentsays "retry is correct; do not avoid it." Use it for HTTP calls with idempotency keys, database
    > upserts, and most external APIs that already promise safe retries.
    """
    work_id = await crashed(simulator, policy)
    first, second = [call for call in simulator.network.calls if call.url == ENDPOINT]
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
    made = idempotency_key("f", 0, "charge", definition(), {"amount": 7})
    assert first.headers["Idempotency-Key"] == made, "nothing but flow, step and arguments is part of it"
    await simulator.engine.reports.complete(work_id, SUCCESS)
    assert (await simulator.engine.queries.flow("f"))["outputs"] == SUCCESS.outputs


async def test_dedupe_prefers_what_is_recorded_and_idempotent_calls_again(simulator: Simulator) -> None:
    """
    > :dedupeprefers a recorded journal result. Use it for operations that are expensive but safe to repeat.

    > :dedupe- calling twice may be expensive or noisy, but is otherwise safe. Prefer the journaled result.

    > :dedupesays "retry is correct but wasteful; prefer the journaled result." Use it for cache-fronted lookups or any
    > operation that encountered a cost (LLM call, paid API, expensive aggregation) you do not want to repeat.

    > In practice this guides resume behavior: :dedupe on resume always
    > prefers the journaled result; :idempotent is happy to call the
    > capability again when the intent has no result.

    > :dedupe operation still runs every time | The journal across resumes is empty because each call started a new
    > turn. | Use a session so the journal persists, or pass the prior snapshot to resume/2. |
    """
    calls = {}
    for policy in ("dedupe", "idempotent"):
        await simulator.engine.steps.put(policy, definition(effect={"policy": policy}))
        for number in range(2):
            begin = StartFlow(flow_id=f"{policy}-{number}", goals=[policy], init_keys={policy: "order-7"})
            await simulator.engine.flows.start(begin)
            for call in simulator.network.waiting(ENDPOINT):
                await simulator.network.answer(call, answered())
                await simulator.engine.reports.complete(call.metadata["work_id"], SUCCESS)
            await crash(simulator)
            flow = await simulator.engine.queries.flow(f"{policy}-{number}")
            assert (flow["status"], flow["outputs"]) == ("completed", SUCCESS.outputs)
        calls[policy] = sum(call.metadata["step_id"] == policy for call in simulator.network.calls)
    assert calls == {"dedupe": 1, "idempotent": 2}


# ------------------------------------------------------------------------------------------------ reconcile


@pytest.mark.parametrize(
    ("settlement", "status", "sends"),
    [
        (Settlement(outcome="applied", outputs=SUCCESS.outputs), "succeeded", 1),
        (Settlement(outcome="failed", error="declined"), "failed", 1),
        (Settlement(outcome="not_applied"), "active", 2),
    ],
)
async def test_incomplete_work_is_found_in_the_queue_and_resolved_there(
    simulator: Simulator, settlement: Settlement, status: str, sends: int
) -> None:
    """
    > - Use this guide when an incomplete
    > Jidoka.resume/2should not blow up the agent loop but instead route to a reconciliation worker.

    > :reconcileallows the application to inspect incomplete work after resume. The runtime returns the intent and lets
    > a reconciliation worker decide.

    > :reconcile- external work can leave the system in an in-between state (an enqueued job whose status is unknown).
    > The application owns reconciliation.

    > For :reconcile operations, the application is expected to observe
    > incomplete intents and resolve them out of band. A common pattern is to
    > enumerate snapshots whose journal has incomplete intents and route them
    > to a reconciler.

    > After reconciliation completes externally, persist the result into the journal (or rebuild the snapshot through
    > your own session pipeline) and resume.

    > :reconcilewhen truth lives elsewhere. Async work queued to an external system is the canonical case.
    """
    work_id = await crashed(simulator, "reconcile")
    assert (await simulator.engine.queries.flow("f"))["status"] == "active", "the flow goes on"
    [intent] = await queue(simulator)
    assert (intent["work_id"], intent["cause"], intent["arguments"]) == (work_id, "node_lost", {"amount": 7})
    await simulator.engine.reconciliations.settle(work_id, settlement, "ann")
    await crash(simulator)
    await simulator.sweep(SweepName.REQUEUE)
    assert ((await look(simulator, work_id))["status"], sent(simulator)) == (status, sends)
    assert await queue(simulator) == []


# ------------------------------------------------------------------------------------------------ unsafe_once


async def test_an_incomplete_unsafe_once_attempt_is_a_typed_error_and_never_repeated(simulator: Simulator) -> None:
    """
    > - Use this guide when an agent is about to perform an external action you cannot blindly retry (charges, sends,
    > deletes, deploys).

    > :unsafe_onceforbids automatic retry. Resume returns a typed error when an intent is recorded without a result.

    > :unsafe_once- calling twice is unsafe. Charges, sends, deletes, one-way deploys.

    > The runtime never quietly retries an :unsafe_once operation that has
    > an incomplete intent. Resume returns a typed error instead:

    > :unsafe_oncefor external state changes. Charges, sends, deletes, and deploys deserve the strongest guard.

    > # The application persisted the snapshot for a reconciler before
    > # surfacing the failure; resuming it never retries the operation.

    > {:error, %Jidoka.Error{reason: :unsafe_once_incomplete_effect}} | Resume saw a recorded intent without a result. |
    > Route the snapshot to reconciliation; do not auto-retry. |
    """
    work_id = await crashed(simulator, "unsafe_once")
    for _ in range(3):
        await crash(simulator)
        await much_later(simulator)
    work = await look(simulator, work_id)
    assert work["error"]["code"] == "UNSAFE_ONCE_INCOMPLETE"
    [entry] = await queue(simulator)
    assert (entry["work_id"], entry["idempotency_key"]) == (work_id, work["error"]["details"]["idempotency_key"])
    assert sent(simulator) == 1


async def test_an_approval_lets_it_be_sent_exactly_once_more(simulator: Simulator) -> None:
    """
    > Approved interrupts are the supported way to re-enter an :unsafe_once
    > intent: the operation control approves the specific interrupt, and the
    > runtime stamps metadata["approved_interrupt_id"] on the effect. The
    > journal then accepts the call exactly once.

    > Approved interrupt still errors on :unsafe_once | Approval target was the wrong interrupt id. | Build the response
    > with Jidoka.Review.Response.approve(review.interrupt_id). |

    > the approval path that lets:unsafe_onceoperations execute exactly once.
    """
    work_id = await crashed(simulator, "unsafe_once")
    told = await simulator.engine.reconciliations.settle(work_id, Settlement(outcome="not_applied"), "ann")
    [approval_id] = await pending(simulator)
    assert told == {"work_id": work_id, "status": "held", "approval_id": approval_id}
    assert (await look(simulator, work_id))["hold"] == approval_id
    await approve(simulator)
    with pytest.raises(NotPending):
        await review(simulator, approval_id, "approve")
    with pytest.raises(NotWaitingForReconciliation):
        await simulator.engine.reconciliations.settle(work_id, Settlement(outcome="not_applied"), "bob")
    page = orjson.loads(orjson.dumps(await simulator.engine.queries.events("f")))
    dispatched = [event["data"]["approval_id"] for event in page["events"] if event["type"] == "work_dispatched"]
    assert len(set(dispatched)) == 2, "an approval of its own for each attempt"
    assert dispatched[-1] == approval_id
    await crash(simulator)
    await much_later(simulator)
    assert sent(simulator) == 2
    assert (await look(simulator, work_id))["hold"] == "unsafe_once"


# ------------------------------------------------------------------------------------------------ the quotations

APART: tuple[str, ...] = (
    # headings, links, and the seed's way of working
    "When To Use This",
    "- Use this guide when you add a new operation source",
    "right",
    "idempotency:value.",
    "Prerequisites",
    "- An agent with at least one operation.",
    "- Familiarity with",
    "Jidoka.Agent.Spec.Operation(theidempotencyfield lives there).",
    "mix ",
    "Quick Example",
    "Concepts",
    "How To",
    "Step ",
    "Use the smallest policy that is still correct.",
    "Common Patterns",
    "- Default to",
    "Testing",
    "Troubleshooting",
    "| Symptom |",
    "|---",
    "Reference",
    "Key modules touched in this guide:",
    "Jidoka.Agent.Spec.Operation-valid_idempotencies/0",
    "Related Guides",
    "- Controls - the operation control surface",
    ":unsafe_once. - Human In The Loop",
    "- Snapshots And Resume",
    "- Sessions And Stores",
    # the picture
    *"╭│╰▼",
    "Journal has Journal has Journal has",
    "no intent intent only",
    "run capability per-policy",
    "decision result",
    # the examples in Elixir, whose statements are quoted
    "defmodule ",
    "use Jidoka.Agent",
    "agent :support_agent",
    "instructions",
    "end",
    "tools do",
    "action ",
    "controls do",
    "operation ",
    "when: ",
    "%Jidoka.Effect.Journal{",
    "intents: ",
    "results: ",
    "def reconcile_pending",
    "journal = ",
    "for {_id, intent}",
    "is_nil(",
    "intent.idempotency",
    "MyApp.",
    "case ",
    "{:error, %Jidoka.Error{} = error}",
    "%{reason: ",
    "_ ->",
    "Logger.error",
    "other",
    'test "',
    "spec =",
    "Jidoka.agent!(",
    'id: "risky"',
    "operations",
    "%{name: ",
    "]",
    ")",
    "assert ",
    "Jidoka.plan(",
    "llm",
    "{:ok, ",
    "arguments: ",
    "Jidoka.turn(",
)
"""How lines of the seed begin that state nothing about an effect."""


@pytest.fixture
def seed() -> str:
    return document("003")


def test_every_quotation_is_in_the_seed(seed: str) -> None:
    quoted = quotations([Path(__file__)])
    assert len(quoted) > 30
    assert not_in(seed, quoted) == []


def test_every_line_of_the_seed_is_quoted_or_states_nothing(seed: str) -> None:
    assert left_out(seed, quotations([Path(__file__)]), APART) == []


def test_what_is_set_apart_is_in_the_seed(seed: str) -> None:
    lines = [words(line) for line in seed.splitlines()]
    assert [prefix for prefix in APART if not any(line.startswith(prefix) for line in lines)] == []
