"""One concept, one room: folders stay small, a class name stands for one thing, and the map for newcomers is true."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.architecture.source_tree import PACKAGE, ROOT, modules

MOST_MODULES = 14
"""A folder with more of them has a seam somewhere."""


def modules_by_folder() -> Counter[Path]:
    return Counter(path.parent for path in modules(PACKAGE) if path.name != "__init__.py")


def test_folders_are_small() -> None:
    assert {str(folder): count for folder, count in modules_by_folder().items() if count > MOST_MODULES} == {}


def test_no_folder_is_made_for_one_module() -> None:
    assert [str(folder) for folder, count in modules_by_folder().items() if count == 1] == []


def test_a_class_name_stands_for_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in modules(PACKAGE):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "explanation" / "architecture.md"])
def test_the_map_names_places_that_exist(page: Path) -> None:
    """Each `layer/...` in the text is a folder or a file of the source."""
    layers = "|".join(sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"))
    named = set(re.findall(rf"`((?:{layers})/[\w/.]*)`", page.read_text("utf-8")))
    assert named, "the page names no place at all"
    assert sorted(place for place in named if not (PACKAGE / place).exists()) == []
