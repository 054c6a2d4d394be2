"""Reading the effects of tools. Readers never wait for the writer."""

from __future__ import annotations

import base64
import binascii

from counterfoil.domain.effects.reservations import LONGEST_KEY
from counterfoil.domain.effects.reserved_effects import effect_id
from counterfoil.domain.errors import UnknownEffect
from counterfoil.domain.jsontext import JsonError, dump_json, parse_json
from counterfoil.engine.context import EngineContext
from counterfoil.engine.queries.effect_documents import effect_document, effect_summary
from counterfoil.engine.queries.reading import converted, not_a_cursor, read, read_list
from counterfoil.store.kinds.effects import LISTED_RESERVATION, read_listed_reservation, read_reservation
from counterfoil.store.protocol import Row, Store
from counterfoil.wire.effects import EffectDetail, EffectPage

_AFTER_ALL_TOOLS = chr(0x10FFFF) * (LONGEST_KEY + 1)
"""Sorts after every tool: a range that is never open has one plan, whichever end is given."""
_TOOL, _KEY = LISTED_RESERVATION.index("tool"), LISTED_RESERVATION.index("effect_key")
_BY_STATE = {"pending": "list_pending_effects", "complete-failed": "list_failed_effects"}
"""States that an index of their own finds."""


class ReservationQueries:
    """Every read of the effects API. A record past its window is not shown, though no sweep has removed it yet."""

    def __init__(self, store: Store, context: EngineContext) -> None:
        self._store = store
        self._context = context

    async def effect(self, tool: str, key: str) -> EffectDetail:
        now = self._context.clock()
        rows = await read(self._store, "get_effect", effect_id=effect_id(tool, key), now=now)
        if not rows:
            raise UnknownEffect(retriable=False)
        return effect_document(read_reservation(rows[0]), now)

    async def effects(
        self, *, tool: str | None = None, state: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> EffectPage:
        """Effects by tool and key; a cursor names the last one of the page before."""
        now = self._context.clock()
        after_tool, after_key = _position(cursor)
        if tool is not None and after_tool < tool:
            after_tool, after_key = tool, ""
        query, of_state = _BY_STATE.get(state or ""), {}
        if query is None:
            query, of_state = "list_effects", {"state": state}
        rows, following = await read_list(
            self._store,
            query,
            self._context.page_bytes,
            limit,
            after_tool=after_tool,
            after_key=after_key,
            last_tool=_AFTER_ALL_TOOLS if tool is None else tool,
            now=now,
            **of_state,
        )
        effects = await converted(lambda row: effect_summary(read_listed_reservation(row), now), rows)
        return {"effects": effects, "next_cursor": None if following is None else _cursor(rows[-1])}

    async def pending(self) -> tuple[int, int]:
        """How many reservations are pending: within their time to live, and past it."""
        live, lapsed = (await read(self._store, "pending_effects", now=self._context.clock()))[0]
        return live, lapsed


def _cursor(row: Row) -> str:
    """Names the last row of a page."""
    tool, key = row[_TOOL], row[_KEY]
    return base64.urlsafe_b64encode(dump_json([tool, key])).decode().rstrip("=")


def _position(cursor: str | None) -> tuple[str, str]:
    """The tool and key that a cursor names; the texts before all others if there is none."""
    if cursor is None:
        return "", ""
    try:
        named = parse_json(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, JsonError, ValueError):
        raise not_a_cursor() from None
    if not (isinstance(named, list) and len(named) == 2 and all(isinstance(text, str) for text in named)):
        raise not_a_cursor()
    tool, key = named
    if "\x00" in tool + key:
        raise not_a_cursor()
    return tool, key
