"""Egress rules: the addresses that the engine may connect to. Denied by default: link-local, metadata, multicast.

The address is checked when the socket is created, the last possible moment, so neither a name that resolves differently
the next time nor an unusual spelling of an address evades the rules. Deny overrides allow, allow overrides the default
denials. If ``egress_only`` is set, an address must be on that list as well.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from counterfoil.transport.embedded import embedded

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

DENIED_BY_DEFAULT: tuple[Network, ...] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this network: 0.0.0.0 connects to the machine itself
        "169.254.0.0/16",  # link-local, and the metadata service of most clouds
        "100.100.100.200/32",  # metadata: Alibaba Cloud
        "168.63.129.16/32",  # metadata: Azure's wire server
        "192.0.0.0/24",  # protocol assignments, and the metadata service of Oracle Cloud classic
        "224.0.0.0/4",  # multicast
        "255.255.255.255/32",  # broadcast
        "::/128",  # unspecified
        "fe80::/10",  # link-local
        "fd00:ec2::/32",  # metadata: AWS
        "fd20:ce::254/128",  # metadata: Google Cloud
        "fd00:c1::a9fe:a9fe/128",  # metadata: Oracle Cloud
        "fd00:42::42/128",  # metadata: Scaleway
        "ff00::/8",  # multicast
    )
)

destination: ContextVar[str] = ContextVar("destination", default="")
"""The host name of the current request: a socket is created from an address, which does not include it."""

_HOST_PATTERN = re.compile(r"(\*\.)?(?=.*[a-z_])[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_LOOKUPS_AT_ONCE = 32


class EgressDenied(OSError):
    """The egress rules forbid this destination. An OSError, because sockets and resolvers raise nothing else."""

    def __init__(self, message: str = "the egress rules do not allow connections to this address") -> None:
        super().__init__(errno.EACCES, message)


class EgressPolicy:
    """The host names and addresses that may be connected to. Raises ValueError for an invalid entry."""

    def __init__(self, allow: Iterable[str] = (), deny: Iterable[str] = (), only: Iterable[str] = ()) -> None:
        self._allowed_hosts, self._allowed_networks = _entries("egress_allow", allow)
        self._denied_hosts, self._denied_networks = _entries("egress_deny", deny)
        self._only_hosts, self._only_networks = _entries("egress_only", only)
        self._restricted = bool(self._only_hosts or self._only_networks)

    def check_host(self, host: str) -> None:
        """Raise EgressDenied for a host name or literal address that is denied before any lookup."""
        name = _normal(host)
        if _listed(name, self._denied_hosts):
            raise EgressDenied("the egress rules do not allow connections to this host")
        try:
            address = ip_address(name)
        except ValueError:
            if self._restricted and not self._only_networks and not _listed(name, self._only_hosts):
                raise EgressDenied("egress_only does not list this host") from None
            return
        self.check_address(address, name)

    def check_address(self, address: Address | str, host: str) -> None:
        """Raise EgressDenied for an address that may not be connected to for this host."""
        faces = _faces(ip_address(address))
        if any(_within(face, self._denied_networks) for face in faces):
            raise EgressDenied
        name = _normal(host)
        if self._restricted and not self._is_listed(faces[0], name):
            raise EgressDenied("egress_only lists neither this address nor its host")
        if _listed(name, self._allowed_hosts) or _within(faces[0], self._allowed_networks):
            return
        for face in faces:  # each must be allowed
            if _within(face, DENIED_BY_DEFAULT) and not _within(face, self._allowed_networks):
                raise EgressDenied

    def _is_listed(self, address: Address, name: str) -> bool:
        """Whether ``egress_only`` lists it. An IPv4 address inside an IPv6 address does not count.

        The exception is the mapped form (``::ffff:0:0/96``), which connects to the IPv4 address itself.
        """
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return _listed(name, self._only_hosts) or _within(address, self._only_networks)

    def make_socket(self, address_info: tuple[Any, ...]) -> socket.socket:
        """Create the socket of a connection, if it is allowed (the ``socket_factory`` of aiohttp's connector)."""
        family, kind, protocol, _, socket_address = address_info
        self.check_address(socket_address[0], destination.get())
        return socket.socket(family, kind, protocol)


class GuardedResolver(AbstractResolver):
    """Resolves host names and drops denied addresses, so that only allowed ones are tried.

    It has threads of its own, so that slow lookups do not delay the rest of the process.
    """

    def __init__(self, policy: EgressPolicy) -> None:
        self._policy = policy
        self._threads = ThreadPoolExecutor(_LOOKUPS_AT_ONCE, thread_name_prefix="resolve")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The allowed addresses of the host; raises EgressDenied if all of them are denied."""
        found = await asyncio.get_running_loop().run_in_executor(self._threads, _look_up, host, port, family)
        allowed = [result for result in found if self._allows(result)]
        if not allowed and found:
            raise EgressDenied
        return allowed

    async def close(self) -> None:
        """Release the threads; a lookup in progress ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _allows(self, result: ResolveResult) -> bool:
        try:
            self._policy.check_address(result["host"], result["hostname"])
        except EgressDenied:
            return False
        return True


def _look_up(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [
        ResolveResult(
            hostname=host,
            host=str(address[0]),
            port=int(address[1]),
            family=found_family,
            proto=protocol,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        for found_family, _, protocol, _, address in found
    ]


def _entries(setting: str, entries: Iterable[str]) -> tuple[frozenset[str], tuple[Network, ...]]:
    hosts: set[str] = set()
    networks: list[Network] = []
    for entry in entries:
        text = _normal(entry.strip())
        try:
            networks.append(ip_network(text, strict=False))
        except ValueError:
            if not _HOST_PATTERN.fullmatch(text):
                raise ValueError(
                    f"{setting}: {entry!r} is neither a network (10.0.0.0/8, fd00::/8) "
                    "nor a host name (api.example.com, *.example.com)"
                ) from None
            hosts.add(text)
    return frozenset(hosts), tuple(networks)


def _normal(host: str) -> str:
    return host.lower().rstrip(".")


def _listed(name: str, hosts: frozenset[str]) -> bool:
    """Whether the list has the name itself, or a parent domain of it with a star."""
    if not hosts:
        return False
    if name in hosts:
        return True
    _, dot, parent = name.partition(".")
    while dot:
        if f"*.{parent}" in hosts:
            return True
        _, dot, parent = parent.partition(".")
    return False


def _within(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address in network for network in networks)


def _faces(address: Address) -> tuple[Address, ...]:
    """The address, and the IPv4 addresses embedded in it: the rules apply to each of them."""
    return (address,) if isinstance(address, IPv4Address) else (address, *embedded(address))
