"""What an item shares with other flows: the key of its effect, or the token of its hook."""

from __future__ import annotations

from counterfoil.domain.effects.dedup import item_ended
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.hooks.ownership import hook_item_ended
from counterfoil.domain.journal.events import Event
from counterfoil.domain.records import Work


def release_shared(view: FlowView, work: Work, event: Event) -> None:
    """The item ends by this event: what it shares goes to the next item that waits for it."""
    step = view.version(work.version)
    if not step.shares:
        return
    if step.definition.effect.dedupes and work.undoes is None:
        item_ended(view, work, step, event)
    elif step.definition.kind == "hook":
        hook_item_ended(view, work, event)
