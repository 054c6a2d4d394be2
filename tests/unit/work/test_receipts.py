"""Receipts: what was issued is known again, everything else is not; and where their secrets come from."""

from __future__ import annotations

import re
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.domain.work.receipts import Receipts
from counterfoil.store.maintenance.receipt_secrets import FILE_NAME, _configured, _kept_secret, receipt_secrets
from counterfoil.store.sqlite.store import SqliteStore

OLD, NEW, FOREIGN = b"o" * 32, b"n" * 32, b"f" * 32
FLOW, STEP, WORK = "flow-1", "transcribe", "0190f3b2c4d57e8f9a0b1c2d3e4f5a6b"

receipts = Receipts([NEW, OLD])
token = receipts.issue(FLOW, STEP, WORK)
id_text = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._~:-]{0,20}", fullmatch=True)


def test_the_form_of_a_token() -> None:
    assert re.fullmatch(re.escape(WORK) + r"\.[A-Za-z0-9_-]{43}", token)


def test_a_token_leads_to_its_work() -> None:
    assert receipts.work_id_of(FLOW, STEP, token) == WORK


def test_the_same_work_has_the_same_token_in_every_process() -> None:
    assert Receipts([NEW]).issue(FLOW, STEP, WORK) == token


@pytest.mark.parametrize(("flow", "step"), [("flow-2", STEP), (FLOW, "render"), (STEP, FLOW), ("", STEP), (FLOW, "")])
def test_a_token_of_another_flow_or_step_is_unknown(flow: str, step: str) -> None:
    assert receipts.work_id_of(flow, step, token) is None


def test_ids_cannot_be_shifted_into_one_another() -> None:
    assert receipts.work_id_of("flow-1t", "ranscribe", token) is None
    issued = receipts.issue("a", "bc", "d")
    for flow, step in (("ab", "c"), ("abc", ""), ("", "abc"), ("a", "b")):
        assert receipts.work_id_of(flow, step, issued) is None
    assert receipts.work_id_of("a", "b", "c" + issued) is None


@given(id_text, id_text, id_text, id_text, id_text, id_text)
def test_no_other_ids_share_a_token(flow: str, step: str, work: str, flow2: str, step2: str, work2: str) -> None:
    same = (flow, step, work) == (flow2, step2, work2)
    assert (receipts.issue(flow, step, work) == receipts.issue(flow2, step2, work2)) is same
    assert receipts.work_id_of(flow, step, receipts.issue(flow, step, work)) == work


@given(st.integers(0, len(token) - 1), st.characters(codec="utf-8"))
def test_changing_any_character_makes_it_unknown(position: int, character: str) -> None:
    forged = token[:position] + character + token[position + 1 :]
    assert receipts.work_id_of(FLOW, STEP, forged) == (WORK if forged == token else None)


def test_no_other_spelling_of_the_same_signature_counts() -> None:
    """The last character of 43 carries two bits of nothing: all but one of its spellings are forged."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/="
    known = [last for last in alphabet if receipts.work_id_of(FLOW, STEP, token[:-1] + last) is not None]
    assert known == [token[-1]]
    assert receipts.work_id_of(FLOW, STEP, token + "=") is None


@given(st.text() | st.text(alphabet=st.characters(categories=["Cs"])))
def test_garbage_is_unknown_and_never_an_error(garbage: str) -> None:
    assert receipts.work_id_of(FLOW, STEP, garbage) is None
    assert receipts.work_id_of(garbage, STEP, token) is None
    assert receipts.work_id_of(FLOW, garbage, token) is None
    assert receipts.work_id_of(FLOW, STEP, f"{garbage}.{token}") is None


def test_cut_and_longer_tokens_are_unknown() -> None:
    for length in range(len(token)):
        assert receipts.work_id_of(FLOW, STEP, token[:length]) is None
    assert receipts.work_id_of(FLOW, STEP, token + "A") is None


def test_rotation() -> None:
    before = Receipts([OLD]).issue(FLOW, STEP, WORK)
    assert before != token
    assert receipts.work_id_of(FLOW, STEP, before) == WORK
    assert Receipts([NEW]).work_id_of(FLOW, STEP, before) is None
    assert Receipts([FOREIGN]).work_id_of(FLOW, STEP, token) is None


@pytest.mark.parametrize("secrets", [[], [b""], [NEW, b""]])
def test_there_is_no_signing_without_a_secret(secrets: list[bytes]) -> None:
    with pytest.raises(ValueError, match="secret"):
        Receipts(secrets)


async def test_configured_secrets_are_taken_in_their_order(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "counterfoil.db", lambda: 1, WorkDefaults())
    await store.open()
    taken = await receipt_secrets(store, tmp_path, [" first-secret-of-ours ", "", "second-secret-of-ours"], now=1)
    await store.close()
    assert taken == [b"first-secret-of-ours", b"second-secret-of-ours"]
    assert not (tmp_path / FILE_NAME).exists()


def test_a_short_secret_is_refused_without_being_repeated(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="secret 2 needs at least 16") as refusal:
        _configured(["0123456789abcdef", "0123456789abcde"])
    assert "abcde" not in str(refusal.value)


def test_a_secret_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    data = tmp_path / "not" / "there"
    made = _kept_secret(data)
    assert len(made) >= 32
    assert stat.S_IMODE((data / FILE_NAME).stat().st_mode) == 0o600
    assert _kept_secret(data) == made
    assert [path.name for path in data.iterdir()] == [FILE_NAME]
    assert _kept_secret(tmp_path / "elsewhere") != made


def test_starts_at_the_same_time_agree_on_one_secret(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def start(_: int) -> bytes:
        together.wait()
        return _kept_secret(tmp_path)

    with ThreadPoolExecutor(8) as threads:
        made = set(threads.map(start, range(8)))
    assert made == {(tmp_path / FILE_NAME).read_bytes().strip()}
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_a_damaged_secret_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match=FILE_NAME):
        _kept_secret(tmp_path)


def test_a_secret_file_that_others_can_read_is_warned_about(tmp_path: Path) -> None:
    made = _kept_secret(tmp_path)
    (tmp_path / FILE_NAME).chmod(0o640)
    with capture_logs() as logs:
        assert _kept_secret(tmp_path) == made
    assert [(entry["log_level"], FILE_NAME in entry["path"]) for entry in logs] == [("warning", True)]
    assert made.decode() not in str(logs)
