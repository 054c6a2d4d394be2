"""File descriptors of this process: raises their limit, shares them out, and tests whether one is available."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

RESERVED = 128
"""Descriptors that are kept for the store, the log, the event loop and name lookups, and for accepting and refusing
connections of callers."""
FEWEST = 8
"""The minimum for callers and for dispatches, however low the limit is."""


@dataclass(frozen=True)
class DescriptorShares:
    """How many descriptors inbound and outbound connections may take."""

    inbound: int
    outbound: int


def share_out(limit: int, inbound: int, outbound: int) -> DescriptorShares:
    """Share out ``limit`` descriptors: each gets what it wants, or, if that is too much, outbound up to half.

    Outbound connections come first: a caller that is refused can retry, but an attempt that cannot be sent stops a
    flow.
    """
    spare = max(limit - RESERVED, 2 * FEWEST)
    if inbound + outbound <= spare:
        return DescriptorShares(inbound, outbound)
    outbound = min(outbound, max(spare // 2, spare - inbound))
    return DescriptorShares(min(inbound, spare - outbound), outbound)


def raise_limit(wanted: int) -> int:
    """Raise the soft limit to ``wanted``, as far as the hard limit allows; returns the limit that applies."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError):  # some systems have a limit below the hard one
            return soft
        return most
    return soft


def take_one() -> None:
    """Take a descriptor and release it; raises OSError if none is available."""
    os.close(os.open(os.devnull, os.O_RDONLY))
