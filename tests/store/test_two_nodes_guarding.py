"""Two nodes and what guards: a policy holds on both at once, a key has one owner, people are heard once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from counterfoil.domain.errors import CounterfoilError
from counterfoil.domain.gate.calls import GateCall
from counterfoil.domain.gate.requests import CompleteStep, CreateWorkflow, GateRequest
from counterfoil.domain.policies.definitions import PolicyDefinition
from counterfoil.engine.approvals.commands import ExpireApproval, Review
from counterfoil.engine.gate.commands import AskGate, BeginWorkflow, ReportStep
from counterfoil.engine.policies.commands import DeletePolicy, PutPolicy
from counterfoil.store.group_commit.batch import Batch, ForEach
from counterfoil.store.postgres.doctor import examine
from counterfoil.store.postgres.store import PostgresStore
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.read_set import Find, ReadSet, step_key
from tests.by_hand import by_hand
from tests.eventually import eventually
from tests.store.backends import NewConnection, are_waiting, place_of
from tests.store.nodes import Node, Pair
from tests.store.records import DEFAULTS

pytestmark = pytest.mark.postgresql_only

ROUNDS = 8


def policy(action: str, **fields: Any) -> PolicyDefinition:
    return PolicyDefinition.model_validate({"name": "p", "action": {"type": action, "reason": action}, **fields})


def create(flow_id: str, **fields: Any) -> BeginWorkflow:
    request = CreateWorkflow.model_validate({"workflow_name": "w", **fields})
    return BeginWorkflow(flow_id, request, "ada")


def ask(flow_id: str, step_id: str = "pay", **fields: Any) -> AskGate:
    return AskGate(GateCall(flow_id, step_id, GateRequest.model_validate(fields), "ada"))


async def decision(node: Node, command: AskGate) -> str:
    """What the gate says, or the code of its refusal."""
    try:
        return str((await node.commit.submit(command))["decision"])
    except CounterfoilError as refusal:
        return refusal.code


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """Every batch that is begun, as often as it is begun."""
    begun: list[Batch] = []
    restart = Batch.restart

    def noted(batch: Batch) -> None:
        begun.append(batch)
        restart(batch)

    monkeypatch.setattr(Batch, "restart", noted)
    return begun


async def test_a_policy_holds_on_the_other_node_once_it_is_answered(nodes: Pair) -> None:
    here, there = nodes
    await here.commit.submit(create("flow"))
    for number in range(ROUNDS):
        assert await decision(there, ask("flow", f"before-{number}")) == "allow"
        await here.commit.submit(PutPolicy("p", policy("block"), "ada"))
        assert await decision(there, ask("flow", f"after-{number}")) == "block"
        await there.commit.submit(DeletePolicy("p", "ada"))
        assert await decision(here, ask("flow", f"gone-{number}")) == "allow"
    assert by_hand(place_of(here.store), "SELECT revision FROM controls") == [(2 * ROUNDS,)]


async def test_a_batch_decided_by_older_policies_begins_again(nodes: Pair, batches: list[Batch]) -> None:
    here, there = nodes
    await there.commit.submit(create("flow"))
    await there.commit.submit(ask("flow", "before"))
    batches.clear()
    await there.commit.submit(ask("flow", "same"))
    assert batches == [], "what it has seen is what is in force"
    await here.commit.submit(PutPolicy("p", policy("block"), "ada"))
    answer = await there.commit.submit(ask("flow", "after"))
    assert (answer["decision"], answer["policy_ids"]) == ("block", ["p"])
    assert len(batches) == 1
    assert answer["retry_context"]["gate_count"] == 1, "the decision by the older ones left no trace"


async def test_a_decision_that_waits_for_a_lock_while_a_policy_is_put_is_made_by_it(
    nodes: Pair, new_connection: NewConnection
) -> None:
    """It has seen the older ones, and was held up by another transaction that had its flow in hand."""
    here, there = nodes
    await there.commit.submit(create("flow"))
    await there.commit.submit(ask("flow", "before"))
    other, eye = await new_connection(), await new_connection()
    async with other.transaction():
        await other.execute("SELECT 1 FROM flows WHERE flow_id = 'flow' FOR UPDATE")
        asking = asyncio.create_task(there.commit.submit(ask("flow")))
        await eventually(lambda: are_waiting(eye, 1), what="a transaction that waits for the flow")
        await here.commit.submit(PutPolicy("p", policy("block"), "ada"))
    assert (await asking)["decision"] == "block"


async def test_policies_that_both_put_are_all_in_force(nodes: Pair, store: Store) -> None:
    puts = [PutPolicy(f"p{number}", policy("allow", priority=number), "ada") for number in range(20)]
    await asyncio.gather(*(nodes[number % 2].commit.submit(put) for number, put in enumerate(puts)))
    answers = [await node.commit.submit(PutPolicy("p0", policy("block"), "ada")) for node in nodes]
    assert [(kept.version, created) for kept, created in answers] == [(2, False), (2, False)]
    [(revision,)] = by_hand(place_of(store), "SELECT revision FROM controls")
    assert 2 <= revision <= len(puts) + 1
    for node in nodes:
        await node.commit.submit(create(f"of-{node.node_id}"))
        assert len(node.committed[-1].controls().by_id) == len(puts)


async def test_one_version_after_the_other_though_both_put_the_same_policy(nodes: Pair, store: Store) -> None:
    puts = [PutPolicy("p", policy("allow", priority=number), "ada") for number in range(20)]
    told = await asyncio.gather(*(nodes[number % 2].commit.submit(put) for number, put in enumerate(puts)))
    assert sorted(kept.version for kept, _ in told) == [*range(1, 21)]
    assert sum(created for _, created in told) == 1
    assert by_hand(place_of(store), "SELECT count(*), max(version) FROM policy_versions") == [(20, 20)]


# ------------------------------------------------------------------------------------------------ keys


async def test_of_two_workflows_with_one_key_at_the_same_moment_one_is_made(nodes: Pair, store: Store) -> None:
    for number in range(ROUNDS):
        key = f"k{number}"
        made = await asyncio.gather(
            *(nodes[turn % 2].commit.submit(create(f"{key}-{turn}", idempotency_key=key)) for turn in range(6))
        )
        assert sum(created for _, created in made) == 1
        assert len({flow_id for flow_id, _ in made}) == 1
    assert by_hand(place_of(store), "SELECT count(*) FROM flows") == [(ROUNDS,)]


async def test_of_two_steps_with_one_global_key_at_the_same_moment_one_has_it(nodes: Pair, store: Store) -> None:
    """The first gate is allowed, the other is told whose the key is: across workflows, and across nodes."""
    for number in range(ROUNDS):
        names = [f"flow-{number}-{turn}" for turn in range(4)]
        for name in names:
            await nodes[0].commit.submit(create(name, idempotency_scope="global"))
        asked = [decision(nodes[turn % 2], ask(name, idempotency_key=f"k{number}")) for turn, name in enumerate(names)]
        assert Counter(await asyncio.gather(*asked)) == {"allow": 1, "IDEMPOTENCY_KEY_IN_USE": 3}
    assert by_hand(place_of(store), "SELECT count(*) FROM gates") == [(ROUNDS,)]


async def test_first_gates_with_different_keys_fix_one(nodes: Pair) -> None:
    for number in range(ROUNDS):
        name = f"flow-{number}"
        await nodes[0].commit.submit(create(name))
        asked = [decision(node, ask(name, idempotency_key=node.node_id)) for node in nodes]
        assert Counter(await asyncio.gather(*asked)) == {"allow": 1, "IDEMPOTENCY_KEY_MISMATCH": 1}


# ------------------------------------------------------------------------------------------------ people


class ExpireWhatIsMissed(ExpireApproval):
    """As commands of sweeps do that end a flow: they learn of its approvals only while they decide."""

    def needs(self, needs: ReadSet) -> None:
        needs.open_flows.add(self.flow_id)
        needs.gates.add(step_key(self.flow_id, "pay"))


async def test_an_approval_that_is_no_longer_found_is_not_looked_for_without_its_flow(
    nodes: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search found it, the batch began again, and meanwhile another was quicker: that is no reason to give up."""
    here, there = nodes
    await here.commit.submit(PutPolicy("p", policy("require_approval"), "ada"))
    await here.commit.submit(create("flow"))
    await there.commit.submit(ask("flow"))
    await here.commit.submit(PutPolicy("q", policy("allow"), "ada"))  # so that the other node must begin again
    restart, restarts = Batch.restart, list[Batch]()

    def found_by_another(batch: Batch) -> None:
        restarts.append(batch)
        by_hand(place_of(here.store), "UPDATE approvals SET expires_at = 99")
        restart(batch)

    by_hand(place_of(here.store), "UPDATE approvals SET expires_at = 1")
    monkeypatch.setattr(Batch, "restart", found_by_another)
    search = Find.of("find_expired_approvals", now=10, limit=10)
    assert await there.commit.submit(ForEach(search, ExpireWhatIsMissed)) == []
    assert len(restarts) == 1


async def test_what_people_say_at_both_nodes_is_heard_once_and_the_doctor_finds_nothing(
    nodes: Pair, store: Store
) -> None:
    here, there = nodes
    await here.commit.submit(PutPolicy("p", policy("require_approval"), "ada"))
    for number in range(ROUNDS):
        name = f"flow-{number}"
        await here.commit.submit(create(name))
        approval_id = (await there.commit.submit(ask(name)))["approval_id"]
        assert approval_id is not None
        verdicts = [
            here.outcome(Review(approval_id, name, "bob", "approve", None)),
            there.outcome(Review(approval_id, name, "eve", "reject", None)),
            here.outcome(Review(approval_id, name, "kim", "approve", None)),
        ]
        assert Counter(await asyncio.gather(*verdicts))["NOT_PENDING"] == 2
        again = await decision(there, ask(name))
        report = await here.outcome(ReportStep(name, "pay", CompleteStep.model_validate({"output": {"n": 1}})))
        assert (again, report) in {("allow", "False"), ("block", "STEP_NOT_ALLOWED")}
    assert isinstance(store, PostgresStore)
    assert examine(store.access.dsn, DEFAULTS) == []
