"""Structured logs: readable lines on a terminal, JSON otherwise, never with a receipt token or a URL's password.

Invariant: every record of this process, of the engine or of a library, passes ``redact_event`` before it is written. A
token is a credential wherever it occurs: in a path, a message or the text of an exception, percent-encoded or not.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO

import structlog
from aiohttp import web
from aiohttp.abc import AbstractAccessLogger
from structlog.typing import EventDict, Processor, WrappedLogger

from counterfoil.domain.redaction import REDACTED
from counterfoil.domain.urls import mask_credentials
from counterfoil.settings import Settings

ACCESS_LOGGER = "aiohttp.access"
_QUIET_LOGGERS = ("aiosqlite", "apscheduler", "asyncio")  # their info is noise here, and aiosqlite's debug shows values
_HANDLER_NAME = "counterfoil"
_DEEPEST = 8

_PERCENT = r"%(?:25)*"  # also when encoded more than once
_SLASH = rf"(?:/|{_PERCENT}2[Ff])"
_SEGMENT = rf"(?:(?!{_SLASH})[^\s\"'<>])+"
_CHARACTER = rf"(?:[A-Za-z0-9_-]|{_PERCENT}[0-9A-Fa-f]{{2}})"
# The signature of a token has 43 characters; a longer text may contain one.
_SIGNATURE = re.compile(rf"(\.|{_PERCENT}2[Ee]){_CHARACTER}{{43,}}")
# Any text in the place of a token is treated as one.
_WEBHOOK = re.compile(rf"({_SLASH}webhook(?:{_SLASH}+{_SEGMENT}){{2}}{_SLASH}+){_SEGMENT}")


def redact(text: str) -> str:
    """The text without receipt tokens and passwords in URLs; the work id in front of a signature is not secret."""
    return _SIGNATURE.sub(rf"\1{REDACTED}", _WEBHOOK.sub(rf"\1{REDACTED}", mask_credentials(text)))


def redact_path(path: str) -> str:
    """The path of a request without its token: everything after the step is blanked, whatever it is."""
    root, *parts = path.split("/", 4)
    if root or len(parts) < 4 or parts[0] != "webhook":
        return redact(path)
    heartbeat = "/heartbeat" if parts[3].endswith("/heartbeat") else ""
    return f"{redact('/'.join(['', *parts[:3]]))}/{REDACTED}{heartbeat}"


def redact_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Processor that removes tokens from all values of the event, at any depth."""
    return {name: value if name == "_record" else _without_tokens(value) for name, value in event.items()}


def _without_tokens(value: Any, depth: int = 0) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return redact(value)
    if depth < _DEEPEST and isinstance(value, Mapping):
        return {redact(str(name)): _without_tokens(item, depth + 1) for name, item in value.items()}
    if depth < _DEEPEST and isinstance(value, (list, tuple, set, frozenset)):
        return [_without_tokens(item, depth + 1) for item in value]
    return _text_without_tokens(value)


def _text_without_tokens(value: Any) -> str:
    """Convert any other value to text here: a renderer would do so after the redaction."""
    try:
        return redact(str(value) if not isinstance(value, (bytes, bytearray)) else repr(bytes(value)))
    except Exception:  # noqa: BLE001 (a log line must not fail because something has no text)
        return f"<{type(value).__name__} without text>"


class AccessLogger(AbstractAccessLogger):
    """Logs one structured line for each request, with the path without its token and without its query."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        structlog.stdlib.get_logger(ACCESS_LOGGER).info(
            "request",
            method=request.method,
            path=redact_path(request.path),
            status=response.status,
            bytes=response.body_length,
            duration_ms=round(time * 1000, 3),
            remote=request.remote,
        )

    @property
    def enabled(self) -> bool:
        """Whether access lines are logged; the server asks once, and then skips creating them."""
        return self.logger.isEnabledFor(logging.INFO)


class _Handler(logging.Handler):
    """Writes lines to the current standard error, or to a given stream."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self.name = _HANDLER_NAME
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(self.format(record))
        except Exception:  # noqa: BLE001 (whatever it is, the caller is not to blame)
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the library's name)
        """Report that a line was lost, without its message, which is not redacted."""
        with suppress(Exception):
            self._write(f"a log record of {record.name} could not be written")

    def _write(self, line: str) -> None:
        stream = self._stream or sys.stderr
        stream.write(line + "\n")
        stream.flush()


def configure_logging(settings: Settings, stream: TextIO | None = None) -> None:
    """Send all logs of the process through one chain to standard error; may be called again."""
    level = logging.getLevelName(settings.log_level.upper())
    pretty = settings.log_format == "pretty" or (settings.log_format == "auto" and _is_terminal(stream or sys.stderr))
    chain = _chain("%H:%M:%S" if pretty else "iso")
    handler = _Handler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=chain,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _renderer(pretty, stream)],
        )
    )
    root = logging.getLogger()
    root.handlers = [other for other in root.handlers if other.name != _HANDLER_NAME] + [handler]
    root.setLevel(level)
    for name in _QUIET_LOGGERS:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    logging.getLogger(ACCESS_LOGGER).setLevel(logging.INFO if settings.access_log else logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            *chain,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(min(level, logging.INFO)),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def _chain(time_format: str) -> list[Processor]:
    """The processors for records of the engine and of libraries; redaction comes last, when exceptions are text."""
    return [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt=time_format, utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        redact_event,
    ]


def _renderer(pretty: bool, stream: TextIO | None) -> Processor:
    if not pretty:
        return structlog.processors.JSONRenderer()
    colors = _is_terminal(stream or sys.stderr)
    return structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)


def _is_terminal(stream: TextIO) -> bool:
    with suppress(ValueError):  # a closed stream is none
        return stream.isatty()
    return False
