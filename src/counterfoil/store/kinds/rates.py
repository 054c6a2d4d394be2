"""When the steps with a rate limit were sent last.

The store has one row for each step. It is read and written under the lock of the step (on PostgreSQL; on SQLite there
is one writer), so every node sees what the others have sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from counterfoil.domain.jsontext import dump_json, parse_json
from counterfoil.domain.work.rates import SentTimes
from counterfoil.store.kinds.columns import Row
from counterfoil.store.kinds.kind import ChangesOf, Kind, Load, Phase, Write, filling_pairs
from counterfoil.store.kinds.work import COUNTING

if TYPE_CHECKING:
    pass


def read_sent(row: Sequence[Any]) -> tuple[str, SentTimes]:
    """A row of ``load_rates``: the step, and its times."""
    step_id, most, text = row
    return step_id, SentTimes(tuple(accumulate(parse_json(text))), most)


def sent_row(step_id: str, sent: SentTimes) -> Row:
    """A row for ``put_rates``. Times are written as distances, each from the one before: a third of the text."""
    distances = [*sent.times[:1], *(after - before for before, after in pairwise(sent.times))]
    return step_id, sent.most, dump_json(distances).decode()


def _writes(of: ChangesOf[str, SentTimes]) -> Iterator[Write]:
    rates = of.records
    yield Write("put_rates", [sent_row(step_id, sent) for step_id, sent in sorted(rates.items()) if sent is not None])


RATES: Kind[str, SentTimes] = Kind(
    name="rates",
    loads=(
        Load(
            name="rates",
            query="load_rates",
            columns=("step_id", "most", "sent"),
            fill=filling_pairs(lambda: RATES, read_sent),
            lock=COUNTING,
        ),
    ),
    absent=SentTimes(),
    writes=_writes,
    written=Phase.OTHERS,
)
