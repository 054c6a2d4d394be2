"""The PostgreSQL of a test run: one cluster for all its processes, a template with the schema, a clone a test."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.postgres import Cluster, PostgresFailure, create_database, drop_database
from tests.programs import left_out

if TYPE_CHECKING:
    from tests.postgres import AnyConnection

STORES = ("sqlite", "postgresql")
TEMPLATE = "counterfoil_template"
UNAVAILABLE = "no PostgreSQL could be had"

NewDatabase = Callable[..., str]
"""Makes a database (``empty=True``: without the schema) and answers with its DSN."""

NewCluster = Callable[..., Cluster]
"""Starts a server of the test's own; takes the options of ``Cluster``."""


class Administrator:
    """Creates and drops databases on one connection that stays open, on a thread of its own, in the order of the calls.

    A connection for each statement would take more time than the statements.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._thread = ThreadPoolExecutor(1, "postgres-administrator")
        self._loop = asyncio.new_event_loop()
        self._connection: AnyConnection | None = None
        self._submitted: list[Future[None]] = []

    def create(self, name: str, template: str | None) -> Future[None]:
        return self._submit(lambda connection: create_database(connection, name, template))

    def drop(self, name: str) -> Future[None]:
        return self._submit(lambda connection: drop_database(connection, name))

    def _submit(self, work: Callable[[AnyConnection], Coroutine[Any, Any, None]]) -> Future[None]:
        """Begin and go on; ``close`` raises what went wrong."""
        done = self._thread.submit(self._run, work)
        self._submitted = [each for each in self._submitted if not each.done() or each.exception()] + [done]
        return done

    def close(self) -> None:
        """Wait for all statements and end the connection; raises the failure of any of them."""
        try:
            for each in self._submitted:
                each.result()
        finally:
            self._thread.submit(self._disconnect).result()
            self._thread.shutdown()

    def _run(self, work: Callable[[AnyConnection], Coroutine[Any, Any, None]]) -> None:
        self._loop.run_until_complete(self._connected(work))

    async def _connected(self, work: Callable[[AnyConnection], Coroutine[Any, Any, None]]) -> None:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._cluster.connect()
        await work(self._connection)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._loop.run_until_complete(asyncio.sleep(0))  # in which the transport closes its socket
        self._loop.close()


class RunDatabases:
    """The databases of a run. The first process that needs one starts the cluster, all of them share it.

    Each process has one clone of the template in reserve, made while the test before runs, and drops databases while
    the test after runs. A cluster that could not be started is not tried again: what was wrong is kept beside it.
    """

    def __init__(self, home: Path | None = None) -> None:
        self._cluster = Cluster(home=home, settings={"autovacuum": "off"})
        self._numbers = itertools.count(1)
        self._administrator: Administrator | None = None
        self._reserve: tuple[str, Future[None]] | None = None

    @property
    def home(self) -> Path:
        return self._cluster.home

    def create(self, *, empty: bool = False) -> str:
        """The name of a new database, which is a clone of the template unless it is to be empty."""
        self._started()
        if empty:
            name, made = self._begin(None)
        else:
            self._provide_template()
            name, made = self._reserve or self._begin(TEMPLATE)
            self._reserve = self._begin(TEMPLATE)
        made.result()
        return name

    def dsn(self, name: str) -> str:
        return self._cluster.dsn(name)

    def drop(self, name: str) -> Future[None]:
        """Begin to drop a database, whatever is still connected to it; the caller need not wait."""
        return self._open.drop(name)

    def close(self) -> None:
        """Finish what this process began; the cluster stays."""
        if self._administrator is not None:
            self._administrator.close()
            self._administrator = self._reserve = None

    def remove(self) -> None:
        """End the cluster with everything in it."""
        self.close()
        self._cluster.remove()

    @property
    def _open(self) -> Administrator:
        if self._administrator is None:
            self._administrator = Administrator(self._cluster)
        return self._administrator

    def _begin(self, template: str | None) -> tuple[str, Future[None]]:
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        return name, self._open.create(name, template)

    def _started(self) -> Cluster:
        failed = self.home / "failed"
        with self._only_one():
            if failed.exists():
                raise PostgresFailure(failed.read_text())
            if not (self.home / "port").exists():
                try:
                    self._cluster.start()
                except PostgresFailure as failure:
                    failed.write_text(str(failure))
                    raise
        return self._cluster

    def _provide_template(self) -> None:
        made = self.home / "template"
        with self._only_one():
            if not made.exists():
                run_apart(self._make_template())
                made.touch()

    async def _make_template(self) -> None:
        from counterfoil.store.postgres.migrations import migrate

        await self._cluster.drop_database(TEMPLATE)  # of an attempt that failed
        await self._cluster.create_database(TEMPLATE)
        connection = await self._cluster.connect(TEMPLATE)
        try:
            await migrate(connection, int(time.time() * 1000))
        finally:
            await connection.close()

    @contextlib.contextmanager
    def _only_one(self) -> Iterator[None]:
        with (self.home / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


_DATABASES = pytest.StashKey[RunDatabases]()


def databases_of(config: pytest.Config) -> RunDatabases:
    """The databases of this run, made when they are first asked for; workers use those of their controller."""
    if _DATABASES not in config.stash:
        home = getattr(config, "workerinput", {}).get("postgres_home")
        config.stash[_DATABASES] = RunDatabases(home and Path(home))
    return config.stash[_DATABASES]


def finish_databases(config: pytest.Config) -> None:
    """End what this process has of the run's databases: a worker its connection, their controller the cluster."""
    databases = config.stash.get(_DATABASES, None)
    if databases is None:
        return
    if hasattr(config, "workerinput"):
        databases.close()
    else:
        databases.remove()


def run_apart(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end on an event loop of its own, whether or not this thread has one that is running."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


@contextlib.contextmanager
def skipped_without_postgres() -> Iterator[None]:
    """Skip what needs PostgreSQL where there is none; in continuous integration that is a failure."""
    try:
        yield
    except PostgresFailure as failure:
        left_out(f"{UNAVAILABLE}: {failure}")
