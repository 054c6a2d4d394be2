"""An attempt that could not be sent: taken back as if it had not been, and told in the journal."""

from __future__ import annotations

import pytest

from counterfoil.domain.journal.events import EventType
from counterfoil.domain.journal.evolving import evolve_work
from counterfoil.domain.states import WorkStatus
from counterfoil.domain.work.decisions import RetryRules, dispatch, take_back
from tests.store.records import step_version, work_item

NOW = 1_000_000
RULES = RetryRules(draw=0.0, retry_after_limit_ms=0)


@pytest.mark.parametrize(("before", "hold"), [(0, None), (0, "apr_1"), (2, None), (2, "apr_1")])
def test_the_attempt_keeps_its_number_and_its_approval(before: int, hold: str | None) -> None:
    step = step_version(work={"max_retries": 2})
    work = work_item(status=WorkStatus.NOT_COMPLETED if before else WorkStatus.PENDING, attempt=before, hold=hold)
    work.first_sent_at = NOW - 5 if before else None
    for _ in range(3):
        sent = dispatch(work, step, "node", NOW)
        evolve_work(work, sent)
        assert (work.attempt, work.hold) == (before + 1, None)
        approval = sent.data.get("approval_id")
        event = take_back(work, step, RULES, NOW + 1, code="NOT_SENT", message="not sent", hold=approval)
        assert (event.type, event.attempt) == (EventType.WORK_NOT_COMPLETED, before + 1)
        evolve_work(work, event)
        assert (work.status, work.attempt, work.hold) == (WorkStatus.NOT_COMPLETED, before, hold)
        assert (work.owner, work.deadline_at) == (None, None)
        assert work.due_at is not None
        assert work.due_at > NOW
        assert work.first_sent_at == (NOW - 5 if before else None)
