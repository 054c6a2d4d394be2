"""The express lane of the webhook: completions are most of the traffic, and need little of what aiohttp does.

aiohttp makes a request object, a task, a response and several futures for every request. An ordinary completion (a
``POST /webhook/{flow}/{step}/{token}`` with a short body, on a connection where nothing else is going on) needs none of
them: it is validated as soon as it is parsed, handed to the writer, and answered in one piece when its commit is done.
Whatever is unusual about a request, be it only that it is not valid, is left to the ordinary path, so the lane knows no
errors but those of the commit.

Even parsing is short where a request leaves nothing to parse: its head came in one piece and is of the plainest form,
and so was everything before it on the connection. The first one that is not so, and all that follow on its connection,
are parsed by aiohttp. So the two never have to agree on where a request begins.

Most clients send the head and the body of a request separately. A completion with a valid receipt is kept until its
body has arrived, by either parser. When the body does not arrive, the request is passed on as if it had not been kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

from aiohttp.http import HttpVersion11
from aiohttp.streams import EMPTY_PAYLOAD

from counterfoil.domain.errors import CounterfoilError
from counterfoil.domain.work.decisions import Verdict
from counterfoil.engine.work.complete import Completion
from counterfoil.server.bodies.media_types import refusal_of_type
from counterfoil.server.completions import CompletionIntake, Headers, completion_text, has_body
from counterfoil.server.problems import problem_bytes

_ACCEPTED = Verdict.ACCEPTED
_PREFIX = "/webhook/"
_LINE_BEGINS, _LINE_ENDS = b"POST /webhook/", b" HTTP/1.1\r\n"
_BEGIN_OF_IDS, _END_OF_LINE = len(_LINE_BEGINS), len(_LINE_ENDS)
_PLAIN_FIELD = rb"[A-Za-z0-9-]+: [\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?"
_PLAIN_FIELDS = re.compile(rb"%b(?:\r\n%b)*" % (_PLAIN_FIELD, _PLAIN_FIELD))
_LONGEST_LINE = 2_048
_LONGEST_FIELDS = 2_048
_LENGTH = re.compile(rb"[0-9]|[1-9][0-9]{1,8}")
_NOT_PLAIN = frozenset({b"content-encoding", b"expect", b"te", b"trailer", b"transfer-encoding", b"upgrade"})
"""Headers that may change how the rest of a request is read, or whether its connection is kept. ``Connection`` is one
of them unless it says ``keep-alive``, which is what HTTP/1.1 means without it."""
HELD_BYTES = 65_536
"""How much is received behind a completion that is under way before reading from the connection is paused, and the
longest body that is waited for."""
_JSON_FIELD, _LENGTH_FIELD = "Content-Type: application/json\r\n", "Content-Length: "
_HEAD = (
    f"HTTP/1.1 200 OK\r\n{_JSON_FIELD}Cache-Control: no-store\r\n"
    f"X-Content-Type-Options: nosniff\r\nServer: counterfoil\r\n{_LENGTH_FIELD}"
)
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


def _other_answer(status: int, body: str) -> bytes:
    """An answer with another status than 200, for a vendor."""
    head = _HEAD.replace("200 OK", f"{status} {_PHRASES.get(status, '')}")
    if has_body(status):
        return f"{head}{len(body)}\r\n\r\n{body}".encode()
    length = "" if status == HTTPStatus.NO_CONTENT else "Content-Length: 0\r\n"
    return f"{head.replace(_JSON_FIELD, '').removesuffix(_LENGTH_FIELD)}{length}\r\n".encode()


class LaneConnection(Protocol):
    """What the lane needs of the connection that it is part of."""

    def is_idle(self) -> bool:
        """Nothing of this connection is being handled or waits to be."""
        ...

    def peer(self) -> str | None:
        """The address of the client; None: the connection is closed."""
        ...

    def begin_body(self) -> None:
        """The head of a completion has arrived; its body has not, or not all of it."""
        ...

    def begin_express(self) -> None: ...
    def pause_express(self) -> None:
        """Receive nothing more until the completion that is under way is answered."""
        ...

    def end_express(self, answer: bytes) -> None: ...


_Addressed = tuple[str, bytes, bytes]
"""The work item that a completion is about, and the ids of its flow and step, which the answer repeats."""


class _Partial:
    """A plain completion whose body is not whole yet: all that was received of it, and how much is missing."""

    __slots__ = ("addressed", "body_at", "missing", "received")

    def __init__(self, addressed: _Addressed, received: bytes, body_at: int, missing: int) -> None:
        self.addressed = addressed
        self.received = bytearray(received)
        self.body_at = body_at
        self.missing = missing


class _Parsed(NamedTuple):
    """The same for one whose head was parsed by aiohttp."""

    addressed: _Addressed
    message: Any
    payload: Any


class ExpressParser:
    """Stands in front of aiohttp's parser and takes plain completions; everything else passes unchanged."""

    __slots__ = (
        "_addressed",
        "_body",
        "_connection",
        "_fields",
        "_headers",
        "_held",
        "_inner",
        "_intake",
        "_length",
        "_longest",
        "_notes_accepted",
        "_parsed",
        "_parsed_fields",
        "_partial",
        "_plain",
        "_under_way",
        "_waits",
    )

    def __init__(self, inner: Any, connection: LaneConnection, intake: CompletionIntake) -> None:
        self._inner = inner
        self._connection = connection
        self._intake = intake
        self._longest = min(HELD_BYTES, intake.max_body_bytes)
        self._notes_accepted = intake.notes_accepted
        self._under_way = False
        self._plain = True
        """aiohttp's parser has seen nothing of this connection yet, so it stands where a request begins."""
        self._partial: _Partial | None = None
        self._parsed: _Parsed | None = None
        self._waits = True
        """Whether bodies are waited for: not any more once one has not arrived."""
        self._held = b""
        self._fields = b""
        """The header fields of the last plain completion: a client sends the same ones again and again."""
        self._parsed_fields: dict[bytes, bytes] = {}
        self._length = -1
        """How long the body is, as these fields say."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def offer(self, data: bytes) -> bytes | None:
        """Take what is part of a plain completion, before aiohttp's parser sees it; what is returned is for that."""
        if self._partial is not None:
            return self._go_on(self._partial, data)
        if self._plain and not self._under_way and self._takes_plain(data):
            return None
        return data

    def feed_data(self, data: bytes) -> tuple[Any, bool, bytes]:
        if self._under_way:  # answers keep the order of the requests, so what follows has to wait
            self._held += data
            if len(self._held) >= HELD_BYTES:
                self._connection.pause_express()
            return (), False, b""
        self._plain = False
        messages, upgraded, tail = self._inner.feed_data(data)
        if self._parsed is not None:
            _, message, payload = parsed = self._parsed
            if self._waits and not payload.is_eof() and payload.exception() is None:
                return (), False, b""
            self._parsed = None
            if not messages and self._begin_parsed(parsed):
                return (), False, tail
            return [(message, payload), *messages], upgraded, tail
        if len(messages) == 1 and not upgraded and self._takes_parsed(*messages[0]):
            return (), False, tail
        return messages, upgraded, tail

    # Parsed here -------------------------------------------------------------------------------------------------

    def _takes_plain(self, data: bytes) -> bool:
        """Take a completion whose head was received whole, and says nothing but the body's length and type."""
        end_of_path = data.find(_LINE_ENDS, 0, _LONGEST_LINE)
        first_field = end_of_path + _END_OF_LINE
        end = data.find(b"\r\n\r\n", first_field, first_field + _LONGEST_FIELDS)
        if end_of_path < 0 or end < 0 or not data.startswith(_LINE_BEGINS):
            return False
        ids = data[_BEGIN_OF_IDS:end_of_path].split(b"/")
        fields, body_at = data[first_field:end], end + 4
        if len(ids) != 3 or (fields != self._fields and not self._understands(fields)):
            return False
        missing = body_at + self._length - len(data)
        if missing < 0 or not self._connection.is_idle():
            return False
        addressed = self._addressed_by(ids)
        if addressed is None:
            return False
        if missing:
            return self._awaits(_Partial(addressed, data, body_at, missing))
        return self._begin(addressed, self._plain_headers, data[body_at:])

    def _awaits(self, partial: _Partial) -> bool:
        if not self._waits or self._length > self._longest:
            return False
        self._partial = partial
        self._connection.begin_body()
        return True

    def _go_on(self, partial: _Partial, data: bytes) -> bytes | None:
        partial.received += data
        partial.missing -= len(data)
        if partial.missing > 0:
            return None
        self._partial = None
        received = bytes(partial.received)
        if (
            partial.missing == 0
            and self._connection.is_idle()
            and self._begin(partial.addressed, self._plain_headers, received[partial.body_at :])
        ):
            return None
        return received

    def _understands(self, fields: bytes) -> bool:
        """Whether these header fields give the length and type of a body, and nothing else that matters."""
        if not _PLAIN_FIELDS.fullmatch(fields):
            return False
        lines = [line.split(b": ", 1) for line in fields.split(b"\r\n")]
        headers = {name.lower(): value for name, value in lines}
        length = headers.get(b"content-length", b"")
        if (
            len(headers) != len(lines)
            or not _LENGTH.fullmatch(length)
            or refusal_of_type(headers.get(b"content-type", b"").decode()) is not None
            or b"host" not in headers
            or headers.get(b"connection", b"keep-alive").lower() != b"keep-alive"
            or not _NOT_PLAIN.isdisjoint(headers)
        ):
            return False
        self._fields, self._parsed_fields, self._length = fields, headers, int(length)
        return True

    def _plain_headers(self) -> Mapping[str, str]:
        return {name.decode(): value.decode() for name, value in self._parsed_fields.items()}

    # Parsed by aiohttp -------------------------------------------------------------------------------------------

    def _takes_parsed(self, message: Any, payload: Any) -> bool:
        path = getattr(message, "path", "")
        if not (
            path.startswith(_PREFIX)
            and message.method == "POST"
            and payload is not EMPTY_PAYLOAD
            and message.version == HttpVersion11
            and not (message.should_close or message.upgrade)
            and "%" not in path
            and "?" not in path
            and refusal_of_type(message.headers.get("Content-Type", "")) is None
            and "Content-Encoding" not in message.headers
            and "Expect" not in message.headers
            and self._connection.is_idle()
        ):
            return False
        ids = path.removeprefix(_PREFIX).encode("utf-8", "surrogateescape").split(b"/")
        addressed = self._addressed_by(ids) if len(ids) == 3 else None
        if addressed is None:
            return False
        parsed = _Parsed(addressed, message, payload)
        if payload.is_eof():
            return self._begin_parsed(parsed)
        if not self._waits or int(message.headers.get("Content-Length", HELD_BYTES + 1)) > self._longest:
            return False
        self._parsed = parsed
        self._connection.begin_body()
        return True

    def _begin_parsed(self, parsed: _Parsed) -> bool:
        addressed, message, payload = parsed
        if not payload.is_eof() or not self._connection.is_idle():
            return False
        # Looked at without being read: if the completion is not taken, the ordinary path reads it.
        body = b"".join(payload._buffer)  # noqa: SLF001
        if not self._begin(addressed, lambda: message.headers, body):
            return False
        self._inner.message_consumed()
        return True

    # However it was parsed ---------------------------------------------------------------------------------------

    def _addressed_by(self, ids: list[bytes]) -> _Addressed | None:
        flow_id, step_id, token = ids
        work_id = self._intake.work_id_of(flow_id, step_id, token)
        return None if work_id is None else (work_id, flow_id, step_id)

    def _begin(self, addressed: _Addressed, headers: Headers, body: bytes) -> bool:
        if not self._intake.take(addressed[0], headers, body, self._resolve):
            return False
        self._addressed = addressed
        self._headers, self._body = headers, body
        self._under_way = True
        self._connection.begin_express()
        return True

    def _resolve(self, answer: Completion | CounterfoilError) -> None:
        """The commit is done, or refused: answer, then go on with what came in the meantime."""
        self._under_way = False
        if answer.__class__ is not Completion or answer.verdict is not _ACCEPTED or self._notes_accepted:
            peer = self._connection.peer()
            self._intake.note(answer, self._addressed[0], self._headers, self._body, peer)
        if isinstance(answer, Completion):
            _, flow_id, step_id = self._addressed
            body = completion_text(answer, flow_id.decode(), step_id.decode())
            if answer.http_status == 200:
                text = f"{_HEAD}{len(body)}\r\n\r\n{body}".encode()
            else:
                text = _other_answer(answer.http_status, body)
        else:
            text = problem_bytes(answer)
        self._connection.end_express(text)

    @property
    def under_way(self) -> bool:
        return self._under_way

    @property
    def awaits_body(self) -> bool:
        """Whether a completion is kept here until its body has arrived."""
        return self._partial is not None or self._parsed is not None

    def let_go(self) -> bytes:
        """Wait no longer for a body: ``feed_data`` of what is returned passes the request on as it is."""
        self._waits = False
        partial, self._partial = self._partial, None
        return b"" if partial is None else bytes(partial.received)

    def held(self) -> bytes:
        """What was received while a completion was under way; asked for once it is answered."""
        data, self._held = self._held, b""
        return data
