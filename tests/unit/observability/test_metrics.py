"""Metrics: names, labels and values as a scrape shows them."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from counterfoil import __version__
from counterfoil.domain.errors import error_types
from counterfoil.domain.states import OPEN_WORK, WorkStatus
from counterfoil.observability.metrics import Metrics


def scraped(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text, _ = metrics.render()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return scraped(metrics).get((name, frozenset(labels.items())))


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def test_the_content_type_is_that_of_the_text_format(metrics: Metrics) -> None:
    _, content_type = metrics.render()
    assert content_type.startswith("text/plain; version=")


def test_every_name_is_ours_or_the_process_s_own(metrics: Metrics) -> None:
    assert {name.split("_")[0] for name, _ in scraped(metrics)} <= {"counterfoil", "process"}


def test_two_engines_do_not_mix(metrics: Metrics) -> None:
    Metrics().store_failed()
    assert value(metrics, "counterfoil_store_failures_total") == 0


def test_completions_are_counted_by_verdict_and_refusals_by_code_in_lower_case(metrics: Metrics) -> None:
    metrics.completed("accepted")
    metrics.completed("accepted", 41)
    metrics.completed("ALREADY_SUCCEEDED")
    assert value(metrics, "counterfoil_completions_total", verdict="accepted") == 42
    assert value(metrics, "counterfoil_completions_total", verdict="already_succeeded") == 1
    assert value(metrics, "counterfoil_completions_total", verdict="stale") == 0
    assert value(metrics, "counterfoil_completions_total", verdict="duplicate") == 0


def test_every_code_of_an_error_is_a_verdict(metrics: Metrics) -> None:
    codes = {error.code for error in error_types()}
    for code in codes:
        metrics.completed(code)
    assert all(value(metrics, "counterfoil_completions_total", verdict=code.lower()) == 1 for code in codes)


def test_dispatches_and_cancel_calls_are_counted_by_outcome(metrics: Metrics) -> None:
    metrics.dispatched("acknowledged")
    metrics.dispatched("acknowledged")
    metrics.dispatched("not_delivered")
    metrics.cancel_called("delivered")
    assert value(metrics, "counterfoil_dispatches_total", outcome="acknowledged") == 2
    assert value(metrics, "counterfoil_dispatches_total", outcome="not_delivered") == 1
    assert value(metrics, "counterfoil_cancel_calls_total", outcome="delivered") == 1


def test_a_sweep_counts_its_runs_and_what_it_dealt_with(metrics: Metrics) -> None:
    metrics.swept("deadlines", 0)
    metrics.swept("deadlines", 7)
    assert value(metrics, "counterfoil_sweeps_total", sweep="deadlines") == 2
    assert value(metrics, "counterfoil_swept_items_total", sweep="deadlines") == 7


def test_store_failures_are_counted(metrics: Metrics) -> None:
    metrics.store_failed()
    assert value(metrics, "counterfoil_store_failures_total") == 1


def test_commits_show_their_size_and_time(metrics: Metrics) -> None:
    metrics.committed(3, 0.002)
    metrics.committed(200, 0.02)
    assert value(metrics, "counterfoil_batch_size_count") == 2
    assert value(metrics, "counterfoil_batch_size_sum") == 203
    assert value(metrics, "counterfoil_batch_size_bucket", le="4.0") == 1
    assert value(metrics, "counterfoil_commit_seconds_bucket", le="0.0025") == 1
    assert value(metrics, "counterfoil_commit_seconds_sum") == pytest.approx(0.022)


def test_callback_latency_reaches_from_milliseconds_to_days(metrics: Metrics) -> None:
    metrics.callback_took(0.004)
    metrics.callback_took(100_000)
    metrics.callback_took(-1)
    assert value(metrics, "counterfoil_callback_seconds_bucket", le="0.005") == 2
    assert value(metrics, "counterfoil_callback_seconds_bucket", le="86400.0") == 2
    assert value(metrics, "counterfoil_callback_seconds_bucket", le="172800.0") == 3


def test_the_backlog_goes_up_and_down(metrics: Metrics) -> None:
    metrics.set_backlog(12)
    assert value(metrics, "counterfoil_backlog") == 12
    metrics.set_backlog(0)
    assert value(metrics, "counterfoil_backlog") == 0
    metrics.set_waiting_polls(3)
    assert value(metrics, "counterfoil_waiting_polls") == 3


def test_every_open_state_is_shown_and_one_that_is_not_given_is_zero(metrics: Metrics) -> None:
    assert all(value(metrics, "counterfoil_work_items", state=state) == 0 for state in OPEN_WORK)
    metrics.set_work_by_state({"active": 5, WorkStatus.HELD: 2})
    metrics.set_work_by_state({WorkStatus.ACTIVE: 4})
    shown = {state.value: value(metrics, "counterfoil_work_items", state=state) for state in OPEN_WORK}
    assert shown == {state.value: 4 if state is WorkStatus.ACTIVE else 0 for state in OPEN_WORK}


def test_what_has_ended_is_not_shown_as_if_there_were_none(metrics: Metrics) -> None:
    assert value(metrics, "counterfoil_work_items", state=WorkStatus.SUCCEEDED) is None


def test_the_oldest_waiting_items_are_replaced_as_a_whole(metrics: Metrics) -> None:
    ages = {"transcribe": 12.5, 'odd"name': 1.0}
    metrics.set_oldest_waiting(ages)
    ages["later"] = 1.0
    assert value(metrics, "counterfoil_oldest_waiting_seconds", step="transcribe") == 12.5
    assert value(metrics, "counterfoil_oldest_waiting_seconds", step='odd"name') == 1
    assert value(metrics, "counterfoil_oldest_waiting_seconds", step="later") is None
    metrics.set_oldest_waiting({"render": 3})
    assert value(metrics, "counterfoil_oldest_waiting_seconds", step="transcribe") is None
    assert value(metrics, "counterfoil_oldest_waiting_seconds", step="render") == 3


def test_the_build_says_its_version(metrics: Metrics) -> None:
    (labels,) = [dict(labels) for name, labels in scraped(metrics) if name == "counterfoil_build_info"]
    assert labels["version"] == __version__
