"""``constraints.txt`` holds versions and nothing else, for everything that the package asks for."""

from __future__ import annotations

import re
import tomllib

from tests.architecture.source_tree import ROOT

CONDITION = r"[a-z_]+ (==|!=|<|>=) '[\w.]+'"
LINE = re.compile(rf"(?P<name>[a-z0-9-]+)==[0-9][0-9a-z.]*( ; {CONDITION}( (and|or) {CONDITION})*)?")


def pinned() -> list[str]:
    matches = [LINE.fullmatch(line) for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()]
    assert all(matches)
    return [match["name"] for match in matches if match]


def test_every_line_is_a_version() -> None:
    assert pinned() == sorted(set(pinned()))


def test_every_dependency_is_pinned() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["dev"], *extras["compat"]]
    names = {re.split(r"[\[<>=!; ]", text)[0] for text in wanted}
    assert not names - set(pinned())
