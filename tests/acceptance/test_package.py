"""The package as users get it: a built wheel, installed into an empty environment and run far from the sources.

The commands are those of the README's section on installing, line by line.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
import zipfile
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from dataclasses import dataclass
from pathlib import Path

import pytest

from counterfoil.version import __version__
from tests.acceptance.processes import LISTENING
from tests.pages import README, ROOT, blocks_of
from tests.programs import left_out

PACKAGE_SECONDS = 240
DEMO_PASSED = "40 of 40 flows ended as expected"
PROGRAM = """
import asyncio
import sys
from importlib.resources import files

import aiohttp
from aiohttp import web

import counterfoil
from counterfoil.client import Assignment, Client, InvalidStep, Worker

url = sys.argv[1]
worker = Worker()


@worker.step("/double")
async def double(work: Assignment) -> dict[str, int]:
    return {"doubled": 2 * work.arguments["number"]}


async def main() -> None:
    runner = web.AppRunner(worker.app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with Client(url) as client:
        await client.put_step("double", {"endpoint": f"http://127.0.0.1:{port}/double"})
        started = await client.start_flow(["double"], {"number": 21})
        print("result", (await client.result(started["flow_id"]))["outputs"])
        try:
            await client.put_step("double", {"end": "http://127.0.0.1:1/"})
        except InvalidStep as error:
            print("refused", error)
    async with aiohttp.ClientSession() as session:
        for path in ("/docs", "/docs/docs.js", "/docs/docs.css", "/openapi.json"):
            async with session.get(url + path) as response:
                print("page", path, response.status)
    await runner.cleanup()
    print("from", counterfoil.__file__)
    print("typed", files("counterfoil").joinpath("py.typed").is_file())


asyncio.run(main())
"""


@dataclass(frozen=True)
class Ended:
    """A command that has ended, with what it wrote."""

    command: str
    code: int
    output: str

    def ok(self) -> str:
        assert self.code == 0, f"{self.command} ended with {self.code}:\n{self.output[-4000:]}"
        return self.output


@dataclass(frozen=True)
class Elsewhere:
    """A user's machine: a copy of the sources to build from, an empty environment, and a directory to work in."""

    sources: Path
    bin: Path
    directory: Path
    environment: dict[str, str]

    async def run(self, command: str, cwd: Path | None = None) -> Ended:
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            command,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            cwd=cwd or self.directory,
            env=self.environment,
        )
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return Ended(command, process.returncode or 0, output.decode(errors="replace"))

    async def install(self, command: str) -> str:
        """Run a command that takes packages from an index, which a machine may be unable to reach."""
        ended = await self.run(command, self.sources)
        unreachable = (
            "Temporary failure in name resolution",
            "Network is unreachable",
            "dns error",
            "Connection refused",
        )
        if ended.code and any(words in ended.output for words in unreachable):
            left_out(f"no package index can be reached: {command}")
        return ended.ok()


def clean_environment(place: Path, *programs: Path) -> dict[str, str]:
    """Nothing of this environment: neither its packages nor its settings. Versions are those of constraints.txt."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("COUNTERFOIL_", "PYTHON", "PYTEST", "COV_", "PIPX_", "VIRTUAL_ENV", "WEBHOOK_"))
    }
    indexes = {"UV_DEFAULT_INDEX": kept.get("PIP_INDEX_URL"), "SSL_CERT_FILE": kept.get("PIP_CERT")}
    constraints = str(ROOT / "constraints.txt")
    return {
        **{name: value for name, value in indexes.items() if value},
        **kept,
        "PATH": os.pathsep.join([*(str(each) for each in programs), kept["PATH"]]),
        "PIP_CONSTRAINT": constraints,
        "PIP_NO_COMPILE": "1",
        "UV_CONSTRAINT": constraints,
        "PIPX_HOME": str(place / "pipx"),
        "PIPX_BIN_DIR": str(place / "pipx" / "bin"),
        "PIPX_DEFAULT_BACKEND": "uv",
        "PIPX_DEFAULT_PYTHON": sys.executable,
    }


@pytest.fixture
async def elsewhere(tmp_path: Path) -> Elsewhere:
    sources, tools, directory = (tmp_path / name for name in ("sources", "tools", "project"))
    for path in (sources, tools, directory):
        path.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    shutil.copytree(ROOT / "src", sources / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pipx", "uv"):
        (tools / name).symlink_to(Path(sys.executable).parent / name)
    where = Elsewhere(sources, directory / ".venv" / "bin", directory, {})
    where.environment.update(clean_environment(tmp_path, where.bin, tools))
    await where.install(f"uv venv --quiet --seed --python {shlex.quote(sys.executable)} {where.bin.parent}")
    return where


def readme_commands() -> list[str]:
    """The lines of the section on installing: the wheel, its installation, the extra, and pipx."""
    (block,) = (block for block in blocks_of(README) if "test_package.py" in block.argument)
    commands = [line.partition("  #")[0] for line in block.text.splitlines()]
    assert [command.split()[:2] for command in commands] == [
        ["pip", "wheel"],
        ["pip", "install"],
        ["pip", "install"],
        ["pipx", "run"],
    ]
    return commands


def check_files(wheel: Path) -> None:
    """Every file of the package is in the wheel (SQL, pages, the marker of types), and no other."""
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    files = {name for name in files if "__pycache__" not in name}
    with zipfile.ZipFile(wheel) as packed:
        shipped = {name for name in packed.namelist() if ".dist-info/" not in name}
    assert shipped == files
    assert {Path(name).suffix for name in shipped} >= {".py", ".sql", ".html", ".css", ".js", ".typed"}


async def check_engine(where: Elsewhere) -> None:
    """An engine and a program of the user, both from the installed package, in a directory of their own."""
    program = where.directory / "program.py"
    program.write_text(PROGRAM, "utf-8")
    engine = await asyncio.create_subprocess_exec(
        where.bin / "counterfoil",
        "serve",
        "--port",
        "0",
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        cwd=where.directory,
        env=where.environment,
    )
    try:
        assert engine.stdout is not None
        while not (found := LISTENING.search((await engine.stdout.readline()).decode())):
            assert not engine.stdout.at_eof(), "the engine has ended"
        lines = (await where.run(f"python {program.name} {found[1]}")).ok().splitlines()
    finally:
        engine.terminate()
        await engine.communicate()
    assert engine.returncode == 0
    assert lines[0] == "result {'doubled': 42}"
    assert lines[1].startswith("refused INVALID_STEP: the step definition is not valid (")
    assert lines[2:6] == [f"page {path} 200" for path in ("/docs", "/docs/docs.js", "/docs/docs.css", "/openapi.json")]
    assert lines[6].startswith(f"from {where.directory}/.venv/lib/")
    assert lines[7:] == ["typed True"]


async def use_installed(where: Elsewhere, install: str, extra: str) -> None:
    await where.install(install)
    assert (await where.run("counterfoil --version")).ok() == f"counterfoil {__version__}\n"
    without = await where.run("counterfoil doctor --store postgresql://127.0.0.1:1/nothing")
    assert (without.code, "pip install 'counterfoil[postgres]'" in without.output) == (1, True)
    demo = asyncio.create_task(where.run("counterfoil demo --once"))
    await check_engine(where)
    await where.install(extra)
    (await where.run("python -c 'import asyncpg, counterfoil.client, counterfoil.store.postgres'")).ok()
    assert DEMO_PASSED in (await demo).ok()


async def run_by_pipx(where: Elsewhere, command: str) -> None:
    assert DEMO_PASSED in await where.install(command)


@pytest.mark.timeout(PACKAGE_SECONDS)
async def test_the_wheel_works_in_an_empty_environment(elsewhere: Elsewhere) -> None:
    build, install, extra, pipx = readme_commands()
    await elsewhere.install(build)
    (wheel,) = (elsewhere.sources / "dist").glob("*.whl")
    check_files(wheel)
    async with asyncio.TaskGroup() as group:
        group.create_task(use_installed(elsewhere, install, extra))
        group.create_task(run_by_pipx(elsewhere, pipx))
