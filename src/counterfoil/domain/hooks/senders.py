"""The sender of a payload over HTTP: what it must prove, and how its payload is read, once the hook is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from counterfoil.domain.callbacks.mapping import Ignored
from counterfoil.domain.callbacks.reading import Unmapped, read_payload, verify_callback
from counterfoil.domain.callbacks.secrets import Secrets
from counterfoil.domain.errors import CounterfoilError
from counterfoil.domain.steps.definitions import StepDefinition
from counterfoil.domain.work.results import StepResult


@dataclass(frozen=True)
class KeptPayload:
    """A payload that an operator replays, with the headers that are kept; its signature is not checked again."""

    body: bytes = field(repr=False)
    headers: Mapping[str, str]

    def admit(self, definition: StepDefinition, now: int) -> None:
        """An operator may deliver to every hook."""

    def read(self, definition: StepDefinition) -> Ignored | StepResult | Unmapped:
        return read_payload(definition.accept, self.headers, self.body)


@dataclass(frozen=True)
class PayloadSender:
    """A request as it was received. ``refusal``: why its caller may not deliver to a hook without ``accept``."""

    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    secrets: Secrets
    refusal: CounterfoilError | None = None

    def admit(self, definition: StepDefinition, now: int) -> None:
        """Raise unless the sender may deliver to a hook of this step.

        To a hook with ``accept``, every caller that has the token may deliver; if that has a signature, every caller
        must sign, an operator too. To any other hook, only a caller that may deliver to all of them.
        """
        accept = definition.accept
        if accept is None and self.refusal is not None:
            raise self.refusal
        if accept is not None:
            verify_callback(accept, self.headers, self.body, self.secrets, now)

    def read(self, definition: StepDefinition) -> Ignored | StepResult | Unmapped:
        """What the payload means for a hook of this step; raises InvalidPayload."""
        return read_payload(definition.accept, self.headers, self.body)
