"""What this machine lacks is told from what is wrong elsewhere, and what it has is shared out."""

from __future__ import annotations

import errno
import resource
import socket
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.domain.work.replies import SendOutcome
from counterfoil.testing import StepEndpoint
from counterfoil.transport.descriptors import FEWEST, RESERVED, DescriptorShares, share_out
from counterfoil.transport.egress import EgressPolicy
from counterfoil.transport.exhaustion import DESCRIPTORS, MEMORY, PORTS, THREADS, LocalLack, Shortage, lack_of
from counterfoil.transport.http import HttpTransport

IP_LOCAL_PORT_RANGE = 51
"""Of Linux 6.3 and later: which ports a socket may call from."""

LOOPBACK = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 9))
NO_SOURCE = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("255.255.255.255", 9))  # a datagram there needs a permission


@pytest.mark.parametrize(
    ("error", "lack"),
    [
        (OSError(errno.EMFILE, ""), DESCRIPTORS),
        (OSError(errno.ENFILE, ""), DESCRIPTORS),
        (OSError(errno.ENOMEM, ""), MEMORY),
        (OSError(errno.ENOBUFS, ""), MEMORY),
        (MemoryError(), MEMORY),
        (socket.gaierror(socket.EAI_MEMORY, ""), MEMORY),
        (RuntimeError("can't start new thread"), THREADS),
        (LocalLack(PORTS), PORTS),
        (OSError(errno.ECONNREFUSED, ""), None),
        (OSError("several things"), None),
        (socket.gaierror(socket.EAI_NONAME, ""), None),
        (RuntimeError("session is closed"), None),
        (ValueError(), None),
        (None, None),
    ],
)
def test_what_was_lacking(error: BaseException | None, lack: str | None) -> None:
    assert lack_of(error, LOOPBACK) == lack


def test_no_port_is_told_from_no_address_to_call_from() -> None:
    """The same error: ``::1`` on a machine without IPv6, say."""
    lacking = OSError(errno.EADDRNOTAVAIL, "")
    assert lack_of(lacking, LOOPBACK) == PORTS
    assert lack_of(lacking, NO_SOURCE) is None
    assert lack_of(lacking) is None


class _OnePort(EgressPolicy):
    """Sockets that may call from one port only."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port

    def make_socket(self, address_info: tuple[object, ...]) -> socket.socket:
        made = super().make_socket(address_info)
        try:
            made.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("I", self._port << 16 | self._port))
        except OSError:
            made.close()
            pytest.skip("needs Linux 6.3")
        return made


async def test_a_call_without_a_port_to_make_it_from_was_not_sent(endpoint: StepEndpoint) -> None:
    """With real sockets, whose only port is taken by a connection to the same address."""
    host, port = endpoint.url("/").removesuffix("/").rpartition("//")[2].split(":")
    with socket.create_connection((host, int(port))) as taken:
        policy = _OnePort(taken.getsockname()[1])
        async with HttpTransport(egress=policy, clock=lambda: 0, max_response_bytes=1000) as transport:
            reply = await transport.post(endpoint.url("/job"), body=b"{}", headers={}, timeout_ms=2000)
    assert (reply.delivery, reply.lack) == (SendOutcome.NOT_DELIVERED, PORTS)
    assert not endpoint.requests("/job")


async def test_a_call_without_a_descriptor_was_not_sent(endpoint: StepEndpoint) -> None:
    """Also one whose host name must be looked up first, by a thread that must be started."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    elsewhere = endpoint.url("/job").replace("127.0.0.1", "localhost")
    async with HttpTransport(egress=EgressPolicy(), clock=lambda: 0, max_response_bytes=1000) as transport:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            replies = [
                await transport.post(url, body=b"{}", headers={}, timeout_ms=2000)
                for url in (endpoint.url("/job"), elsewhere)
            ]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert {reply.lack for reply in replies} == {DESCRIPTORS}
        assert "file descriptors" in replies[0].error
        reply = await transport.post(elsewhere, body=b"{}", headers={}, timeout_ms=2000)
    assert reply.delivery is SendOutcome.ANSWERED


def test_a_shortage_lasts_as_long_as_something_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    shortage = Shortage("dispatch")
    with shortage.waiting(DESCRIPTORS):
        now[0] += 60
        shortage.end()
        assert shortage.lack == DESCRIPTORS
    shortage.end()
    assert not shortage.lack
    shortage.note(MEMORY)
    assert shortage.lack == MEMORY
    now[0] += 60
    assert not shortage.lack, "nothing has lacked it for a minute"


@given(limit=st.integers(0, 5000), inbound=st.integers(1, 20_000), outbound=st.integers(1, 5000))
def test_descriptors_are_shared_out(limit: int, inbound: int, outbound: int) -> None:
    shares = share_out(limit, inbound, outbound)
    assert 1 <= shares.inbound <= inbound
    assert 1 <= shares.outbound <= outbound
    assert shares.inbound + shares.outbound <= max(limit - RESERVED, 2 * FEWEST)
    if inbound + outbound <= limit - RESERVED:
        assert shares == DescriptorShares(inbound, outbound)
