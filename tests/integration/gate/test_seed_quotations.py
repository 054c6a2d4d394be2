"""The walk through seed 000 quotes it to the letter, and leaves nothing out unsaid."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SEEDS = HERE.parents[3] / "shared" / "seeds"
"""Beside the checkout; where it is not, there is nothing to compare with."""
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


def words(text: str) -> str:
    return " ".join(text.split())


def quotations() -> list[str]:
    """Each run of lines that begin with ``>``, of all docstrings of the walk."""
    found = []
    for path in WALK:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
                lines = (ast.get_docstring(node) or "").splitlines()
                runs = re.findall(r"(?:^>.*\n?)+", "\n".join(lines), re.MULTILINE)
                found += [words(re.sub(r"^> ?", "", run, flags=re.MULTILINE)) for run in runs]
    return found


@pytest.fixture
def seed() -> str:
    files = sorted(SEEDS.glob("000_*.txt"))
    if not files:
        pytest.skip("the seeds are not here")
    return files[0].read_text(encoding="utf-8")


def test_every_quotation_is_in_the_seed(seed: str) -> None:
    whole, quoted = words(seed), quotations()
    assert len(quoted) > 70
    assert [quotation for quotation in quoted if quotation not in whole] == []


def test_every_line_of_the_seed_is_quoted_or_states_nothing(seed: str) -> None:
    """A line counts as quoted when most of it is: links in the middle of a sentence are left out."""
    quoted = quotations()
    left = []
    for line in filter(None, map(words, seed.splitlines())):
        rest = line
        for quotation in sorted(quoted, key=len, reverse=True):
            if line in quotation:
                rest = ""
                break
            rest = rest.replace(quotation, "")
        if len(rest) > max(len(line) // 2, 3) and not line.startswith(APART):
            left.append(line)
    assert left == []
