"""The walk through seed 001 quotes it to the letter, and leaves nothing out unsaid."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quotations import document, left_out, not_in, quotations, words

HERE = Path(__file__).parent
WALK = [HERE / f"test_seed_001_{name}.py" for name in ("keys", "store", "tools")]

APART = (
    # headings, and what leads from one statement to the next
    "Skip to content",
    "04. Idempotency and retry safety",
    "What idempotency is, and what it is not",
    "Idempotency is not:",
    "Where the key must come from",
    "The cardinal rule:",
    "In practice, for most agent systems, this means:",
    "What this rules out:",
    "What it permits:",
    "What the key should hash over",
    "For most agent tools, a key derived from these inputs",
    "Typical strip list:",
    "Get this wrong and you have two failure modes:",
    "Where the key lives",
    "Avoid:",
    "The dedup window",
    "Picking the window is a tradeoff",
    "Reasonable defaults by class:",
    "Class Dedup window Reasoning",
    "What the contract layer does on retry",
    "The non-obvious bits:",
    "Concrete examples",
    "Refund (write-non-idempotent)",
    "Email send (write-non-idempotent, lower stakes)",
    "Upsert customer (write-idempotent",
    "Edge cases that ruin",
    "How to recognise idempotency broken in the wild",
    "Sample of observable symptoms:",
    "Interview Q&A",
    "What to do differently after reading this",
    "Bridge.",
    # symptoms outside of the tool: what customers and other systems see
    "• Customer support tickets",
    "• Duplicate rows in CRMs",
    "• Notifications received in pairs",
    "• Spikes in downstream-system 4xx rates",
    # how an operator runs the dedup store
    "• Make the dedup store a tier-zero dependency",
)
"""How lines of the seed begin that state nothing about a call."""


@pytest.fixture
def seed() -> str:
    return document("001")


def test_every_quotation_is_in_the_seed(seed: str) -> None:
    quoted = quotations(WALK)
    assert len(quoted) > 60
    assert not_in(seed, quoted) == []


def test_every_line_of_the_seed_is_quoted_or_states_nothing(seed: str) -> None:
    assert left_out(seed, quotations(WALK), APART) == []


def test_what_is_set_apart_is_in_the_seed(seed: str) -> None:
    lines = [words(line) for line in seed.splitlines()]
    assert [prefix for prefix in APART if not any(line.startswith(prefix) for line in lines)] == []
