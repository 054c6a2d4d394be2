"""The seed of a run: always the same one, unless ``TEST_SEED`` asks for another.

``make test`` must not be a matter of luck, so whatever draws lots in a test takes its seed from here, and Hypothesis
draws the same examples in every run. ``make fuzz`` and ``make chaos`` set a random ``TEST_SEED`` and print it; the same
seed repeats the run, as far as timing allows.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

VARIABLE = "TEST_SEED"
FIXED = 13


def is_random() -> bool:
    """Whether this run was asked for another seed than that of every run."""
    return VARIABLE in os.environ


def run_seed() -> int:
    return int(os.environ.get(VARIABLE, str(FIXED)))


def announce(**sizes: Any) -> int:
    """The seed of this run, which is printed with what else is needed to repeat it."""
    words = [f"{VARIABLE}={run_seed()}", *(f"{name}={value}" for name, value in sizes.items())]
    print(*words, file=sys.stderr)  # noqa: T201 (pytest shows it with a failure, and with -s at once)
    return run_seed()


def load_hypothesis_profile() -> None:
    """Examples that depend on the test's own source alone; with ``TEST_SEED``, on ``--hypothesis-seed``.

    No deadline and no check for slowness: how long an example takes is a matter of what else the machine does.
    """
    usual: dict[str, Any] = {
        "database": None,
        "deadline": None,
        "suppress_health_check": [HealthCheck.too_slow],
    }
    settings.register_profile("fixed", derandomize=True, **usual)
    settings.register_profile("random", derandomize=False, **usual)
    settings.load_profile("random" if is_random() else "fixed")
    _forget_constants()


def _forget_constants() -> None:
    """Hypothesis also draws constants of the modules that are loaded: then examples depend on which tests ran before.

    There is no setting for that. Where a version of it has no such function there is nothing to replace, and
    tests/tools/test_seeds.py tells whether examples are still the same.
    """
    if hasattr(providers, "_get_local_constants"):
        providers._get_local_constants = lambda: providers._local_constants
