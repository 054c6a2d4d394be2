"""The walk through seed 002 quotes it to the letter, and leaves nothing out unsaid."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quotations import document, left_out, not_in, quotations, statements

ROOMS = Path(__file__).parents[1]
WALK = [
    ROOMS / "effects" / "test_seed_002_steps.py",
    ROOMS / "flows" / "test_seed_002_runs.py",
    ROOMS / "hooks" / "test_seed_002_hooks.py",
]

APART = (
    # headings, and what leads from one statement to the next
    "Idempotency",
    "Make step retries safe",
    "Step Idempotency",
    "Why this works:",
    "// Example: Stripe-style idempotency key",
    "Conflict-handling strategies",
    "Other common strategies:",
    "On this page",
    "Edit this page on GitHub",
    # what the words mean, and why retries repeat effects: nothing that one call could show
    "In Workflow, idempotency shows up in two related places:",
    "In distributed systems (calling external APIs)",
    "Step idempotency protects side effects inside a workflow run.",
    # how a run registers itself from inside: here the start does it, before any step
    "Create the hook near the beginning of the workflow",
    "Calling createHook() alone does not register the hook",
    "Until then, model recovery inside the workflow",
    "// ... own the token and do the work",
)
"""How statements of the seed begin that no test can show."""


@pytest.fixture
def seed() -> str:
    return document("002")


def test_every_quotation_is_in_the_seed(seed: str) -> None:
    quoted = quotations(WALK)
    assert len(quoted) > 50
    assert not_in(seed, quoted) == []


def test_every_statement_of_the_seed_is_quoted_or_set_apart(seed: str) -> None:
    found = list(statements(seed))
    assert len(found) > 60
    quoted = quotations(WALK)
    parts = [part for quotation in quoted for part in statements(quotation)]
    assert left_out("\n".join(found), [*quoted, *parts], APART) == []


def test_what_is_set_apart_is_in_the_seed_and_not_quoted(seed: str) -> None:
    found = list(statements(seed))
    assert [prefix for prefix in APART if not any(each.startswith(prefix) for each in found)] == []
    assert [each for each in quotations(WALK) if each.startswith(APART)] == []
