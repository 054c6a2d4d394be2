"""What tests of programs around the engine need: a step endpoint to program and a clock to move.

Nothing in production imports this package.
"""

from counterfoil.testing.clock import MovableClock
from counterfoil.testing.endpoint import Answer, Received, StepEndpoint

__all__ = ["Answer", "MovableClock", "Received", "StepEndpoint"]
