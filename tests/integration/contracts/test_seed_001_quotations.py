"""The walk through seed 001 quotes it to the letter, and leaves nothing out unsaid."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SEEDS = HERE.parents[3] / "shared" / "seeds"
"""Beside the checkout; where it is not, there is nothing to compare with."""
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
    files = sorted(SEEDS.glob("001_*.txt"))
    if not files:
        pytest.skip("the seeds are not here")
    return files[0].read_text(encoding="utf-8")


def test_every_quotation_is_in_the_seed(seed: str) -> None:
    whole, quoted = words(seed), quotations()
    assert len(quoted) > 60
    assert [quotation for quotation in quoted if quotation not in whole] == []


def test_every_line_of_the_seed_is_quoted_or_states_nothing(seed: str) -> None:
    """A line counts as quoted when most of it is."""
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


def test_what_is_set_apart_is_in_the_seed(seed: str) -> None:
    lines = [words(line) for line in seed.splitlines()]
    assert [prefix for prefix in APART if not any(line.startswith(prefix) for line in lines)] == []
