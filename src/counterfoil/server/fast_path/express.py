"""The express lane of the webhook: completions are most of the traffic, and need little of what aiohttp does.

aiohttp makes a request object, a task, a response and several futures for every request. An ordinary completion (a
``POST /webhook/{flow}/{step}/{token}`` whose short body came along with its headers, on a connection where nothing
else is going on) needs none of them: it is validated as soon as it is parsed, handed to the writer, and answered in
one piece when its commit is done. Whatever is unusual about a request, be it only that it is not valid, is left to the
ordinary way, so the lane knows no errors but those of the commit.

Even parsing is short where a request leaves nothing to parse: it came in one piece, its head is of the plainest form,
and so was everything before it on the connection. The first one that is not so, and all that follow on its connection,
are parsed by aiohttp. So the two never have to agree on where a request begins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from aiohttp.http import HttpVersion11
from aiohttp.streams import EMPTY_PAYLOAD

from counterfoil.domain.errors import CounterfoilError
from counterfoil.engine.work.complete import Completion
from counterfoil.server.completions import Headers, Take, completion_text
from counterfoil.server.problems import problem_bytes

_PREFIX = "/webhook/"
_LINE_BEGINS, _LINE_ENDS = b"POST /webhook/", b" HTTP/1.1\r\n"
_PLAIN_FIELD = rb"[A-Za-z0-9-]+: [\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?"
_PLAIN_FIELDS = re.compile(rb"%b(?:\r\n%b)*" % (_PLAIN_FIELD, _PLAIN_FIELD))
_LONGEST_LINE = 2_048
_LONGEST_FIELDS = 2_048
_LENGTH = re.compile(rb"[0-9]|[1-9][0-9]{1,8}")
_NOT_PLAIN = frozenset(
    {b"connection", b"content-encoding", b"expect", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
"""Headers that may change how the rest of a request is read, or whether its connection is kept."""
HELD_BYTES = 65_536
"""How much is received behind a completion that is under way before reading from the connection is paused."""
_HEAD = (
    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nCache-Control: no-store\r\n"
    "X-Content-Type-Options: nosniff\r\nServer: counterfoil\r\nContent-Length: "
)


class LaneConnection(Protocol):
    """What the lane needs of the connection that it is part of."""

    def is_idle(self) -> bool:
        """Nothing of this connection is being handled or waits to be."""
        ...

    def begin_express(self) -> None: ...
    def pause_express(self) -> None:
        """Receive nothing more until the completion that is under way is answered."""
        ...

    def end_express(self, answer: bytes) -> None: ...


class ExpressParser:
    """Stands in front of aiohttp's parser and takes plain completions; everything else passes unchanged."""

    __slots__ = (
        "_connection",
        "_fields",
        "_held",
        "_ids",
        "_inner",
        "_length",
        "_parsed_fields",
        "_plain",
        "_take",
        "_under_way",
    )

    def __init__(self, inner: Any, connection: LaneConnection, take: Take) -> None:
        self._inner = inner
        self._connection = connection
        self._take = take
        self._under_way = False
        self._plain = True
        """aiohttp's parser has seen nothing of this connection yet, so it stands where a request begins."""
        self._held = b""
        self._fields = b""
        """The header fields of the last plain completion: a client sends the same ones again and again."""
        self._parsed_fields: dict[bytes, bytes] = {}
        self._length = -1
        """How long the body is, as these fields say."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def takes_whole(self, data: bytes) -> bool:
        """Take a plain completion before aiohttp's parser sees it; everything else goes to ``feed_data``."""
        return self._plain and not self._under_way and self._is_plain_completion(data)

    def feed_data(self, data: bytes) -> tuple[Any, bool, bytes]:
        if self._under_way:  # answers keep the order of the requests, so what follows has to wait
            self._held += data
            if len(self._held) >= HELD_BYTES:
                self._connection.pause_express()
            return (), False, b""
        self._plain = False
        messages, upgraded, tail = self._inner.feed_data(data)
        if len(messages) == 1 and not upgraded and self._goes_express(*messages[0]):
            self._inner.message_consumed()
            return (), False, tail
        return messages, upgraded, tail

    def _is_plain_completion(self, data: bytes) -> bool:
        """Take a completion that was received whole, and whose head says nothing but its length and type."""
        end_of_path = data.find(_LINE_ENDS, 0, _LONGEST_LINE)
        first_field = end_of_path + len(_LINE_ENDS)
        end = data.find(b"\r\n\r\n", first_field, first_field + _LONGEST_FIELDS)
        if end_of_path < 0 or end < 0 or not data.startswith(_LINE_BEGINS):
            return False
        ids = data[len(_LINE_BEGINS) : end_of_path].split(b"/")
        fields, body = data[first_field:end], data[end + 4 :]
        if len(ids) != 3 or (fields != self._fields and not self._understands(fields)):
            return False
        if len(body) != self._length or not self._connection.is_idle():
            return False
        flow_id, step_id, token = ids
        return self._begin(flow_id, step_id, token, self._plain_headers, body)

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
            or headers.get(b"content-type") != b"application/json"
            or b"host" not in headers
            or not _NOT_PLAIN.isdisjoint(headers)
        ):
            return False
        self._fields, self._parsed_fields, self._length = fields, headers, int(length)
        return True

    def _plain_headers(self) -> Mapping[str, str]:
        return {name.decode(): value.decode() for name, value in self._parsed_fields.items()}

    def _begin(self, flow_id: bytes, step_id: bytes, token: bytes, headers: Headers, body: bytes) -> bool:
        if not self._take(flow_id, step_id, token, headers, body, self._resolve):
            return False
        self._ids = flow_id, step_id
        self._under_way = True
        self._connection.begin_express()
        return True

    def _goes_express(self, message: Any, payload: Any) -> bool:
        path = getattr(message, "path", "")
        if not (
            path.startswith(_PREFIX)
            and message.method == "POST"
            and payload is not EMPTY_PAYLOAD
            and payload.is_eof()
            and message.version == HttpVersion11
            and not message.should_close
            and "%" not in path
            and "?" not in path
            and message.headers.get("Content-Type") == "application/json"
            and "Expect" not in message.headers
            and self._connection.is_idle()
        ):
            return False
        ids = path.removeprefix(_PREFIX).encode("utf-8", "surrogateescape").split(b"/")
        if len(ids) != 3:
            return False
        # Looked at without being read: if the completion is not taken, the ordinary way reads it.
        body = b"".join(payload._buffer)  # noqa: SLF001
        flow_id, step_id, token = ids
        return self._begin(flow_id, step_id, token, lambda: message.headers, body)

    def _resolve(self, answer: Completion | CounterfoilError) -> None:
        """The commit is done, or refused: answer, then go on with what came in the meantime."""
        self._under_way = False
        if isinstance(answer, Completion):
            flow_id, step_id = self._ids
            body = completion_text(answer, flow_id.decode(), step_id.decode())
            text = f"{_HEAD}{len(body)}\r\n\r\n{body}".encode()
        else:
            text = problem_bytes(answer)
        self._connection.end_express(text)

    @property
    def under_way(self) -> bool:
        return self._under_way

    def held(self) -> bytes:
        """What was received while a completion was under way; asked for once it is answered."""
        data, self._held = self._held, b""
        return data
