"""What guards, as every store keeps it: gates, approvals, keys, policies, subscriptions and what is to be delivered."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from counterfoil.domain.policies.controls import KeptPolicy
from counterfoil.domain.policies.definitions import PolicyDefinition
from counterfoil.domain.records import KeyOwner
from counterfoil.domain.states import ApprovalStatus, Decision
from counterfoil.domain.subscriptions.definitions import Delivery, Subscription, SubscriptionDefinition
from counterfoil.store.group_commit.commit import GuardRefused
from counterfoil.store.kinds.approvals import APPROVALS
from counterfoil.store.kinds.policies import POLICIES
from counterfoil.store.kinds.subscriptions import DELIVERIES, SUBSCRIPTIONS
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.read_set import ReadSet, step_key
from tests.by_hand import by_hand
from tests.store.backends import load, place_of, write
from tests.store.records import (
    NOW,
    Written,
    approval_record,
    changed_records,
    flow_record,
    gate_record,
    new_records,
    step_run,
    work_item,
)
from tests.store.test_records import AWKWARD

TEXT = AWKWARD["text"].replace("\x00", "")
FULL_GATE = gate_record(
    completion_count=2,
    decision=Decision.REQUIRE_APPROVAL,
    standing=Decision.BLOCK,
    approval_id="approval",
    holder=TEXT,
    completed_at=NOW + 1,
    completed_work_id="before",
    facts=AWKWARD,
)
FULL_APPROVAL = approval_record(
    ApprovalStatus.APPROVED,
    approvals=2,
    separate_requester=True,
    requester=TEXT,
    reason=TEXT,
    policies=[AWKWARD],
    arguments=AWKWARD,
    reviews=[AWKWARD, {}],
    decided_at=NOW + 2,
)
STEP = step_key("flow", "step")
GUARDED = ReadSet(flows={"flow"}, gates={STEP}, approvals={"approval"})


def test_nothing_is_left_out_of_what_is_tried_here() -> None:
    for full, plain in ((FULL_GATE, gate_record()), (FULL_APPROVAL, approval_record())):
        unset = {item.name for item in fields(plain) if getattr(full, item.name) == item.default}
        assert unset == set()


async def test_what_is_not_there_is_known_not_to_be(store: Store) -> None:
    needs = ReadSet(
        gates={STEP}, approvals={"a"}, keys={"k"}, policies={"p"}, subscriptions={"s"}, deliveries={"d"}, flows={"flow"}
    )
    unit = await load(store, needs)
    assert unit.find_gate("flow", "step") is None
    assert (unit.records(APPROVALS).get("a"), unit.find_key("k"), unit.records(POLICIES).get("p")) == (None, None, None)
    assert (unit.records(SUBSCRIPTIONS).get("s"), unit.records(DELIVERIES).get("d")) == (None, None)
    assert (unit.controls_revision, dict(unit.controls().by_id)) == (0, {})


async def test_gates_and_approvals_come_back_as_they_were(store: Store) -> None:
    await write(store, new_records(flow_record(), step_run(), work_item(), FULL_GATE, FULL_APPROVAL))
    unit = await load(store, GUARDED)
    assert unit.find_gate("flow", "step") == FULL_GATE
    assert unit.work("work") == work_item(), "a gate comes with the item that it is about"
    assert unit.approval("approval") == FULL_APPROVAL


async def test_a_gate_changes_in_all_but_what_the_first_call_fixed(store: Store) -> None:
    await write(store, new_records(flow_record(), step_run(), work_item(), gate_record()))
    changed = replace(FULL_GATE, work_id="another", gate_count=7, last_at=NOW + 9, decision_id="d", input_digest="e")
    await write(store, changed_records(flow_record(), changed))
    unit = await load(store, GUARDED)
    assert unit.find_gate("flow", "step") == changed


FINAL = sorted(set(ApprovalStatus) - {ApprovalStatus.PENDING})


@pytest.mark.parametrize("after", FINAL)
async def test_an_approval_is_heard_decided_and_never_changes_again(store: Store, after: ApprovalStatus) -> None:
    await write(store, new_records(flow_record(), approval_record()))
    heard = approval_record(reviews=[{"by": "ada"}])
    await write(store, changed_records(flow_record(), heard))
    assert (await load(store, GUARDED)).approval("approval") == heard
    decided = approval_record(after, reviews=[{"by": "ada"}, {"by": "bob"}], decided_at=NOW + 5)
    await write(store, changed_records(flow_record(), decided))
    for again in ApprovalStatus:
        with pytest.raises(GuardRefused):
            await write(store, changed_records(flow_record(), approval_record(again, decided_at=NOW + 6)))
    assert (await load(store, GUARDED)).approval("approval") == decided


async def test_what_an_approval_is_about_is_fixed(store: Store) -> None:
    await write(store, new_records(flow_record(), approval_record()))
    forged: dict[str, Any] = {"digest": "other", "approvals": 9, "expires_at": 1, "work_id": "other", "arguments": {}}
    await write(store, changed_records(flow_record(), approval_record(**forged)))
    assert (await load(store, GUARDED)).approval("approval") == approval_record()


async def test_a_key_belongs_to_the_step_that_it_was_given_last(store: Store) -> None:
    first = KeyOwner("step:k", "flow", "step", None, NOW, NOW + 5)
    made = KeyOwner("workflow:k", "flow", None, "digest", NOW, None)
    await write(store, Written(keys={first.key_id: first, made.key_id: made}))
    needs = ReadSet(keys={"step:k", "workflow:k"})
    unit = await load(store, needs)
    assert (unit.find_key("step:k"), unit.find_key("workflow:k")) == (first, made)
    second = KeyOwner("step:k", "another", "pay", "d", NOW + 9, None)
    await write(store, Written(keys={"step:k": second}))
    unit = await load(store, needs)
    assert (unit.find_key("step:k"), unit.find_key("workflow:k")) == (second, made)


# ------------------------------------------------------------------------------------------------ controls

BLOCK = PolicyDefinition.model_validate({"name": TEXT, "priority": 3, "action": {"type": "block", "reason": TEXT}})
ALLOW = PolicyDefinition.model_validate(
    {
        "name": "a",
        "conditions": [{"field": "step.id", "operator": "equals", "value": TEXT}],
        "action": {"type": "allow"},
    }
)
TOLD = SubscriptionDefinition.model_validate({"url": "http://subscriber.test/", "events": ["flow.*"]})


def kept(version: int, definition: PolicyDefinition | None, policy_id: str = "p") -> KeptPolicy:
    return KeptPolicy(policy_id, version, definition, "api", TEXT, NOW, NOW + version)


async def put(store: Store, *policies: KeptPolicy) -> None:
    """As one batch does: the last version of each is in force, and all are kept."""
    await write(
        store,
        Changes(
            policies={each.policy_id: each for each in policies},
            policy_versions={(each.policy_id, each.version): each for each in policies},
        ),
    )


async def test_a_policy_comes_back_as_it_was_and_is_in_force(store: Store) -> None:
    await put(store, kept(1, BLOCK), kept(1, ALLOW, "q"))
    unit = await load(store, ReadSet(policies={"p", "q"}))
    assert (unit.records(POLICIES).get("p"), unit.records(POLICIES).get("q")) == (kept(1, BLOCK), kept(1, ALLOW, "q"))
    controls = unit.controls()
    assert {name: (policy.version, policy.definition) for name, policy in controls.by_id.items()} == {
        "p": (1, BLOCK),
        "q": (1, ALLOW),
    }


async def test_every_version_of_a_policy_is_kept_and_a_deleted_one_guards_nothing(store: Store) -> None:
    await put(store, kept(1, ALLOW), kept(2, BLOCK))
    assert (await load(store, ReadSet())).controls().by_id["p"].version == 2
    await put(store, kept(3, None))
    unit = await load(store, ReadSet(policies={"p"}))
    assert unit.records(POLICIES).get("p") == kept(3, None)
    assert unit.controls().by_id == {}
    versions = await store.read("policy_versions", policy_id="p", limit=9)
    told = [(row[1], row[2] is None, row[4], row[5]) for row in versions]
    assert told == [(3, True, TEXT, NOW + 3), (2, False, TEXT, NOW + 2), (1, False, TEXT, NOW + 1)]


async def test_the_revision_rises_with_every_batch_that_changes_what_guards_and_with_no_other(store: Store) -> None:
    revisions = [(await load(store, ReadSet())).controls_revision]
    subscription = Subscription("s", TOLD, None, NOW, NOW)
    delivery = Delivery("d", "s", "flow", "flow.started", "{}", 0, NOW, None, NOW)
    for changes in (
        Changes(policies={"p": kept(1, ALLOW)}, policy_versions={("p", 1): kept(1, ALLOW)}),
        new_records(flow_record(), step_run(), gate_record(), approval_record()),
        Changes(subscriptions={"s": subscription}),
        Changes(deliveries={"d": delivery}),
        Changes(subscriptions={"s": None}),
    ):
        await write(store, changes)
        revisions.append((await load(store, ReadSet())).controls_revision)
    assert revisions == [0, 1, 1, 2, 2, 3]


async def test_a_policy_of_another_time_blocks_what_it_may_have_been_about(store: Store) -> None:
    await put(store, kept(1, ALLOW))
    definition = 'UPDATE policies SET definition = \'{"name":"p","action":{"type":"ask_the_oracle"}}\''
    by_hand(place_of(store), definition)
    policy = (await load(store, ReadSet())).controls().by_id["p"].definition
    assert (policy.action.type, policy.conditions) == ("block", [])


# ------------------------------------------------------------------------------------------------ told


async def test_subscriptions_come_back_as_they_were_changed_and_go_with_what_they_were_to_be_told(
    store: Store,
) -> None:
    first = Subscription("s", TOLD, TEXT, NOW, NOW + 1)
    other = Subscription("t", TOLD, None, NOW, NOW)
    await write(store, Changes(subscriptions={"s": first, "t": other}))
    deliveries = {
        "1": Delivery("1", "s", "flow", "flow.started", '{"text":"\u2028 \\u0000"}', 0, NOW, None, NOW),
        "2": Delivery("2", "t", "flow", "flow.failed", "{}", 3, None, TEXT, NOW),
    }
    await write(store, Changes(deliveries=dict(deliveries)))
    needs = ReadSet(subscriptions={"s", "t"}, deliveries={"1", "2"})
    unit = await load(store, needs)
    assert (unit.records(SUBSCRIPTIONS).get("s"), unit.records(SUBSCRIPTIONS).get("t")) == (first, other)
    assert {name: unit.records(DELIVERIES).get(name) for name in deliveries} == deliveries
    changed = replace(other, note="off", updated_at=NOW + 9)
    await write(store, Changes(subscriptions={"s": None, "t": changed}))
    unit = await load(store, needs)
    assert (unit.records(SUBSCRIPTIONS).get("s"), unit.records(SUBSCRIPTIONS).get("t")) == (None, changed)
    assert (unit.records(DELIVERIES).get("1"), unit.records(DELIVERIES).get("2")) == (None, deliveries["2"])
    assert set(unit.controls().subscriptions) == {"t"}


async def test_a_delivery_is_tried_again_given_up_and_taken_out(store: Store) -> None:
    await write(store, Changes(subscriptions={"s": Subscription("s", TOLD, None, NOW, NOW)}))
    first = Delivery("d", "s", "flow", "flow.started", "{}", 0, NOW, None, NOW)
    for state in (first, replace(first, attempt=1, due_at=NOW + 5, note="HTTP 503"), replace(first, due_at=None)):
        await write(store, Changes(deliveries={"d": state}))
        assert (await load(store, ReadSet(deliveries={"d"}))).records(DELIVERIES).get("d") == state
    await write(store, Changes(deliveries={"d": None}))
    assert (await load(store, ReadSet(deliveries={"d"}))).records(DELIVERIES).get("d") is None
