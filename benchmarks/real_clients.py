"""Completions sent by the HTTP clients that workers use, in a process of their own.

``python -m benchmarks.real_clients CLIENT record``: print what the client sends for a completion, piece by piece.
``python -m benchmarks.real_clients CLIENT send``: complete the URLs on standard input, and print the seconds.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any

import aiohttp
import httpx
import requests

RESULT: dict[str, Any] = {"success": True, "outputs": {"key": "value"}}
PLACEHOLDER = "/webhook/FLOW/STEP/TOKEN"
WORKERS = 8
RECORDED = 3
"""Requests of one session that are recorded: the first one may differ from those that follow."""


def by_requests(urls: Sequence[str]) -> None:
    with requests.Session() as session:
        for url in urls:
            answer = session.post(url, json=RESULT, timeout=30)
            assert answer.status_code == 200, answer.text


def by_httpx(urls: Sequence[str]) -> None:
    with httpx.Client(timeout=30) as client:
        for url in urls:
            answer = client.post(url, json=RESULT)
            assert answer.status_code == 200, answer.text


def by_aiohttp(urls: Sequence[str]) -> None:
    async def send() -> None:
        async with aiohttp.ClientSession() as session:
            for url in urls:
                async with session.post(url, json=RESULT) as answer:
                    assert answer.status == 200, await answer.text()
                    await answer.read()

    asyncio.run(send())


CLIENTS: dict[str, Callable[[Sequence[str]], None]] = {
    "requests": by_requests,
    "aiohttp": by_aiohttp,
    "httpx": by_httpx,
}


# ------------------------------------------------------------------------------------------------ what is sent


@contextmanager
def noting_what_is_sent() -> Iterator[list[bytes]]:
    """Every call that sends something on a socket of this process, as one piece."""
    sent: list[bytes] = []
    kept = {name: getattr(socket.socket, name) for name in ("send", "sendall", "sendmsg")}

    def noting(call: Callable[..., Any], joined: Callable[[Any], bytes]) -> Callable[..., Any]:
        def send(own: socket.socket, data: Any, *rest: Any) -> Any:
            if own.type == socket.SOCK_STREAM and own.family != socket.AF_UNIX:
                sent.append(joined(data))
            return call(own, data, *rest)

        return send

    for name, call in kept.items():
        setattr(socket.socket, name, noting(call, b"".join if name == "sendmsg" else bytes))
    try:
        yield sent
    finally:
        for name, call in kept.items():
            setattr(socket.socket, name, call)


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def record(client: str) -> list[list[bytes]]:
    """What the client sends for each of some completions, in the pieces in which it sends them."""
    listening = socket.create_server(("127.0.0.1", 0))
    received: list[bytes] = []
    server = threading.Thread(target=_answer_all, args=(listening, received), daemon=True)
    server.start()
    port = listening.getsockname()[1]
    with noting_what_is_sent() as sent:
        CLIENTS[client]([f"http://127.0.0.1:{port}{PLACEHOLDER}"] * RECORDED)
    server.join(10)
    pieces = [piece for piece in sent if piece != ANSWER]
    assert b"".join(pieces) == b"".join(received), "what was sent is not what was received"
    return _by_request(pieces)


def _answer_all(listening: socket.socket, received: list[bytes]) -> None:
    """Receive whole requests on one connection, and answer each."""
    connection, _ = listening.accept()
    with connection:
        buffer = b""
        while data := connection.recv(65_536):
            received.append(data)
            buffer += data
            head, found, body = buffer.partition(b"\r\n\r\n")
            if found and len(body) == int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]):
                buffer = b""
                connection.sendall(ANSWER)


def _by_request(pieces: list[bytes]) -> list[list[bytes]]:
    found: list[list[bytes]] = []
    for piece in pieces:
        if piece.startswith(b"POST "):
            found.append([])
        found[-1].append(piece)
    return found


# ------------------------------------------------------------------------------------------------ sending


def send(client: str, urls: list[str]) -> float:
    """Complete them all with several workers, each with a session of its own; the seconds that it took."""
    shares = [list(islice(urls, number, None, WORKERS)) for number in range(WORKERS)]
    started = time.perf_counter()
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(CLIENTS[client], shares))
    return time.perf_counter() - started


if __name__ == "__main__":
    name, what = sys.argv[1:]
    if what == "record":
        print(json.dumps([[base64.b64encode(piece).decode() for piece in each] for each in record(name)]))
    else:
        print(send(name, sys.stdin.read().split()))
