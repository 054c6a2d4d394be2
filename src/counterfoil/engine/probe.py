"""Whether the writer works: asked by whoever wants to know if the engine is ready."""

from __future__ import annotations

from counterfoil.store.needs import Needs
from counterfoil.store.world import World


class Probe:
    """Needs nothing and changes nothing: that it is answered at all shows that a transaction can be had."""

    def needs(self, needs: Needs) -> None:
        pass

    def decide(self, world: World, now: int) -> None:
        pass
