"""Checks that users run against their own tools; each raises ContractCheckFailed if a tool does not pass.

| check | finds |
| --- | --- |
| ``hammer`` | one key, many callers in several processes: more than one effect, or different answers |
| ``crash_between_phases`` | a process killed at each phase, and a replay: an effect that happens twice or never |
| ``window`` | a downstream system that forgets keys earlier than the contract claims |
| ``undeclared_errors`` | error codes and exceptions that the contract does not declare, and errors that show a key |

They are async functions; a test without an event loop uses ``asyncio.run``, or the fixture ``contract_checks`` of
``counterfoil.contracts.testing.fixtures`` (a pytest plugin, and the only module here that needs pytest).
"""

from counterfoil.contracts.testing.crashes import CrashReport, PhaseCrash, crash_between_phases
from counterfoil.contracts.testing.failures import DrivenFailure, ErrorsReport, undeclared_errors
from counterfoil.contracts.testing.hammering import HammerReport, hammer
from counterfoil.contracts.testing.reports import CallerAnswer, CheckReport, ContractCheckFailed
from counterfoil.contracts.testing.targets import CheckTarget
from counterfoil.contracts.testing.windows import WindowProbe, WindowReport, window

__all__ = [
    "CallerAnswer",
    "CheckReport",
    "CheckTarget",
    "ContractCheckFailed",
    "CrashReport",
    "DrivenFailure",
    "ErrorsReport",
    "HammerReport",
    "PhaseCrash",
    "WindowProbe",
    "WindowReport",
    "crash_between_phases",
    "hammer",
    "undeclared_errors",
    "window",
]
