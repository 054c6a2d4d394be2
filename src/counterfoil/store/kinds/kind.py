"""The declaration of a kind of record, from which loading, drafts, writing, locks and pruning follow.

One instance of ``Kind`` for each kind, in a module of this package. ``declared.py`` finds them; nothing else lists
kinds. What a declaration leaves out has a default, so a plain kind (docs/decisions/0037) says its name, its dataclass
and its key, and has these queries in each store: ``load_<name>``, ``put_<name>``, ``delete_<name>``, and, if it belongs
to a flow, ``prune_<name>``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from counterfoil.store.kinds.columns import Columns, Row, RowWriter

if TYPE_CHECKING:
    from counterfoil.domain.errors import CounterfoilError
    from counterfoil.domain.steps.definitions import WorkDefaults
    from counterfoil.store.unit_of_work.changes import Changed, Changes
    from counterfoil.store.unit_of_work.unit import UnitOfWork

Key = TypeVar("Key")
R = TypeVar("R")
Rows = Iterable[Sequence[Any]]
Revisions = Mapping[str, int] | None
"""The revision of each flow that a batch has seen, on a store that several nodes share; None: one writer."""


class Write(NamedTuple):
    """A named statement, the rows that it writes, and whether every one of them must count (its guard held).

    ``follows``: it takes its rows from what another statement has written, to keep the tables of what is open in step.
    """

    query: str
    rows: list[Row]
    exact: bool = True
    follows: bool = False

    @classmethod
    def following(cls, query: str, count: int) -> Write:
        """A statement that takes so many rows from what the one before it has written."""
        return cls(query, [()] * count, follows=True)

    @classmethod
    def closing(cls, query: str, count: int) -> Write:
        """The same where rows go: one that was gone already is no reason to refuse an end."""
        return cls(query, [()] * count, exact=False, follows=True)


class Loaded(NamedTuple):
    """What a load has given: rows, the keys that were asked for, and the unit of work that it is for."""

    unit: UnitOfWork
    rows: Rows
    keys: set[Any]
    defaults: WorkDefaults


class ChangesOf(NamedTuple, Generic[Key, R]):
    """The changed records of one kind, among all changes of the batch."""

    records: Changed[Key, R]
    changes: Changes
    revisions: Revisions


class Pruned(NamedTuple):
    """Flows that a batch prunes, each with its labels, and the time of the batch."""

    flows: Mapping[str, Mapping[str, str]]
    at: int


class Unlocked(IntEnum):
    """Whether a batch may load it without a lock, to be proved by the write (store/postgres/optimistic.py)."""

    NEVER = 0
    LATER = 1
    """Once the flows that it belongs to have been seen with their revisions, or because it never changes."""
    AT_FIRST = 2


@dataclass(frozen=True, eq=False)
class Lock:
    """Locks that a batch holds until it ends, on a store that several nodes share.

    Batches take all locks in the order of ``order`` and within one by key, so they wait for each other but never in a
    circle. The first time a batch waits; for what it misses later it does not, and begins again if a lock is taken.

    ``query`` locks rows that exist (it ends with FOR UPDATE, and answers which there are), unless ``attempt`` is given:
    then it takes advisory locks, and ``attempt`` does so without waiting and answers whether all could be had.
    ``create`` and ``try_create``: the advisory lock under which rows that do not exist yet are made.
    """

    order: int
    query: str
    attempt: str | None = None
    busy: str = "another node holds a lock"
    create: str | None = None
    try_create: str | None = None


def itself(key: Any) -> Any:
    return key


def flow_of(key: str) -> str:
    """The flow of the key of a step."""
    return key.partition(BETWEEN)[0]


def step_key(flow_id: str, step_id: str) -> str:
    """The key of a step in a flow."""
    return f"{flow_id}{BETWEEN}{step_id}"


BETWEEN = "\n"
"""Separates flow and step in the key of a step: no id can hold it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Load:
    """One way to load records: the name that read sets know it by, and the query that takes keys and gives rows."""

    name: str
    query: str | None
    """None: it only finds work, which is then loaded as such."""
    columns: tuple[str, ...] = ()
    """Of the rows of ``query``; a test compares them with the SQL of both stores."""
    fill: Callable[[Loaded], None]
    """Puts rows into the unit of work."""
    order: int = 100
    """Loads of one batch run in this order."""
    finds_work: str | None = None
    """A query that runs before all loads and finds ids of work to be loaded as well."""
    with_flows: bool = False
    """The keys are flows, which are loaded as well."""
    flow_of_key: Callable[[str], str] | None = None
    """The flow that must be locked before the load, by the key; None: the key does not tell."""
    flow_column: str | None = None
    """The column of the flow that must have been locked; None: rows of this load have another lock, or never change."""
    lock: Lock | None = None
    unlocked: Unlocked = Unlocked.NEVER


class PruneStatement(NamedTuple):
    """A statement of pruning: its query, and its rows for the flows that are pruned."""

    order: int
    """Statements run in this order; what names a flow goes before the flow itself."""
    query: str
    rows: Callable[[Pruned], list[Row]]
    exact: bool = False
    follow: str | None = None
    """A statement of a shared store that takes its rows from this one."""


def by_flow(pruned: Pruned) -> list[Row]:
    return [(flow_id,) for flow_id in sorted(pruned.flows)]


def by_flow_and_time(pruned: Pruned) -> list[Row]:
    return [(flow_id, pruned.at) for flow_id in sorted(pruned.flows)]


def of_flow(name: str, order: int = 35) -> PruneStatement:
    """The usual statement: ``prune_<name>`` takes the ids of flows."""
    return PruneStatement(order, f"prune_{name}", by_flow)


class Phase(IntEnum):
    """When records are written: definitions before what names them, flows before what belongs to them.

    Batches that meet in a flow meet in the row of that flow first. Within a phase: declarations add to its number.
    """

    DEFINITIONS = 10
    FLOWS = 20
    PARTS_OF_FLOWS = 30
    JOURNAL = 50
    OTHERS = 70
    LAST = 90
    """Where the order does not matter."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Kind(Generic[Key, R]):
    """A kind of record. Units of work hold records of it by key, where None is one that does not exist."""

    name: str
    """What changes call it, and read sets unless a load says otherwise."""
    key: Callable[[R], Key] | None = None
    """The key of a record; None: the record does not hold it."""
    wanted: Callable[[Any], Any] = itself
    """The key as read sets have it."""
    loads: tuple[Load, ...] = ()
    """The first one loads single records by key."""
    unknown: type[CounterfoilError] | None = None
    """What a caller is told of a record that does not exist; None: no caller can name one."""
    absent: R | None = None
    """Stands for a record that was asked for and does not exist."""
    writes: Callable[[ChangesOf[Key, R]], Iterator[Write]]
    written: int = Phase.LAST
    follows_others: bool = False
    """``writes`` is asked for every batch, because what other kinds change is reason to write."""
    optimistic: bool = True
    """Whether a batch that was decided without locks may change it."""
    prune: tuple[PruneStatement, ...] = ()
    """What goes with a flow that is pruned."""
    empty: tuple[PruneStatement, ...] = ()
    """What goes when only the payloads of a flow are pruned."""
    writers: Mapping[str, RowWriter[R]] = field(default_factory=dict)
    """What makes the rows of each statement, for the test that compares columns with the SQL of both stores."""

    @property
    def load_name(self) -> str:
        """What read sets call a single record of this kind."""
        return self.loads[0].name if self.loads else self.name


def nothing_written(_: ChangesOf[Any, Any]) -> Iterator[Write]:
    """The writes of a kind that is only loaded, or counted with."""
    return iter(())


def filling(kind: Callable[[], Kind[Any, R]], read: Callable[[Sequence[Any]], R]) -> Callable[[Loaded], None]:
    """A ``fill`` for rows that are records of a kind, and keys of which some may have none."""

    def read_with_key(row: Sequence[Any]) -> tuple[Any, R]:
        record, key = read(row), kind().key
        assert key is not None, "a kind without a key reads pairs"
        return key(record), record

    return filling_pairs(kind, read_with_key)


def filling_pairs(
    kind: Callable[[], Kind[Key, R]], read: Callable[[Sequence[Any]], tuple[Key, R]]
) -> Callable[[Loaded], None]:
    """The same where a record does not hold its key: ``read`` gives both."""

    def fill(loaded: Loaded) -> None:
        own = kind()
        records = loaded.unit.records(own)
        for row in loaded.rows:
            records.add(*read(row))
        for key in loaded.keys:
            records.add(key, own.absent)

    return fill


def putting(name: str, writer: RowWriter[R]) -> Callable[[ChangesOf[str, R]], Iterator[Write]]:
    """The usual writes, in the order of keys: ``put_<name>`` for records that stay, ``delete_<name>`` for the others.

    Two batches that make the same records meet in the first of them.
    """

    def writes(of: ChangesOf[str, R]) -> Iterator[Write]:
        row, kept = writer.row, sorted(of.records.items())
        yield Write(f"put_{name}", [row(record) for _, record in kept if record is not None])
        yield Write(f"delete_{name}", [(key,) for key, record in kept if record is None], exact=False)

    return writes


def plain_kind(
    name: str,
    columns: Columns[R],
    key: str,
    *,
    lock: Lock | None = None,
    written: int = Phase.LAST,
    prune: tuple[PruneStatement, ...] = (),
    empty: tuple[PruneStatement, ...] = (),
    unknown: type[CounterfoilError] | None = None,
    **of_load: Any,
) -> Kind[str, R]:
    """A kind whose records are loaded by key, put and deleted, all columns at once."""
    key_of, writer = attrgetter(key), columns.writer()

    load = Load(
        name=name,
        query=f"load_{name}",
        columns=columns.names,
        fill=filling(lambda: kind, columns.read),
        lock=lock,
        **of_load,
    )
    kind: Kind[str, R] = Kind(
        name=name,
        key=key_of,
        loads=(load,),
        unknown=unknown,
        writes=putting(name, writer),
        written=written,
        prune=prune,
        empty=empty,
        writers={f"put_{name}": writer},
    )
    return kind
