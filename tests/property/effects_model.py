"""A plain model of the effects API: one dictionary, and the rules as the reference states them.

It knows nothing of the engine's functions, so that it can disagree with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CLASSES = ("write-idempotent", "write-non-idempotent", "irreversible")
WINDOWS: dict[str, int | None] = {"1s": 1_000, "10s": 10_000, "60s": 60_000, "forever": None}
Key = tuple[str, str]


@dataclass
class Line:
    """What the model knows of a key that is not absent."""

    effect_class: str
    holder: str
    expires_at: int
    window: int | None
    digest: str | None
    outcome: tuple[bool, Any] | None = None
    ends_at: int | None = None


class EffectsModel:
    """Answers each request with a status and a code, or the fence."""

    def __init__(self) -> None:
        self.lines: dict[Key, Line] = {}
        self.fences: dict[Key, int] = {}
        """The highest fence that was ever given for a key: it is never forgotten here."""
        self.freed: set[Key] = set()
        """Keys that were settled as not applied, and not forgotten or reserved since."""
        self.freed_until: dict[Key, int | None] = {}

    def line(self, key: Key, now: int) -> Line | None:
        found = self.lines.get(key)
        if found is not None and found.ends_at is not None and found.ends_at <= now:
            del self.lines[key]
            return None
        return found

    def reserve(
        self, key: Key, effect_class: str, holder: str, ttl: int, window: str, digest: str | None, now: int
    ) -> tuple[int, Any]:
        line = self.line(key, now)
        if line is None:
            return self._grant(key, Line(effect_class, holder, now + ttl, WINDOWS[window], digest))
        if line.effect_class != effect_class or (digest and line.digest and digest != line.digest):
            return 409, "EFFECT_KEY_REUSED"
        if line.outcome is not None:
            return 200, line.outcome
        if now < line.expires_at:
            if line.holder != holder:
                return 409, "RETRY_IN_FLIGHT"
            line.expires_at = now + ttl
            return 200, self.fences[key]
        if effect_class == "irreversible":
            return 409, "UNSAFE_ONCE_INCOMPLETE"
        return self._grant(key, Line(effect_class, holder, now + ttl, WINDOWS[window], digest))

    def _grant(self, key: Key, line: Line) -> tuple[int, Any]:
        self.lines[key] = line
        self.freed.discard(key)
        self.fences[key] = self.fences.get(key, 0) + 1
        return 201, self.fences[key]

    def complete(self, key: Key, fence: int, outcome: tuple[bool, Any], now: int) -> tuple[int, Any]:
        line = self.line(key, now)
        if line is None:
            return (409, "FENCED") if key in self.freed else (404, "UNKNOWN_EFFECT")
        if fence != self.fences[key]:
            return 409, "FENCED"
        if line.outcome is None:
            self._record(line, outcome, now)
            return 200, False
        return (200, True) if line.outcome == outcome else (409, "CONFLICTING_RESULT")

    def settle(self, key: Key, outcome: str, value: Any, now: int) -> tuple[int, Any]:
        line = self.line(key, now)
        if line is None:
            return 404, "UNKNOWN_EFFECT"
        if line.outcome is not None:
            return 409, "CONFLICTING_RESULT"
        if now < line.expires_at:
            return 409, "RETRY_IN_FLIGHT"
        if outcome == "not_applied":
            del self.lines[key]
            self.freed.add(key)
            self.freed_until[key] = None if line.window is None else now + line.window
            return 200, "free"
        self._record(line, (outcome == "applied", value), now)
        return 200, "complete-success" if outcome == "applied" else "complete-failed"

    def swept(self, now: int) -> None:
        """A freed key is forgotten like any other, if it was not reserved again."""
        self.freed = {key for key in self.freed if (end := self.freed_until[key]) is None or end > now}

    def _record(self, line: Line, outcome: tuple[bool, Any], now: int) -> None:
        line.outcome = outcome
        line.ends_at = None if line.window is None else now + line.window

    def shown(self, key: Key, now: int) -> str | None:
        """The state that readers see."""
        line = self.line(key, now)
        if line is None:
            return None
        if line.outcome is None:
            return "pending"
        return "complete-success" if line.outcome[0] else "complete-failed"
