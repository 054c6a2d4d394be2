"""The clients that are tried: each sends some calls one after another, in one session, as its users would."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
import requests

from tests.integration.clients.calls import Answer, Call, answer, as_document, from_document
from tests.programs import program

HERE = Path(__file__).parent
SECONDS = 20

CLIENTS = ("requests", "httpx", "aiohttp", "urllib.request", "curl", "Node fetch", "Go net/http")

Send = Callable[[Sequence[Call]], Awaitable[list[Answer]]]
"""Sends all calls in one session."""


def by_clients(what: str, clients: Iterable[str] = CLIENTS, *, but: Iterable[str] = ()) -> pytest.MarkDecorator:
    """Run a test once by each client, and have the table of clients say what it is about."""
    params = [
        pytest.param(client, marks=pytest.mark.client(client, what), id=client)
        for client in clients
        if client not in but
    ]
    return pytest.mark.parametrize("send", params, indirect=True)


def pieces_of(content: bytes) -> Iterator[bytes]:
    """A body whose length is not known beforehand."""
    middle = len(content) // 2
    yield content[:middle]
    yield content[middle:]


def expecting(call: Call) -> dict[str, str]:
    """The headers, for clients that know no expectations: they send the header, and the body at once."""
    return {**call.headers, **({"Expect": "100-continue"} if call.expect else {})}


# ------------------------------------------------------------------------------------------------ Python


def by_requests(calls: Sequence[Call]) -> list[Answer]:
    answers = []
    with requests.Session() as session:
        for call in calls:
            body: Any = call.body
            if call.chunked:
                body = pieces_of(call.content or b"")
            found = session.request(
                call.method,
                call.url,
                json=None if call.chunked else call.json,
                data=body,
                headers=call.all_headers if call.chunked else expecting(call),
                timeout=SECONDS,
                allow_redirects=False,
            )
            answers.append(answer(found.status_code, found.headers, found.content))
    return answers


def by_httpx(calls: Sequence[Call]) -> list[Answer]:
    answers = []
    with httpx.Client(timeout=SECONDS) as client:
        for call in calls:
            content: Any = pieces_of(call.content or b"") if call.chunked else call.body
            found = client.request(
                call.method,
                call.url,
                json=None if call.chunked else call.json,
                content=content,
                headers=call.all_headers if call.chunked else expecting(call),
            )
            assert found.http_version == "HTTP/1.1"
            answers.append(answer(found.status_code, found.headers, found.content))
    return answers


async def by_aiohttp(calls: Sequence[Call]) -> list[Answer]:
    async def in_pieces(content: bytes) -> AsyncIterator[bytes]:
        for piece in pieces_of(content):
            yield piece

    answers = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SECONDS)) as session:
        for call in calls:
            body: Any = in_pieces(call.content or b"") if call.chunked else call.body
            async with session.request(
                call.method,
                call.url,
                json=None if call.chunked else call.json,
                data=body,
                headers=call.all_headers if call.chunked else call.headers,
                expect100=call.expect,
                allow_redirects=False,
            ) as found:
                answers.append(answer(found.status, found.headers, await found.read()))
    return answers


def by_urllib(calls: Sequence[Call]) -> list[Answer]:
    answers = []
    for call in calls:
        data: Any = pieces_of(call.content or b"") if call.chunked else call.content
        headers = {**call.all_headers, **expecting(call)}
        asked = urllib.request.Request(call.url, data=data, headers=headers, method=call.method)
        try:
            found = urllib.request.urlopen(asked, timeout=SECONDS)
        except urllib.error.HTTPError as refusal:
            found = refusal
        with contextlib.closing(found):
            answers.append(answer(found.status, dict(found.headers), found.read()))
    return answers


# ------------------------------------------------------------------------------------------------ programs


def in_thread(send: Callable[[Sequence[Call]], list[Answer]]) -> Send:
    """The engine runs in the event loop of the test, which must not be blocked."""
    return lambda calls: asyncio.to_thread(send, calls)


def run(command: Sequence[str], given: bytes = b"") -> bytes:
    ended = subprocess.run(command, input=given, capture_output=True, timeout=3 * SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout


def by_curl(folder: Path, *options: str) -> Send:
    """One process for all calls, so that connections are used again."""

    def send(calls: Sequence[Call]) -> list[Answer]:
        command = [program("curl")]
        for number, call in enumerate(calls):
            place = folder / str(number)
            command += ["--next"] * (number > 0)
            command += ["--silent", "--show-error", "--max-time", str(SECONDS), *options]
            command += ["--head"] if call.method == "HEAD" else ["--request", call.method]
            command += ["--dump-header", f"{place}.head", "--output", f"{place}.body"]
            headers = {**call.all_headers, **expecting(call)}
            if call.chunked:
                headers["Transfer-Encoding"] = "chunked"
            for name, value in headers.items():
                command += ["--header", f"{name}: {value}"]
            if call.content is not None:
                place.with_suffix(".data").write_bytes(call.content)
                command += ["--data-binary", f"@{place}.data"]
            command += [call.url]
        run(command)
        return [_curl_answer(folder / str(number)) for number in range(len(calls))]

    return in_thread(send)


def _curl_answer(place: Path) -> Answer:
    heads = place.with_suffix(".head").read_bytes().decode("latin-1").strip().split("\r\n\r\n")
    first, *lines = heads[-1].split("\r\n")  # those before are interim answers
    headers = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = place.with_suffix(".body")
    content = body.read_bytes() if body.exists() else b""
    if content.startswith(b"HTTP/"):  # with --head, curl prints the head where the body would be
        content = b""
    return answer(int(first.split(" ", 2)[1]), headers, content)


def by_node() -> Send:
    return in_thread(lambda calls: from_document(run([program("node"), str(HERE / "fetch.mjs")], as_document(calls))))


def by_go(folder: Path) -> Send:
    """The program is compiled once for all processes of a run."""

    def send(calls: Sequence[Call]) -> list[Answer]:
        return from_document(run([str(compiled(folder))], as_document(calls)))

    return in_thread(send)


def compiled(folder: Path) -> Path:
    go = program("go")
    source = HERE / "nethttp" / "main.go"
    binary = folder / f"nethttp-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"
    with (folder / "nethttp.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            run([go, "build", "-o", str(binary), str(source)])
    return binary
