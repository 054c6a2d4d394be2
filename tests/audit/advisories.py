"""Known vulnerabilities of the versions in constraints.txt, by pip-audit, where advisories can be had at all.

pip-audit says "no known vulnerabilities" also where its source knows nothing: a mirror without the JSON API of PyPI, a
machine without a network. So each source is first asked about a version that is known to be vulnerable; only one that
knows it is believed. Where there is none the audit says so loudly and does not fail: nothing was found out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SOURCES = {"pypi": "the JSON API of the package index", "osv": "the OSV database"}
KNOWN_VULNERABLE = "urllib3==1.24.1"
"""CVE-2019-11324 and others: every source of advisories has it."""
SECONDS = 600


def audited(source: str, requirements: Path) -> tuple[list[dict[str, Any]], str]:
    """What pip-audit says of each requirement, and what it complains of; nothing where it could not even begin."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(requirements), "--no-deps", "--disable-pip"]
    command += ["--vulnerability-service", source, "--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, subprocess.TimeoutExpired) as error:
        complaint = done.stderr if not isinstance(error, subprocess.TimeoutExpired) else str(error)
        return [], (complaint.strip().splitlines() or [repr(error)])[-1]
    return found, "; ".join(sorted({str(each["skip_reason"]) for each in found if "skip_reason" in each}))


def source_that_knows() -> tuple[str | None, list[str]]:
    """The first source that tells of the version that is known to be vulnerable, and why the others were left."""
    reasons: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        probe = Path(directory) / "probe.txt"
        probe.write_text(f"{KNOWN_VULNERABLE}\n")
        for source, place in SOURCES.items():
            found, complaint = audited(source, probe)
            if any(each.get("vulns") for each in found):
                return source, reasons
            reasons.append(f"{place} tells nothing of {KNOWN_VULNERABLE}: {complaint or 'no advisory'}")
    return None, reasons


def main(requirements: Path) -> int:
    source, reasons = source_that_knows()
    if source is None:
        bar = "!" * 100
        print(
            bar, "NO ADVISORIES COULD BE HAD HERE: the versions were NOT checked for known vulnerabilities.", sep="\n"
        )
        print(*reasons, "Run this again where one of them can be reached.", bar, sep="\n")
        return 0
    found, _ = audited(source, requirements)
    skipped = [f"{each['name']}: {each['skip_reason']}" for each in found if "skip_reason" in each]
    vulnerable = [each for each in found if each.get("vulns")]
    for each in vulnerable:
        for advisory in each["vulns"]:
            fixed = ", ".join(advisory.get("fix_versions") or ()) or "no version yet"
            print(f"{each['name']} {each['version']}: {advisory['id']}, fixed in {fixed}")
    print(*(f"not checked: {reason}" for reason in skipped), sep="\n", end="\n" if skipped else "")
    checked = len(found) - len(skipped)
    print(
        f"{checked} of {len(found)} versions checked by {SOURCES[source]}: {len(vulnerable)} with known vulnerabilities"
    )
    return 1 if vulnerable or not found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "constraints.txt")))
