"""Named queries: SQL lives in the ``sql`` folder of each backend, one file for each concept, the same names in each."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@lru_cache
def load_queries(package: str, folder: str = "sql") -> dict[str, str]:
    """The queries in a folder of a backend's package by name, without their comments."""
    found: dict[str, str] = {}
    for file in sorted(files(package).joinpath(folder).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".sql"):
            parts = _NAME.split(file.read_text())[1:]
            for name, body in zip(parts[::2], parts[1::2], strict=True):
                if name in found:
                    raise ValueError(f"{package}: two queries have the name {name}")
                found[name] = _without_comments(body)
    return found


def _without_comments(body: str) -> str:
    lines = (line for line in body.splitlines() if not line.lstrip().startswith("--"))
    return "\n".join(lines).strip().rstrip(";")
