"""Logs: one chain for all records, and no receipt token in any form."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
import structlog
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from counterfoil.domain.redaction import REDACTED
from counterfoil.domain.work.receipts import Receipts
from counterfoil.observability.logging import (
    AccessLogger,
    configure_logging,
    redact,
    redact_event,
    redact_path,
)
from counterfoil.settings import Settings

WORK_ID = "0199a0f2-1111-7222-8333-444455556666"
TOKEN = Receipts([b"secret"]).issue("flow-1", "charge", WORK_ID)
SIGNATURE = TOKEN.partition(".")[2]
PATH = f"/webhook/flow-1/charge/{TOKEN}"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Logging is global: give it back as it was found."""
    loggers = [logging.getLogger(name) for name in ("", "aiohttp.access", "aiosqlite", "apscheduler", "asyncio")]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers = handlers
    structlog.reset_defaults()


def configured(stream: io.StringIO | None = None, **settings: Any) -> io.StringIO:
    stream = stream or io.StringIO()
    configure_logging(Settings(**settings), stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def every_character_encoded(text: str) -> str:
    return "".join(f"%{ord(character):02X}" for character in text)


class TestForm:
    def test_json_when_there_is_no_terminal(self) -> None:
        stream = configured()
        structlog.get_logger("some.module").info("dispatched", flow_id="f", attempt=2)
        (line,) = lines(stream)
        assert line.pop("timestamp").endswith("Z")
        assert line == {
            "event": "dispatched",
            "flow_id": "f",
            "attempt": 2,
            "level": "info",
            "logger": "some.module",
        }

    def test_pretty_on_a_terminal(self) -> None:
        stream = configured(Terminal())
        structlog.get_logger().info("dispatched", flow_id="f")
        assert "\x1b[" in stream.getvalue()
        assert "dispatched" in stream.getvalue()

    def test_pretty_or_json_by_force(self) -> None:
        pretty = configured(log_format="pretty")
        structlog.get_logger().info("dispatched", flow_id="f")
        assert "flow_id=f" in pretty.getvalue()
        assert "\x1b[" not in pretty.getvalue()
        machine = configured(Terminal(), log_format="json")
        structlog.get_logger().info("dispatched")
        assert lines(machine)[0]["event"] == "dispatched"

    def test_a_closed_stream_is_no_terminal(self) -> None:
        stream = io.StringIO()
        stream.close()
        configured(stream)
        logging.getLogger("lib").warning("this cannot be read, and does no harm")

    def test_records_of_libraries_take_the_same_way(self) -> None:
        stream = configured()
        logging.getLogger("aiohttp.server").error("failed after %s s", 3)
        (line,) = lines(stream)
        assert (line["event"], line["level"], line["logger"]) == ("failed after 3 s", "error", "aiohttp.server")

    def test_bound_context_is_shown(self) -> None:
        stream = configured()
        with structlog.contextvars.bound_contextvars(work_id="w"):
            structlog.get_logger().info("sent")
        assert lines(stream)[0]["work_id"] == "w"

    def test_an_exception_is_text_in_one_line(self) -> None:
        stream = configured()
        try:
            raise ValueError("bad")
        except ValueError:
            structlog.get_logger().exception("failed")
        (line,) = lines(stream)
        assert line["exception"].endswith("ValueError: bad")

    def test_by_default_lines_go_to_the_standard_error_of_the_moment(self, capsys: pytest.CaptureFixture[str]) -> None:
        configure_logging(Settings(log_format="json"))
        structlog.get_logger().info("here")
        captured = capsys.readouterr()
        assert json.loads(captured.err)["event"] == "here"
        assert captured.out == ""

    def test_configuring_again_replaces_the_handler(self) -> None:
        first, second = configured(), configured()
        structlog.get_logger().info("once")
        assert not lines(first)
        assert len(lines(second)) == 1


class TestLevels:
    def test_what_is_below_the_level_is_not_written(self) -> None:
        stream = configured(log_level="warning")
        structlog.get_logger("quiet").info("no")
        logging.getLogger("lib").info("no")
        structlog.get_logger("quiet").warning("yes")
        assert [line["event"] for line in lines(stream)] == ["yes"]

    def test_debug_shows_debug(self) -> None:
        stream = configured(log_level="debug")
        structlog.get_logger("loud").debug("yes")
        assert [line["event"] for line in lines(stream)] == ["yes"]

    @pytest.mark.parametrize("name", ["apscheduler.scheduler", "apscheduler.executors.default", "aiosqlite"])
    def test_noisy_libraries_are_heard_from_warning_on(self, name: str) -> None:
        stream = configured(log_level="debug")
        logging.getLogger(name).info("Running job")
        logging.getLogger(name).warning("missed")
        assert [line["event"] for line in lines(stream)] == ["missed"]

    def test_and_not_below_the_level_either(self) -> None:
        stream = configured(log_level="error")
        logging.getLogger("apscheduler").warning("missed")
        assert not lines(stream)


def token_forms() -> list[str]:
    encoded = quote(TOKEN, safe="").replace("-", "%2D").replace("_", "%5F").replace(".", "%2E")
    return [
        TOKEN,
        encoded,
        encoded.lower() if SIGNATURE.islower() else encoded.replace("%2E", "%2e"),
        quote(encoded, safe=""),
        every_character_encoded(TOKEN),
        f"{TOKEN}garbage",
        f"http://127.0.0.1:8080{PATH}",
        f"http://127.0.0.1:8080{PATH}/heartbeat",
        quote(f"http://127.0.0.1:8080{PATH}", safe=""),
        f"Counterfoil-Receipt: {TOKEN}",
        json.dumps({"metadata": {"receipt_token": TOKEN}}),
        repr(f"POST {PATH} HTTP/1.1\r\n".encode()),
    ]


def survives(text: str) -> bool:
    """Whether the signature, or as much of it as would matter, can be read in the text."""
    forms = (SIGNATURE, quote(SIGNATURE, safe=""), every_character_encoded(SIGNATURE))
    halves = [form[start : start + len(form) // 2] for form in forms for start in (0, len(form) // 2)]
    return any(half in text for half in halves)


class TestNoToken:
    @pytest.mark.parametrize("log_format", ["json", "pretty"])
    @pytest.mark.parametrize("form", token_forms())
    def test_survives_in_any_value_of_a_record(self, log_format: str, form: str) -> None:
        assert survives(form)
        stream = configured(log_format=log_format)
        log = structlog.get_logger("ours")
        log.info(f"sending {form}")  # noqa: G004 (that is what must not matter)
        log.info("sending", url=form, raw=form.encode(), nested={"deep": [{"er": (form, {form})}], form: 1})
        log.info("sending", address=URL(f"http://x/?u={form}"), error=ValueError(form), kind=type(form, (), {}))
        logging.getLogger("theirs").warning("got %s of %r", form, {"a": form})
        assert "send" in stream.getvalue()
        assert REDACTED in stream.getvalue()
        assert not survives(stream.getvalue())

    @pytest.mark.parametrize("log_format", ["json", "pretty"])
    @pytest.mark.parametrize("form", token_forms())
    def test_survives_in_an_exception(self, log_format: str, form: str) -> None:
        stream = configured(Terminal(), log_format=log_format)
        try:
            try:
                raise KeyError(form)
            except KeyError as cause:
                error = RuntimeError(f"no answer from {form}")
                error.add_note(f"while calling {form}")
                raise error from cause
        except RuntimeError as caught:
            structlog.get_logger().exception("failed")
            structlog.get_logger().error("failed", exc_info=caught)
            logging.getLogger("asyncio").exception("Task exception was never retrieved: %r", caught)
        assert "RuntimeError" in stream.getvalue()
        assert not survives(stream.getvalue())

    @given(
        secret=st.binary(min_size=1, max_size=32),
        work_id=st.uuids(),
        before=st.text(max_size=20),
        after=st.text(max_size=20),
        times=st.integers(0, 3),
    )
    def test_survives_whatever_stands_around_it(
        self, secret: bytes, work_id: object, before: str, after: str, times: int
    ) -> None:
        token = Receipts([secret]).issue("f", "s", str(work_id))
        for _ in range(times):
            token = quote(token, safe="").replace("-", "%2D").replace(".", "%2E")
        signature = token.partition(".")[2] or token[-43:]
        assert signature not in redact(f"{before}{token}{after}")

    def test_the_work_id_stays_readable(self) -> None:
        assert redact(f"token {TOKEN}!") == f"token {WORK_ID}.{REDACTED}!"

    @pytest.mark.parametrize(
        "junk", ["x", "mistyped", SIGNATURE[:42], "a.b", "%00", f"{SIGNATURE[:20]}\\xff{SIGNATURE[20:]}"]
    )
    def test_survives_mistyped_in_a_webhook_path(self, junk: str) -> None:
        assert redact(f"POST /webhook/f/s/{junk} HTTP") == f"POST /webhook/f/s/{REDACTED} HTTP"
        assert redact(f"/webhook/f/s/{junk}/heartbeat") == f"/webhook/f/s/{REDACTED}/heartbeat"

    @pytest.mark.parametrize(
        "text",
        [
            "listening on http://127.0.0.1:8080",
            "/webhook/f/s",
            "/api/v1/flows/0199a0f2-1111-7222-8333-444455556666/events?cursor=12",
            'File "counterfoil/engine/work/complete.py", line 12, in decide',
            "version 1.2.3, 99.5 %, took 0.123456789 s",
            "",
        ],
    )
    def test_other_texts_stay_as_they_are(self, text: str) -> None:
        assert redact(text) == text

    def test_values_that_are_no_text_keep_their_type(self) -> None:
        event = {"event": "e", "count": 3, "share": 0.5, "fine": True, "none": None, "list": [1, "a"]}
        assert redact_event(None, "info", dict(event)) == event

    def test_what_has_no_text_or_no_end_does_not_break_the_caller(self) -> None:
        class Unprintable:
            def __str__(self) -> str:
                raise RuntimeError(TOKEN)

        endless: dict[str, Any] = {"url": TOKEN}
        endless["again"] = endless
        stream = configured()
        structlog.get_logger().info("odd", value=Unprintable(), endless=endless, surrogate="\udc80", keys={(1, 2): 3})
        (line,) = lines(stream)
        assert line["value"] == "<Unprintable without text>"
        assert not survives(stream.getvalue())

    def test_a_record_that_cannot_be_formatted_is_reported_without_its_text(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        stream = configured()
        root = logging.getLogger()
        root.handlers = [
            handler for handler in root.handlers if handler.name == "counterfoil"
        ]  # pytest's own would raise
        logging.getLogger("theirs").warning("%d", TOKEN)
        assert stream.getvalue() == "a log record of theirs could not be written\n"
        captured = capsys.readouterr()
        assert not survives(captured.err + captured.out)


class TestAccessLog:
    @pytest.mark.parametrize(
        ("path", "shown"),
        [
            (PATH, f"/webhook/flow-1/charge/{REDACTED}"),
            (f"{PATH}/heartbeat", f"/webhook/flow-1/charge/{REDACTED}/heartbeat"),
            (f"/webhook/f/s/{SIGNATURE[:20]} {SIGNATURE[20:]}", f"/webhook/f/s/{REDACTED}"),
            (f"/webhook//f/s/{SIGNATURE[:20]}/{SIGNATURE[20:]}", f"/webhook//f/{REDACTED}"),
            (f"/webhook/{TOKEN}/s/x", f"/webhook/{WORK_ID}.{REDACTED}/s/{REDACTED}"),
            (f"/elsewhere/{TOKEN}", f"/elsewhere/{WORK_ID}.{REDACTED}"),
            ("/webhook/f/s", "/webhook/f/s"),
            ("/api/v1/flows", "/api/v1/flows"),
            ("*", "*"),
        ],
    )
    def test_paths_are_shown_without_their_token(self, path: str, shown: str) -> None:
        assert redact_path(path) == shown

    async def test_a_served_request_is_one_line_without_the_token(self) -> None:
        stream = configured(access_log=True)
        encoded = f"/%77ebhook/f/s/{every_character_encoded(TOKEN)}"
        broken = f"/webhook/f/s/{SIGNATURE[:21]}%20{SIGNATURE[21:]}"
        await self.requests([PATH, f"{PATH}?again={TOKEN}", encoded, broken, "/plain"])
        shown = [line for line in lines(stream) if line["logger"] == "aiohttp.access"]
        assert [line["path"] for line in shown] == [
            f"/webhook/flow-1/charge/{REDACTED}",
            f"/webhook/flow-1/charge/{REDACTED}",
            f"/webhook/f/s/{REDACTED}",
            f"/webhook/f/s/{REDACTED}",
            "/plain",
        ]
        assert {(line["event"], line["method"], line["status"], line["remote"]) for line in shown} == {
            ("request", "POST", 200, "127.0.0.1")
        }
        assert all(line["duration_ms"] >= 0 and line["bytes"] > 0 for line in shown)
        assert not survives(stream.getvalue())

    async def test_a_handler_that_fails_on_it_shows_none_either(self) -> None:
        stream = configured(access_log=True)
        await self.requests([f"{PATH}?fail=1"])
        assert "RuntimeError" in stream.getvalue()
        assert not survives(stream.getvalue())

    async def test_nor_does_a_request_that_is_no_http(self) -> None:
        stream = configured(access_log=True, log_level="debug")
        await self.requests([], raw=f"POST {PATH}\x01 NONSENSE/9\r\n\r\n".encode())
        assert lines(stream)
        assert not survives(stream.getvalue())

    async def test_it_is_off_unless_it_is_wanted(self) -> None:
        stream = configured()
        await self.requests([PATH])
        assert not lines(stream)

    @staticmethod
    async def requests(paths: list[str], raw: bytes = b"") -> None:
        async def answer(request: web.Request) -> web.Response:
            if "fail" in request.query:
                raise RuntimeError(f"cannot handle {request.path}")
            return web.Response(text="ok")

        app = web.Application()
        app.router.add_route("*", "/{anything:.*}", answer)
        runner = web.AppRunner(app, access_log_class=AccessLogger)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            async with aiohttp.ClientSession() as session:
                for path in paths:
                    await (await session.post(URL(f"http://127.0.0.1:{port}{path}", encoded=True))).read()
            if raw:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(raw)
                await reader.read()
                writer.close()
                await writer.wait_closed()
        finally:
            await runner.cleanup()
