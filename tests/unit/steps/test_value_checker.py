"""The checking process and the thread that waits for it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from counterfoil.checking.checker import ValueChecker
from counterfoil.checking.process import CheckFailed, CheckingProcess
from counterfoil.domain.steps.checks import CANNOT_BE_CHECKED, TOO_MUCH_WORK, Findings, ValueCheck


def check_of(schema: Any, value: Any, *, each: bool = False) -> ValueCheck:
    return ValueCheck(json.dumps(schema).encode(), json.dumps(value).encode(), each)


ENDLESS = check_of({"uniqueItems": True}, [10**300 + number for number in range(5_000)])
"""The library compares each with each."""


@pytest.fixture
def process() -> Iterator[CheckingProcess]:
    process = CheckingProcess(300)
    yield process
    process.stop()
    process.close()


@pytest.fixture
def checker() -> Iterator[ValueChecker]:
    checker = ValueChecker(300, most_waiting=8)
    yield checker
    checker.close()


class Told:
    """Remembers what it was told, and lets a test wait for it."""

    def __init__(self) -> None:
        self.findings: list[tuple[str, Findings | None]] = []
        self._news = asyncio.Event()

    def by(self, name: str) -> Callable[[Findings | None], None]:
        def done(findings: Findings | None) -> None:
            self.findings.append((name, findings))
            self._news.set()

        return done

    async def all_of(self, count: int) -> list[str]:
        """The checks that were answered, in their order, once they are so many."""
        while len(self.findings) < count:
            self._news.clear()
            await self._news.wait()
        return [name for name, _ in self.findings]


async def findings(checker: ValueChecker, *checks: ValueCheck) -> Findings | None:
    told: asyncio.Future[Findings | None] = asyncio.get_running_loop().create_future()
    assert checker.check(checks, told.set_result, urgent=True)
    return await told


# ------------------------------------------------------------------------------------------------ the process


def test_it_says_what_the_engine_would_say(process: CheckingProcess) -> None:
    numbers = {"items": {"type": "integer"}}
    assert process.problem(check_of(numbers, [1, 2**70, "é\u2028"])) == (
        "does not match its schema: /2: must be of type integer"
    )
    assert process.problem(check_of(numbers, [1, 2**70])) is None
    assert process.problem(check_of(numbers, [[1], ["a"]], each=True)) == (
        "element 1 does not match its schema: /0: must be of type integer"
    )
    assert process.problem(check_of(True, "a" * 3_000_000)) is None


def test_what_takes_too_much_work_is_given_up_and_the_next_one_is_not(process: CheckingProcess) -> None:
    assert process.problem(ENDLESS) == TOO_MUCH_WORK
    assert process.problem(check_of({}, 1)) is None


def test_the_limit_is_that_of_one_check_and_not_of_all(process: CheckingProcess) -> None:
    some = check_of({"uniqueItems": True}, [10**300 + number for number in range(150)])
    for _ in range(30):
        assert process.problem(some) is None


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks at the process in /proc")
def test_it_has_none_of_the_secrets(process: CheckingProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERFOIL_SIGNING_SECRET", "whsec_secret")
    monkeypatch.setenv("PGPASSWORD", "secret")
    assert process.problem(check_of({}, 1)) is None
    child = process._process
    assert child is not None
    assert b"secret" not in Path(f"/proc/{child.pid}/environ").read_bytes()


def test_a_value_on_which_it_ends_twice_is_refused(process: CheckingProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = process._ask

    def die(child: Any, check: ValueCheck) -> bytes | None:
        child.send_signal(signal.SIGKILL)
        child.wait()
        return ask(child, check)

    monkeypatch.setattr(process, "_ask", die)
    assert process.problem(check_of({}, 1)) == CANNOT_BE_CHECKED
    monkeypatch.setattr(process, "_ask", ask)
    assert process.problem(check_of({}, 1)) is None


def test_one_that_does_not_answer_in_time_is_no_fault_of_the_value(
    process: CheckingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert process.problem(check_of({}, 1)) is None
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGSTOP)
    monkeypatch.setattr("counterfoil.checking.process.PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr("counterfoil.checking.process.ENDING_SECONDS", 0.2)
    with pytest.raises(CheckFailed, match="in time"):
        process.problem(check_of({}, "a" * 1_000_000))
    monkeypatch.undo()
    assert process.problem(check_of({}, 1)) is None


def test_one_that_cannot_be_started_is_no_fault_of_the_value(
    process: CheckingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(CheckFailed, match="cannot be started"):
            process.problem(check_of({}, 1))
    assert process.problem(check_of({}, 1)) is None


# ------------------------------------------------------------------------------------------------ the thread


async def test_what_was_found_is_told_to_the_event_loop(checker: ValueChecker) -> None:
    good, bad = check_of({}, 1), check_of(False, 1)
    assert await findings(checker, good, bad) == {
        good.key: None,
        bad.key: "does not match its schema: the value: is not allowed here",
    }


async def test_a_value_that_is_sent_again_is_not_checked_again(
    checker: ValueChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await findings(checker, ENDLESS) == {ENDLESS.key: TOO_MUCH_WORK}
    monkeypatch.setattr(checker._process, "problem", None)
    assert await findings(checker, ENDLESS) == {ENDLESS.key: TOO_MUCH_WORK}


async def test_of_a_command_with_a_value_that_takes_too_much_work_no_other_is_tried(checker: ValueChecker) -> None:
    good = check_of({}, 1)
    assert await findings(checker, ENDLESS, good) == {ENDLESS.key: TOO_MUCH_WORK, good.key: TOO_MUCH_WORK}
    assert await findings(checker, good) == {good.key: None}


async def test_those_that_only_ask_come_last_and_are_fewer(checker: ValueChecker) -> None:
    told = Told()
    assert checker.check([ENDLESS], told.by("first"), urgent=True)
    assert checker.check([check_of({}, 1)], told.by("question"), urgent=False)
    assert not checker.check([check_of({}, 2)], told.by("refused"), urgent=False)
    assert checker.check([check_of({}, 3)], told.by("report"), urgent=True)
    assert await told.all_of(3) == ["first", "report", "question"]


async def test_no_more_wait_than_may(checker: ValueChecker) -> None:
    told = Told()
    for _ in range(8):
        assert checker.check([ENDLESS], told.by("report"), urgent=True)
    assert not checker.check([check_of({}, 1)], told.by("refused"), urgent=True)
    assert await told.all_of(8) == ["report"] * 8
    assert await findings(checker, check_of({}, 1)) is not None


async def test_closing_tells_those_that_wait(checker: ValueChecker) -> None:
    told = Told()
    for number in range(3):
        checker.check([ENDLESS, check_of({}, number)], told.by("report"), urgent=True)
    checker.close()
    await told.all_of(3)
    assert told.findings == [("report", None)] * 3
    assert not checker.check([check_of({}, 1)], told.by("refused"), urgent=True)


async def test_a_checker_that_was_never_needed_has_no_thread() -> None:
    checker = ValueChecker(300, most_waiting=8)
    checker.close()
    assert checker._thread is None
