"""IPv4 addresses inside IPv6 addresses: a router, a tunnel or the kernel may send the packet to the inner one.

Every form that says by itself where the IPv4 address stands is read. A NAT64 prefix of a network's own cannot be told
from any other address: where there is one, it belongs into ``egress_deny``.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

_LOW_32 = (
    IPv6Network("::/96"),  # IPv4-compatible (RFC 4291); its first 65,536 addresses are ::, ::1 and their like
    IPv6Network("::ffff:0:0/96"),  # IPv4-mapped (RFC 4291)
    IPv6Network("::ffff:0:0:0/96"),  # IPv4-translated (RFC 2765)
    IPv6Network("64:ff9b::/96"),  # NAT64 (RFC 6052)
)
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
"""NAT64 of a network's own choice (RFC 8215): a prefix of 48, 56, 64 or 96 bits, the address does not tell which."""
_ISATAP = 0x00005EFE
_ISATAP_MASK = 0xFCFFFFFF
"""ISATAP (RFC 5214): ::0:5efe:a.b.c.d and ::200:5efe:a.b.c.d in any network; two bits say how unique it is."""
_THIS_NETWORK = IPv4Network("0.0.0.0/8")
_PLAIN_NUMBERS = 0xFFFF


def embedded(address: IPv6Address) -> tuple[IPv4Address, ...]:
    """All IPv4 addresses that it may stand for; empty for most."""
    return tuple(dict.fromkeys(_inner(address)))


def _inner(address: IPv6Address) -> Iterator[IPv4Address]:
    number = int(address)
    if number > _PLAIN_NUMBERS and any(address in network for network in _LOW_32):
        yield _at(number, 96)
    if address in _LOCAL_NAT64:
        yield from _local_nat64(number)
    if address.sixtofour is not None:  # 6to4 (RFC 3056)
        yield address.sixtofour
    if address.teredo is not None:  # Teredo (RFC 4380): the server, and the client, whose bits are inverted
        yield from address.teredo
    if number >> 32 & _ISATAP_MASK == _ISATAP:
        yield _at(number, 96)


def _local_nat64(number: int) -> list[IPv4Address]:
    """Read at every position of RFC 6052. Bits 64 to 71 belong to none of them, and what follows is ignored there.

    Zeros beside the true position read as 0.x.y.z, an address that nothing has: it counts only when there is no other.
    """
    squeezed = number >> 64 << 56 | number & (1 << 56) - 1  # 120 bits, without those eight
    found = [IPv4Address(squeezed >> 120 - 32 - bits & 0xFFFFFFFF) for bits in (48, 56, 64)]
    found.append(_at(number, 96))
    return [each for each in found if each not in _THIS_NETWORK] or found


def _at(number: int, bits: int) -> IPv4Address:
    """The 32 bits behind so many."""
    return IPv4Address(number >> 128 - 32 - bits & 0xFFFFFFFF)
