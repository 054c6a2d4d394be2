"""The worker of the step ``charge``, a process of its own: ``python -m counterfoil.cli.demo.charge_worker FD URL``.

It answers on the listening socket that it inherits as ``FD`` and charges cards at the provider's ``URL``. Its first two
charges kill it: the first one before the provider is called, the second one after, both before the engine has an
answer. It handles one dispatch after the other, so that its death ends one attempt only. It needs only the standard
library, so that it is running again after a moment.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import urlsplit

from counterfoil.cli.demo.scenarios import answer_of, round_of

PROVIDER_SECONDS = 4.0


def dies_before(dispatch: dict[str, Any]) -> bool:
    """Whether this attempt kills the process before the card is charged."""
    return _first_attempt_of_round(dispatch, 0)


def dies_after(dispatch: dict[str, Any]) -> bool:
    """Whether this attempt kills the process when the card is charged."""
    return _first_attempt_of_round(dispatch, 1)


def _first_attempt_of_round(dispatch: dict[str, Any], number: int) -> bool:
    return round_of(dispatch["arguments"]["number"]) == number and dispatch["metadata"]["attempt"] == 1


class ChargeHandler(BaseHTTPRequestHandler):
    """One dispatch: charge the card, then answer with the result."""

    provider = ("", "")
    """Host and path."""

    def do_POST(self) -> None:
        dispatch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if dies_before(dispatch):
            _die()
        self._charge(dispatch)
        if dies_after(dispatch):
            _die()
        result = {"success": True, "outputs": answer_of(dispatch["arguments"]["number"])}
        body = json.dumps(result).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _charge(self, dispatch: dict[str, Any]) -> None:
        body = json.dumps({"flow_id": dispatch["metadata"]["flow_id"]}).encode()
        host, path = self.provider
        connection = HTTPConnection(host, timeout=PROVIDER_SECONDS)
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        connection.getresponse().read()
        connection.close()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """The demo has the terminal."""


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _end_with_the_demo() -> None:
    """Standard input is closed when the demo ends, however it ends."""
    sys.stdin.buffer.read()
    os._exit(0)


def main(inherited: int, provider: str) -> None:
    """Serve until the demo ends, or a charge kills the process."""
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
    address = urlsplit(provider)
    ChargeHandler.provider = (address.netloc, address.path)
    server = HTTPServer(("127.0.0.1", 0), ChargeHandler, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=inherited)
    server.server_address = server.socket.getsockname()
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
