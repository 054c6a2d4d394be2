"""A command in a pseudo-terminal of a given size, and the screen that its user sees."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import signal
import termios
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.eventually import eventually

ROWS = 24
_TOKEN = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|[^\x1b]", re.DOTALL)


class Screen:
    """What a terminal shows of the text that it was sent; lines that have left the screen are kept above it.

    It knows what our programs send: text, colours, new lines, the cursor up, and erased lines. Everything else is an
    error, so that nothing is overlooked.
    """

    def __init__(self, columns: int, rows: int = ROWS) -> None:
        self.columns = columns
        self.rows = rows
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0
        self._continued: set[int] = set()
        self._rest = ""

    @property
    def text(self) -> str:
        """The lines as they are seen."""
        return "\n".join("".join(line).rstrip() for line in self._lines)

    @property
    def copied(self) -> str:
        """The lines as a mouse copies them: a line that the terminal broke is one line."""
        ends = ("" if row in self._continued else "\n" for row in range(len(self._lines)))
        return "".join(
            f"{''.join(line).rstrip() if end else ''.join(line)}{end}"
            for line, end in zip(self._lines, ends, strict=True)
        )

    def feed(self, text: str) -> None:
        text = self._rest + text
        whole = len(text)
        if (escape := text.rfind("\x1b")) >= 0 and not _TOKEN.match(text, escape):
            whole = escape  # the rest of this sequence is still to come
        self._rest = text[whole:]
        for token in _TOKEN.finditer(text[:whole]):
            if token[2]:
                self._control(token[1], token[2])
            else:
                self._put(token[0])

    def _control(self, argument: str, command: str) -> None:
        if command == "A":
            self._row = max(self._row - int(argument or 1), len(self._lines) - self.rows, 0)
        elif command == "K" and argument == "2":
            self._lines[self._row] = []
            self._continued.discard(self._row)
        else:
            assert command == "m" or (argument, command) in {("?25", "h"), ("?25", "l")}, (argument, command)

    def _put(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._row += 1
            if self._row == len(self._lines):
                self._lines.append([])
        else:
            assert character.isprintable(), repr(character)
            if self._column == self.columns:  # the line is full: the terminal goes on in the next one
                self._continued.add(self._row)
                self._put("\r")
                self._put("\n")
            line = self._lines[self._row]
            line.extend(" " * (self._column + 1 - len(line)))
            line[self._column] = character
            self._column += 1


class Terminal:
    """A process in a pseudo-terminal. ``seen`` are all different screens so far, the last one is now."""

    def __init__(self, process: Process, screen: Screen) -> None:
        self.process = process
        self.screen = screen
        self.seen: list[str] = []
        self._closed = asyncio.Event()

    @property
    def text(self) -> str:
        return self.screen.text

    def show(self, text: str) -> None:
        self.screen.feed(text)
        self.seen.append(self.screen.text)

    def close(self) -> None:
        self._closed.set()

    async def until(self, pattern: str, within: float = 50.0) -> str:
        """Wait until the screen shows the pattern, on one line or broken; returns all that it shows."""

        def look() -> str | None:
            ended = self.process.returncode is not None
            if re.search(pattern, self.screen.copied):
                return self.text
            assert not ended, f"ended without {pattern!r}: {self.text}"
            return None

        return await eventually(look, within=within, what=f"{pattern!r} on the screen")

    async def ended(self) -> int:
        """Wait for the end of the process, and for all that it has written; returns its exit code."""
        code = await asyncio.wait_for(self.process.wait(), 30)
        await asyncio.wait_for(self._closed.wait(), 30)
        return code


@asynccontextmanager
async def in_terminal(
    command: Sequence[str], columns: int, environment: Mapping[str, str], directory: Path
) -> AsyncIterator[Terminal]:
    """Run a command in a pseudo-terminal until the block is left."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (ROWS, columns))
    others = {name: value for name, value in environment.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=directory,
        env={**others, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(theirs)
    terminal = Terminal(process, Screen(columns))
    decoder = codecs.getincrementaldecoder("utf-8")()
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            content = os.read(ours, 65_536)
        except OSError:  # Linux says so when the other side is closed
            content = b""
        terminal.show(decoder.decode(content))
        if not content:
            loop.remove_reader(ours)
            terminal.close()

    loop.add_reader(ours, read)
    try:
        yield terminal
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()
        loop.remove_reader(ours)
        os.close(ours)
