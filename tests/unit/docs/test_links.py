"""Links between pages lead somewhere, and every page can be reached."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import DOCS, PAGES, ROOT

OTHERS = [ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "examples/README.md")]
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


def links_of(page: Path) -> Iterator[tuple[Path, str]]:
    """Target and anchor of every link to something in the repository."""
    for address in _LINK.findall(_FENCED.sub("", page.read_text("utf-8"))):
        if not address.startswith(("http://", "https://", "mailto:")):
            path, _, anchor = address.partition("#")
            yield ((page.parent / path).resolve() if path else page), anchor


def anchors_of(page: Path) -> set[str]:
    """The names that headings are given where pages are rendered."""
    headings = _HEADING.findall(_FENCED.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in links_of(page):
        assert target.exists(), f"there is no {target.relative_to(ROOT)}"
        if anchor:
            assert anchor in anchors_of(target), f"{target.relative_to(ROOT)} has no heading #{anchor}"


def test_every_page_can_be_reached_from_the_index() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "docs" / "index.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            waiting += [target for target, _ in links_of(page) if target.exists()]
    assert [page for page in PAGES if page not in reached] == []


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = [page.name[:4] for page in DOCS if page.parent.name == "decisions" and page.name != "README.md"]
    assert numbers == [f"{number:04d}" for number in range(1, len(numbers) + 1)]
    for page in DOCS:
        if page.parent.name == "decisions" and page.name != "README.md":
            text = page.read_text("utf-8")
            assert text.startswith(f"# {page.name[:4]}: ")
            assert all(f"**{part}.**" in text for part in ("Context", "Decision", "Consequences")), page.name
