"""Tools for tests of programs that use the engine: a programmable step endpoint and a controllable clock.

Nothing in production imports this package.
"""

from counterfoil.testing.clock import MovableClock
from counterfoil.testing.endpoint import Answer, Received, StepEndpoint

__all__ = ["Answer", "MovableClock", "Received", "StepEndpoint"]
