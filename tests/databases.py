"""The PostgreSQL of a test run: one cluster for all its processes, a template with the schema, a clone a test."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.postgres import Cluster, PostgresFailure

STORES = ("sqlite", "postgresql")
TEMPLATE = "counterfoil_template"
UNAVAILABLE = "no PostgreSQL could be had"

NewDatabase = Callable[..., str]
"""Makes a database (``empty=True``: without the schema) and answers with its DSN."""

NewCluster = Callable[..., Cluster]
"""Starts a server of the test's own; takes the options of ``Cluster``."""


class RunDatabases:
    """The databases of a run. The first process that needs one starts the cluster, all of them share it.

    A cluster that could not be started is not tried again: what was wrong is kept beside it.
    """

    def __init__(self, home: Path | None = None) -> None:
        self._cluster = Cluster(home=home, settings={"autovacuum": "off"})
        self._numbers = itertools.count(1)

    @property
    def home(self) -> Path:
        return self._cluster.home

    def create(self, *, empty: bool = False) -> str:
        """The name of a new database, which is a clone of the template unless it is to be empty."""
        cluster = self._started()
        if not empty:
            self._provide_template()
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        run_apart(cluster.create_database(name, None if empty else TEMPLATE))
        return name

    def dsn(self, name: str) -> str:
        return self._cluster.dsn(name)

    def drop(self, name: str) -> None:
        run_apart(self._cluster.drop_database(name))

    def remove(self) -> None:
        self._cluster.remove()

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


def remove_databases(config: pytest.Config) -> None:
    """End the cluster of this run, if it was ever asked for."""
    databases = config.stash.get(_DATABASES, None)
    if databases is not None:
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
        if os.environ.get("CI", "").lower() in ("", "0", "false"):
            pytest.skip(f"{UNAVAILABLE}: {failure}")
        pytest.fail(f"{UNAVAILABLE}: {failure}", pytrace=False)
