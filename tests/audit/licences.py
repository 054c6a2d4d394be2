"""The licence of everything that is installed beside the package: a table, and a failure where one is not allowed.

Run by the interpreter whose environment it is about: ``.venv/bin/python -m tests.audit.licences``. It takes what each
distribution says of itself: a licence expression (PEP 639), else the field ``License``, else its classifiers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions

PACKAGE = "counterfoil"
RUNTIME_EXTRAS = ("postgres",)
TOOLS = ("pip", "setuptools", "wheel", "uv")
"""They come with the environment, not with the package."""

ALLOWED = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "ISC",
        "MIT",
        "MPL-2.0",  # files under it stay under it; nothing of ours becomes it
        "PSF-2.0",
        "Unlicense",
        "Zlib",
    }
)
"""Licences (SPDX) that something may have which is installed with Counterfoil or used to build it."""

WORDINGS = {
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd 2-clause license": "BSD-2-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
"""What older metadata calls them."""

_TOKEN = re.compile(r"[()]|[A-Za-z0-9.+-]+")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Licence:
    """What one distribution says; ``expression`` is empty where it says nothing that is known."""

    name: str
    version: str
    expression: str
    is_runtime: bool

    @property
    def allowed(self) -> bool:
        return bool(self.expression) and is_allowed(self.expression)


def is_allowed(expression: str) -> bool:
    """Whether an SPDX expression can be met: with OR one side must be allowed, with AND both; WITH is not looked at."""
    tokens = _TOKEN.findall(expression)

    def one() -> bool:
        token = tokens.pop(0) if tokens else ""
        if token == "(":
            found = any_of()
            closed = bool(tokens) and tokens.pop(0) == ")"
            return found and closed
        return token in ALLOWED

    def all_of() -> bool:
        found = one()
        while tokens[:1] == ["AND"]:
            tokens.pop(0)
            found = one() and found
        return found

    def any_of() -> bool:
        found = all_of()
        while tokens[:1] == ["OR"]:
            tokens.pop(0)
            found = all_of() or found
        return found

    return any_of() and not tokens


def expression_of(found: Distribution) -> str:
    """The licence of a distribution as an SPDX expression; empty where it cannot be told."""
    stated = found.metadata.get_all("License-Expression")
    if stated:
        return str(stated[0])
    text = "".join(found.metadata.get_all("License") or ()).strip()
    if text in ALLOWED:
        return text
    if text.lower() in WORDINGS:
        return WORDINGS[text.lower()]
    classifiers = [
        name.rpartition(" :: ")[2]
        for name in found.metadata.get_all("Classifier") or ()
        if name.startswith("License ::")
    ]
    known = {WORDINGS[name.lower()] for name in classifiers if name.lower() in WORDINGS}
    return " AND ".join(sorted(known))


def runtime_names() -> set[str]:
    """The distributions that an installation of the package has, with the extras that users may choose."""
    names: set[str] = set()
    waiting: list[tuple[str, tuple[str, ...]]] = [(PACKAGE, RUNTIME_EXTRAS)]
    while waiting:
        name, extras = waiting.pop()
        try:
            requirements = distribution(name).requires or ()
        except PackageNotFoundError:
            continue  # needed on another platform only
        for text in requirements:
            needed = _NAME.match(text)
            wanted = "extra ==" not in text or any(f"'{extra}'" in text or f'"{extra}"' in text for extra in extras)
            if needed and wanted and canonical(needed[0]) not in names:
                names.add(canonical(needed[0]))
                waiting.append((needed[0], ()))
    return names


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def licences() -> list[Licence]:
    """Of everything that is installed, but the package itself and the tools of every environment."""
    runtime = runtime_names()
    found = {
        canonical(each.metadata["Name"]): Licence(
            canonical(each.metadata["Name"]),
            each.version,
            expression_of(each),
            canonical(each.metadata["Name"]) in runtime,
        )
        for each in distributions()
    }
    return [found[name] for name in sorted(found) if name not in (PACKAGE, *TOOLS)]


def table(rows: Iterable[Licence]) -> str:
    lines = [f"{'distribution':28} {'version':14} {'for':8} licence"]
    for row in rows:
        mark = "" if row.allowed else "  <-- NOT ALLOWED" if row.expression else "UNKNOWN  <-- NOT ALLOWED"
        use = "runtime" if row.is_runtime else "tests"
        lines.append(f"{row.name:28} {row.version:14} {use:8} {row.expression}{mark}")
    return "\n".join(lines)


def main() -> int:
    rows = licences()
    print(table(rows))
    refused = [row.name for row in rows if not row.allowed]
    print(f"{len(rows)} distributions, {len(refused)} whose licence is unknown or not allowed", *refused)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
