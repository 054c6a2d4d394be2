"""Named queries: SQL lives in ``queries.sql`` files, one per backend, the same names in each."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@lru_cache
def load_queries(package: str, file: str = "queries.sql") -> dict[str, str]:
    """The queries of a backend's package by name, without their comments."""
    text = files(package).joinpath(file).read_text()
    parts = _NAME.split(text)[1:]
    return {name: _without_comments(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _without_comments(body: str) -> str:
    lines = (line for line in body.splitlines() if not line.lstrip().startswith("--"))
    return "\n".join(lines).strip().rstrip(";")
