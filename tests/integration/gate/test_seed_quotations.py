"""The walk through seed 000 quotes it to the letter, and leaves nothing out unsaid."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quotations import document, left_out, not_in, quotations

HERE = Path(__file__).parent
WALK = [
    *(HERE / f"test_{name}.py" for name in ("idempotency_keys", "retry_context", "step_states")),
    HERE.parent / "policies" / "test_retry_policies.py",
]

APART = (
    # what leads from one statement to the next, and headings
    "Retry Semantics & Idempotency",
    "Why retry_context replaces cached",
    "- whether",
    "The retry_context object",
    "Field reference",
    "| Field | Type | Description |",
    "First-call invariant",
    "prior_completion_status values",
    "| Value | Meaning |",
    "Detecting retries",
    "Requesting prior_output",
    "Idempotency keys",
    "Scope and lifetime",
    "Passing on /",
    "Mismatch rules",
    "409 IDEMPOTENCY_KEY_MISMATCH",
    "Retry-aware policies (Evaluation tier and above)",
    "| Policy condition field | Source |",
    "Tier gating on create",
    "UX note: retry-aware policies need",
    "Migration from cached / decision_source",
    "For new code, the direct replacements are:",
    "| Old check | New check |",
    "Cooperative control plane, still",
    "|---",
    # how the examples are typed: the tests send the same over HTTP
    "curl -X POST",
    "-H ",
    "-d '{",
    "}'",
    # the example of a client: its two comments are quoted
    "if gate.retry_context",
    "status = gate.retry_context",
    'if status == "completed":',
    'elif status == "gated_not_completed":',
    "return fetch_prior_output",
    "log.info(",
    "gate.retry_context.last_decision)",
    # the refusal that a licence would make: there is none
    '"code": "FEATURE_REQUIRES_EVALUATION_LICENSE"',
    '"message": "Retry-aware policy condition',
    # clients of other languages, and links
    "All four SDKs expose this as a typed error:",
    "| SDK | Type |",
    "| Python |",
    "| TypeScript |",
    "| Go |",
    "| Java |",
    "SDK usage",
    "All four AxonFlow SDKs",
    "See SDK Integration",
    "Related",
    "/gateand/completelifecycle",
    "IDEMPOTENCY_KEY_MISMATCHplacement",
    "- ",
)
"""How lines of the seed begin that state nothing about the wire."""


@pytest.fixture
def seed() -> str:
    return document("000")


def test_every_quotation_is_in_the_seed(seed: str) -> None:
    quoted = quotations(WALK)
    assert len(quoted) > 70
    assert not_in(seed, quoted) == []


def test_every_line_of_the_seed_is_quoted_or_states_nothing(seed: str) -> None:
    assert left_out(seed, quotations(WALK), APART) == []
