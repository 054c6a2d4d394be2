"""``counterfoil demo``: an engine, a misbehaving worker, some dozens of flows, and a summary of the results.

Everything uses real HTTP: the engine calls the worker, the worker posts to the webhook, and the display and the
summary come from the engine's event stream and API.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import tempfile
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from counterfoil.cli.connection import DEFAULT_URL
from counterfoil.cli.demo.scenarios import CHARGE, SCENARIOS, Scenario
from counterfoil.cli.output import CommandFailed, failure
from counterfoil.cli.program import program

if TYPE_CHECKING:
    from rich.console import Console

    from counterfoil.cli.demo.board import Board
    from counterfoil.cli.demo.reviewing import Reviewer
    from counterfoil.cli.demo.summary import Summary
    from counterfoil.cli.demo.worker import DemoWorker
    from counterfoil.client import Client, ClientError
    from counterfoil.settings import Settings

START_SECONDS = 3.0
LIMIT_SECONDS = 60.0
PLAIN_WIDTH = 120

T = TypeVar("T")


@click.command(short_help="Run an engine with a misbehaving worker.")
@click.option("--once", is_flag=True, help="Exit after the summary; exit code 1 if any flow did not end as expected.")
@click.option("--flows", type=click.IntRange(1, 5000), default=40, show_default=True, help="Number of flows to start.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="Port of the engine (default: 8080, or a free port if 8080 is taken).",
)
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Data directory (default: temporary).")
def demo(once: bool, flows: int, port: int | None, data: Path | None) -> None:
    """Run a demonstration: steps are dispatched, fail, are retried and completed, and duplicates are refused.

    Starts an engine on SQLite and a misbehaving worker, runs some dozens of flows, and compares the expected with
    the actual results. Then it keeps serving until Ctrl-C.
    """
    from counterfoil.app import StartFailure, run
    from counterfoil.client import ClientError
    from counterfoil.observability.logging import configure_logging

    with tempfile.TemporaryDirectory(prefix="counterfoil-demo-") as temporary:
        settings = _settings(data or Path(temporary), port)
        configure_logging(settings)
        try:
            code = run(_demo(settings, flows, once=once))
        except ClientError as error:
            raise failure(error) from None
        except StartFailure as error:
            raise CommandFailed(str(error)) from None
    raise click.exceptions.Exit(code)


def _settings(directory: Path, port: int | None) -> Settings:
    from counterfoil.settings import Settings

    chosen = port if port is not None else (8080 if _is_free(8080) else 0)
    return Settings(host="127.0.0.1", port=chosen, data=directory, log_level="error", shutdown_grace_ms=2_000)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


async def _demo(settings: Settings, flows: int, *, once: bool) -> int:
    from counterfoil.app import Counterfoil
    from counterfoil.cli.demo.reviewing import Reviewer
    from counterfoil.cli.demo.worker import DemoWorker
    from counterfoil.client import Client

    console = _console()
    async with AsyncExitStack() as stack:
        stop = stack.enter_context(_stop_signals())
        node = await stack.enter_async_context(Counterfoil(settings))
        worker = await stack.enter_async_context(DemoWorker())
        client = await stack.enter_async_context(Client(node.url))
        play = Play(client, worker, SCENARIOS, flows, Reviewer(client, worker.provider, CHARGE))
        summary = await _unless(stop, play.run(console, settings))
        if summary is None:
            console.print("stopped before all flows had ended")
            return 130
        summary.show(console)
        if not once:
            _say_goodbye(console, node.url, play.flow_ids[0])
            await stop.wait()
            console.print("\nstopped")
        return 0 if summary.good else 1


@dataclass(slots=True)
class Play:
    """One run: starts the flows, follows them, and compares the actual with the expected results."""

    client: Client
    worker: DemoWorker
    scenarios: Sequence[Scenario]
    flows: int
    reviewer: Reviewer
    run_id: str = field(default_factory=lambda: secrets.token_hex(3))

    @property
    def flow_ids(self) -> list[str]:
        return [f"demo-{self.run_id}-{number:02d}" for number in range(1, self.flows + 1)]

    def _numbers(self) -> dict[str, int]:
        return {flow_id: number for number, flow_id in enumerate(self.flow_ids, start=1)}

    def scenario_of(self, number: int) -> Scenario:
        return self.scenarios[(number - 1) % len(self.scenarios)]

    async def run(self, console: Console, settings: Settings) -> Summary:
        """Run all flows; the board is fed by the event stream, the summary by the API."""
        from counterfoil.cli.demo.board import Board

        for scenario in self.scenarios:
            await self.client.put_step(scenario.step_id, scenario.definition(self.worker.url_of(scenario.step_id)))
        board = Board(self.scenarios, self.flows)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        display = asyncio.create_task(self._display(console, board, begin))
        try:
            await self._play(board)
        finally:
            display.cancel()
            await asyncio.gather(display, return_exceptions=True)
        return await self._sum_up(loop.time() - begin, settings)

    async def _play(self, board: Board) -> None:
        """Run until every flow has ended or the time limit is reached; the summary shows flows that have not ended."""
        from counterfoil.client import ClientError

        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(LIMIT_SECONDS), asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._start())
                    reviewing = tasks.create_task(self.reviewer.run(self._numbers()))
                    await self._follow(board)
                    reviewing.cancel()
        except* ClientError as errors:
            raise _first(errors) from None
        await self.worker.idle()

    async def _start(self) -> None:
        pause = min(0.1, START_SECONDS / self.flows)
        for flow_id, number in self._numbers().items():
            scenario = self.scenario_of(number)
            labels = {"demo": self.run_id}
            await self.client.start_flow([scenario.step_id], {"number": number}, flow_id=flow_id, labels=labels)
            await asyncio.sleep(pause)

    async def _follow(self, board: Board) -> None:
        ours = set(self.flow_ids)
        async with aclosing(self.client.stream(after=0)) as events:
            async for event in events:
                if event["flow_id"] in ours:
                    board.see(event)
                    self.reviewer.see(event)
                if board.done:
                    return

    async def _display(self, console: Console, board: Board, begin: float) -> None:
        """A live table on a terminal, otherwise one line per second; runs until cancelled."""
        from rich.live import Live

        loop, refused = asyncio.get_running_loop(), self.worker.refused
        if not console.is_terminal:
            console.print(f"Counterfoil demo: engine at {self.client.base_url}, worker at {self.worker.url}")
            while True:
                await asyncio.sleep(1)
                console.print(board.progress_line(loop.time() - begin, refused))
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while True:
                shown = board.render(self.client.base_url, loop.time() - begin, refused, *console.size)
                live.update(shown, refresh=True)
                await asyncio.sleep(0.1)

    async def _sum_up(self, seconds: float, settings: Settings) -> Summary:
        from counterfoil.app import run_doctor
        from counterfoil.cli.demo.summary import Charges, Summary, Tally

        tallies = {scenario.step_id: Tally(scenario) for scenario in self.scenarios}
        for flow_id, number in self._numbers().items():
            tallies[self.scenario_of(number).step_id].add(await self.client.flow(flow_id), number)
        findings = await asyncio.to_thread(run_doctor, settings)
        return Summary(
            list(tallies.values()),
            seconds,
            self.worker.refused,
            self.worker.taken_twice.total(),
            [f"{finding.invariant}: {finding.subject}: {finding.message}" for finding in findings],
            Charges(self.worker.provider.charges, self.reviewer.approvals, self.worker.charger.deaths),
        )


def _first(errors: BaseExceptionGroup[ClientError]) -> ClientError:
    """The first error of several, also of a group inside a group."""
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


@contextmanager
def _stop_signals() -> Iterator[asyncio.Event]:
    """An event that SIGINT and SIGTERM set, for a graceful stop."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        with suppress(NotImplementedError):  # not on every system: there, Ctrl-C interrupts as usual
            loop.add_signal_handler(number, stop.set)
    yield stop
    for number in numbers:
        with suppress(NotImplementedError):
            loop.remove_signal_handler(number)


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of the work, or None if the stop came first."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        return working.result()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return None


def _say_goodbye(console: Console, url: str, flow_id: str) -> None:
    """Commands to try in another terminal, in lines that a terminal of 80 columns does not wrap."""
    address = "" if url == os.environ.get("COUNTERFOIL_URL", DEFAULT_URL) else f" --url {url}"
    console.print(f"\nstill serving at [cyan]{url}[/cyan] until Ctrl-C; in another terminal, try:\n")
    for line in (
        f"curl -s {url}/api/v1/flows/{flow_id}",
        f"curl -s {url}/api/v1/flows \\",
        "     -H 'Content-Type: application/json' \\",
        """     -d '{"goals": ["flaky"], "init": {"number": 7}}'""",
        f"curl -sN {url}/api/v1/stream",
        f"{program()} flow list --limit 5{address}",
        f"{program()} flow show {flow_id}{address}",
    ):
        console.print(f"  {line}", soft_wrap=True, markup=False)
