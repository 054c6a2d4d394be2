"""Which heartbeats the journal keeps."""

from __future__ import annotations

import pytest

from counterfoil.engine.work import heartbeats
from counterfoil.engine.work.heartbeats import BURST, INTERVAL_MS, HeartbeatPace

NOW = 1_700_000_000_000


def test_some_at_first_then_one_in_a_while() -> None:
    pace = HeartbeatPace()
    torrent = [pace.journals("a", NOW + number) for number in range(1000)]
    assert torrent.count(True) == BURST
    assert torrent[:BURST] == [True] * BURST
    later = [pace.journals("a", NOW + 1000 + step) for step in range(0, 60 * INTERVAL_MS, 100)]
    assert later.count(True) == pytest.approx(60, abs=1)


def test_items_do_not_count_for_each_other() -> None:
    pace = HeartbeatPace()
    for _ in range(BURST):
        assert pace.journals("a", NOW)
    assert not pace.journals("a", NOW)
    assert pace.journals("b", NOW)


def test_ordinary_heartbeats_are_all_kept() -> None:
    pace = HeartbeatPace()
    assert all(pace.journals("a", NOW + step * INTERVAL_MS) for step in range(1000))


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "MOST_ITEMS", 100)
    pace = HeartbeatPace()
    for number in range(1000):
        pace.journals(f"item {number}", NOW + number)
        assert len(pace._settled_at) <= 100
    for number in range(50):
        pace.journals(f"late {number}", NOW + 10 * INTERVAL_MS)
    assert len(pace._settled_at) <= 100
