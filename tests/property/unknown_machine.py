"""The same machine on flows whose outcomes are unknown from the beginning: what it would seldom come to by chance."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.property.choices import HELD_RULES
from tests.property.machine import EngineMachine
from tests.property.model import Rules


class UnknownOutcomesMachine(EngineMachine):
    """Steps of the policies that hold, most with a ``status_url``; each flow begins with an attempt that was lost."""

    @initialize(rules=HELD_RULES, how=st.sampled_from(["timeout", "500", "silence"]))
    def start_flow(self, rules: Rules, how: str) -> None:
        self.start([rules])
        self.an_outcome_becomes_unknown(0, how)

    @precondition(lambda self: not self.active)
    @rule(rules=HELD_RULES, how=st.sampled_from(["timeout", "500", "silence"]))
    def start_another_flow(self, rules: Rules, how: str) -> None:
        self.start_next([rules])
        self.an_outcome_becomes_unknown(0, how)
