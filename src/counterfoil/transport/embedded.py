"""Finds IPv4 addresses embedded in IPv6 addresses: a router, tunnel or kernel may send the packet to the inner one.

Every form that shows by itself where the IPv4 address is, is read. A network-specific NAT64 prefix looks like any other
address: a network that has one must list it in ``egress_deny``.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

_LOW_32 = (
    IPv6Network("::/96"),  # IPv4-compatible (RFC 4291); its first 65,536 addresses are ::, ::1 and similar
    IPv6Network("::ffff:0:0/96"),  # IPv4-mapped (RFC 4291)
    IPv6Network("::ffff:0:0:0/96"),  # IPv4-translated (RFC 2765)
    IPv6Network("64:ff9b::/96"),  # NAT64 (RFC 6052)
)
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
"""Local-use NAT64 (RFC 8215): the prefix has 48, 56, 64 or 96 bits; the address does not show which."""
_ISATAP = 0x00005EFE
_ISATAP_MASK = 0xFCFFFFFF
"""ISATAP (RFC 5214): ::0:5efe:a.b.c.d and ::200:5efe:a.b.c.d in any network; two bits may differ."""
_THIS_NETWORK = IPv4Network("0.0.0.0/8")
_PLAIN_NUMBERS = 0xFFFF


def embedded(address: IPv6Address) -> tuple[IPv4Address, ...]:
    """All IPv4 addresses that it may contain; empty for most."""
    return tuple(dict.fromkeys(_inner(address)))


def _inner(address: IPv6Address) -> Iterator[IPv4Address]:
    number = int(address)
    if number > _PLAIN_NUMBERS and any(address in network for network in _LOW_32):
        yield _at(number, 96)
    if address in _LOCAL_NAT64:
        yield from _local_nat64(number)
    if address.sixtofour is not None:  # 6to4 (RFC 3056)
        yield address.sixtofour
    if address.teredo is not None:  # Teredo (RFC 4380): server and client address; the bits of the latter are inverted
        yield from address.teredo
    if number >> 32 & _ISATAP_MASK == _ISATAP:
        yield _at(number, 96)


def _local_nat64(number: int) -> list[IPv4Address]:
    """Read the address at every position of RFC 6052. Bits 64 to 71 belong to none, and the suffix is ignored.

    Zeros beside the true position read as 0.x.y.z, an unused address: it counts only if there is no other.
    """
    squeezed = number >> 64 << 56 | number & (1 << 56) - 1  # 120 bits, without those eight
    found = [IPv4Address(squeezed >> 120 - 32 - bits & 0xFFFFFFFF) for bits in (48, 56, 64)]
    found.append(_at(number, 96))
    return [each for each in found if each not in _THIS_NETWORK] or found


def _at(number: int, bits: int) -> IPv4Address:
    """The 32 bits after the first ``bits``."""
    return IPv4Address(number >> 128 - 32 - bits & 0xFFFFFFFF)
