"""The checks of ``counterfoil.contracts.testing``: good tools pass, and each kind of bad tool is found."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from counterfoil.contracts import ContractPhase, SqliteDedupStore, ToolCall
from counterfoil.contracts.testing import (
    ContractCheckFailed,
    crash_between_phases,
    hammer,
    undeclared_errors,
    window,
)
from counterfoil.contracts.testing.callers import CallerLost
from tests.integration.contracts import shop_tools
from tests.integration.contracts.payments import Payments

TOOLS = "tests.integration.contracts.shop_tools"
ARGUMENTS = {"payment_id": "p-1", "amount_minor": 1_400_000}
DAY = 86_400.0


def named(name: str, payments: Payments, **more: Any) -> dict[str, Any]:
    """A tool by its name, and what its factory is given."""
    return {"tool": f"{TOOLS}:{name}", "given": {"url": payments.url, **more}}


# ------------------------------------------------------------------------------------------------ hammer


async def test_one_key_under_a_hundred_callers_in_four_processes_is_one_effect(payments: Payments) -> None:
    report = await hammer(**named("good_refund", payments), arguments=ARGUMENTS, effects=payments.paid)
    assert (report.passed, report.effects, len(report.answers)) == (True, 1, 100)
    assert {str(answer) for answer in report.answers} == {"result {'refund_id': 're_1', 'amount_minor': 1400000}"}


async def test_a_key_given_by_conversation_and_step_is_hammered_as_well(payments: Payments) -> None:
    report = await hammer(
        **named("good_refund", payments),
        arguments=ARGUMENTS,
        effects=payments.paid,
        call={"conversation_id": "c-1", "step_id": "s-1"},
        callers=10,
        processes=2,
    )
    assert report.effects == 1


async def test_a_final_failure_is_one_answer_for_all(payments: Payments) -> None:
    payments.faults.append(402)
    report = await hammer(
        **named("good_refund", payments),
        arguments=ARGUMENTS,
        effects=payments.paid,
        expected=0,
        callers=20,
        processes=2,
    )
    assert {answer.code for answer in report.answers} == {"CARD_EXPIRED"}
    assert len(payments.requests) == 1


@pytest.mark.parametrize("name", ["sunday_wrapper", "blind_refund"])
async def test_a_key_made_below_the_caller_is_found(payments: Payments, name: str) -> None:
    """The Sunday incident: four callers with one key, four refunds."""
    with pytest.raises(ContractCheckFailed, match="4 callers with one key had 4 effects, not 1") as failed:
        await hammer(**named(name, payments), arguments=ARGUMENTS, effects=payments.paid, callers=4, processes=2)
    assert "callers with one key got different answers" in failed.value.report.problems
    assert payments.paid() == 4


async def test_a_wrapper_that_passes_the_key_on_passes(payments: Payments) -> None:
    report = await hammer(
        **named("honest_wrapper", payments), arguments=ARGUMENTS, effects=payments.paid, callers=8, processes=2
    )
    assert report.effects == 1


async def test_effects_may_be_counted_by_a_coroutine_and_a_tool_given_itself(tmp_path: Path) -> None:
    """The tool has no effect that could be counted here: the one expected is missed."""

    async def none() -> int:
        return 0

    with pytest.raises(ContractCheckFailed, match="had 0 effects, not 1") as failed:
        await hammer(shop_tools.at_the_top, ARGUMENTS, effects=none, callers=2, processes=1, store=tmp_path / "e.db")
    assert [answer.code for answer in failed.value.report.answers] == [None, None]  # type: ignore[attr-defined]
    assert (tmp_path / "e.db").exists()


async def test_a_tool_that_cannot_be_loaded_is_named(payments: Payments) -> None:
    with pytest.raises(CallerLost, match="no attribute 'nowhere'"):
        await hammer(f"{TOOLS}:nowhere", ARGUMENTS, effects=payments.paid, callers=1, processes=1)
    with pytest.raises(ValueError, match="module:attribute"):
        await hammer("shop", ARGUMENTS, effects=payments.paid)
    with pytest.raises(ValueError, match="another tool than the one given"):
        await hammer(shop_tools.at_the_top.bind(wait=1), ARGUMENTS, effects=payments.paid)
    with pytest.raises(ValueError, match="other processes cannot find this tool"):
        await hammer(shop_tools.good_refund(payments.url), ARGUMENTS, effects=payments.paid)


async def test_a_tool_in_a_file_is_found_by_its_path_and_may_print(tmp_path: Path, payments: Payments) -> None:
    source = tmp_path / "my tools.py"
    source.write_text(
        "from tests.integration.contracts.shop_tools import good_refund\n"
        f"issue_refund = good_refund({payments.url!r})\n"
        "print('loaded', '{}')\n"
    )
    report = await hammer(f"{source}:issue_refund", ARGUMENTS, effects=payments.paid, callers=4, processes=2)
    assert report.effects == 1


# ------------------------------------------------------------------------------------------------ crashes


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_refund_killed_at_every_phase_is_paid_once(payments: Payments) -> None:
    report = await crash_between_phases(
        **named("good_refund", payments), arguments=ARGUMENTS, effects=payments.paid, moments=("begin", "end")
    )
    assert [(point.phase, point.moment) for point in report.points] == [
        (phase, moment) for phase in ContractPhase for moment in ("begin", "end")
    ]
    before = {point.phase: point.effects_at_crash for point in report.points if point.moment == "end"}
    assert before == {
        "receive": 0, "validate": 0, "look_up": 0, "reserve": 0, "execute": 1, "record": 1, "audit": 1, "return": 1,
    }  # fmt: skip
    assert all(point.effects == 1 and point.answer.error is None for point in report.points)
    assert payments.paid() == 16


async def test_a_tool_with_a_key_of_its_own_pays_again_after_a_crash(payments: Payments) -> None:
    """The Sunday incident inside of a contract: between the payment and its record, no key protects it."""
    with pytest.raises(ContractCheckFailed) as failed:
        await crash_between_phases(
            **named("keyless_refund", payments),
            arguments=ARGUMENTS,
            effects=payments.paid,
            phases=["reserve", "execute", "record"],
        )
    assert failed.value.report.problems == [
        "after a crash at the end of execute and a replay, the effect has happened 2 times, not once"
    ]
    assert payments.paid() == 4


async def test_a_wrapper_that_makes_keys_pays_again_whenever_the_payment_was_made(payments: Payments) -> None:
    with pytest.raises(ContractCheckFailed) as failed:
        await crash_between_phases(
            **named("sunday_wrapper", payments),
            arguments=ARGUMENTS,
            effects=payments.paid,
            phases=["reserve", "execute", "record", "return"],
        )
    assert [problem.split()[7] for problem in failed.value.report.problems] == ["execute", "record", "return"]


async def test_an_irreversible_tool_is_not_executed_again(payments: Payments) -> None:
    report = await crash_between_phases(
        **named("good_refund", payments, effect="irreversible", window="30d"),
        arguments=ARGUMENTS,
        effects=payments.paid,
        phases=["validate", "reserve", "execute", "record"],
    )
    assert [(point.phase, point.effects, point.answer.code) for point in report.points] == [
        ("validate", 1, None),
        ("reserve", 0, "UNSAFE_ONCE_INCOMPLETE"),
        ("execute", 1, "UNSAFE_ONCE_INCOMPLETE"),
        ("record", 1, None),
    ]
    assert "UNSAFE_ONCE_INCOMPLETE" in str(report)


async def test_a_phase_that_is_not_reached_is_no_pass(payments: Payments) -> None:
    with pytest.raises(ContractCheckFailed, match=r"no crash at the end of execute: .*INVALID_ARGUMENTS"):
        await crash_between_phases(
            **named("good_refund", payments), arguments={"payment_id": 7}, effects=payments.paid, phases=["execute"]
        )


# ------------------------------------------------------------------------------------------------ windows


def moved(payments: Payments) -> Any:
    return lambda seconds: payments.clock.advance(milliseconds=round(seconds * 1000))


async def test_a_downstream_window_as_long_as_claimed_passes(payments: Payments) -> None:
    payments.window = 7 * DAY
    report = await window(
        shop_tools.good_refund(payments.url, downstream="7d"),
        ARGUMENTS,
        effects=payments.paid,
        advance=moved(payments),
    )
    assert [probe.effects for probe in report.probes] == [1, 1, 1, 1]
    assert report.probes[-1].after == 7 * DAY - 1


async def test_a_downstream_window_shorter_than_claimed_is_found(payments: Payments) -> None:
    """Declared as 30 days, and forgotten after two: the declaration is a lie that only a probe finds."""
    payments.window = 2 * DAY
    with pytest.raises(
        ContractCheckFailed, match=r"claims a window of 7d.* honoured after 21 h.* after 3\.5 d \(2 effects\)"
    ):
        await window(shop_tools.good_refund(payments.url), ARGUMENTS, effects=payments.paid, advance=moved(payments))


async def test_a_tool_that_does_not_pass_its_key_on_is_found_at_the_first_probe(payments: Payments) -> None:
    with pytest.raises(ContractCheckFailed, match="no longer honoured"):
        await window(
            shop_tools.keyless_refund(payments.url),
            ARGUMENTS,
            effects=payments.paid,
            advance=asyncio.sleep,
            after=[0.0],
        )


async def test_a_window_that_never_ends_is_probed_up_to_a_horizon(payments: Payments) -> None:
    payments.window = 300 * DAY
    tool = shop_tools.good_refund(payments.url, effect="write-idempotent", window="forever", downstream="forever")
    with pytest.raises(ContractCheckFailed, match="claims a window of forever"):
        await window(tool, ARGUMENTS, effects=payments.paid, advance=moved(payments))
    report = await window(tool, ARGUMENTS, effects=payments.paid, advance=moved(payments), horizon="90d")
    assert report.passed


async def test_a_contract_without_a_downstream_window_does_not_pass(payments: Payments) -> None:
    with pytest.raises(ContractCheckFailed, match="declares no downstream_window"):
        await window(shop_tools.good_refund(payments.url, downstream=None))
    assert (await window(shop_tools.good_refund(payments.url))).passed
    with pytest.raises(ValueError, match="a probe needs arguments"):
        await window(shop_tools.good_refund(payments.url), advance=moved(payments))


async def test_calls_that_fail_prove_nothing_about_a_window(payments: Payments) -> None:
    payments.faults.extend([402] * 20)
    with pytest.raises(ContractCheckFailed, match="neither of two calls had an effect: CARD_EXPIRED"):
        await window(shop_tools.good_refund(payments.url), ARGUMENTS, effects=payments.paid, advance=moved(payments))


# ------------------------------------------------------------------------------------------------ errors


async def test_declared_errors_pass_and_those_not_seen_are_listed(payments: Payments) -> None:
    tool = shop_tools.good_refund(payments.url)
    report = await undeclared_errors(
        tool,
        ARGUMENTS,
        {
            "expired": lambda: payments.faults.append(402),
            "down": lambda: payments.faults.extend([500] * 3),
            "cut": lambda: payments.faults.extend(["cut"] * 3),
            "no amount": {"amount_minor": 0},
        },
    )
    assert [failure.answer.code for failure in report.failures] == [
        "CARD_EXPIRED",
        "UPSTREAM_TIMEOUT",
        "UPSTREAM_TIMEOUT",
        "INVALID_ARGUMENTS",
    ]
    assert report.unseen == ["RATE_LIMITED"]
    with pytest.raises(ContractCheckFailed, match="no failure brought about what the contract declares: RATE_LIMITED"):
        await undeclared_errors(tool, ARGUMENTS, {"expired": lambda: payments.faults.append(402)}, exhaustive=True)


async def test_undeclared_codes_and_exceptions_are_found(payments: Payments) -> None:
    tool = shop_tools.good_refund(payments.url)
    with pytest.raises(ContractCheckFailed) as failed:
        await undeclared_errors(
            tool,
            ARGUMENTS,
            {"dispute": lambda: payments.faults.append(409), "teapot": lambda: payments.faults.append(418)},
        )
    assert failed.value.report.problems == [
        "dispute: the contract does not declare DISPUTED",
        "teapot: the contract does not declare RuntimeError",
    ]
    assert failed.value.report.undeclared == ["DISPUTED", "RuntimeError"]  # type: ignore[attr-defined]


async def test_an_error_that_shows_the_key_is_found(tmp_path: Path) -> None:
    from counterfoil.contracts import ToolFailure, tool_contract

    @tool_contract(name="leaky", version="1.0.0", effect="write-non-idempotent", errors={"NO": "Give up."})
    async def leaky(call: ToolCall[shop_tools.Refund]) -> None:
        raise ToolFailure("NO", f"the key {call.idempotency_key} was refused")

    with pytest.raises(ContractCheckFailed, match="always: the error shows the idempotency key"):
        await undeclared_errors(leaky, ARGUMENTS, {"always": {}})


async def test_a_failure_may_last_as_long_as_its_context_manager(payments: Payments) -> None:
    import contextlib
    from collections.abc import AsyncIterator, Iterator

    ended = []

    @contextlib.contextmanager
    def expired() -> Iterator[None]:
        payments.faults.append(402)
        yield
        ended.append("expired")

    @contextlib.asynccontextmanager
    async def limited() -> AsyncIterator[None]:
        payments.faults.extend([429] * 3)
        yield
        ended.append("limited")

    tool = shop_tools.good_refund(payments.url)
    report = await undeclared_errors(tool, ARGUMENTS, {"expired": expired, "limited": limited}, exhaustive=True)
    assert (report.unseen, ended) == ([], ["expired", "limited"])


# ------------------------------------------------------------------------------------------------ fixtures


def test_pytest_is_loaded_by_the_fixtures_only() -> None:
    program = (
        "import sys, counterfoil.contracts.testing, counterfoil.contracts.adapters.langchain\n"
        "assert not {'pytest', '_pytest', 'langchain_core', 'mcp', 'openai', 'anthropic'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_the_fixture_works_beside_a_running_loop(contract_checks: Any, dedup_store: SqliteDedupStore) -> None:
    report = contract_checks.window(f"{TOOLS}:good_refund", given={"url": "http://127.0.0.1:9"})
    assert report.passed
    assert await dedup_store.show("issue_refund", "none") is None
