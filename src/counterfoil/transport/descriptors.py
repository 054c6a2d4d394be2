"""File descriptors of this process: how many it may have, how they are shared out, and whether one can be had now."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

RESERVED = 128
"""Descriptors that neither callers nor dispatches get: of the store, the log, the event loop and name lookups, and for
callers that are being accepted or turned away."""
FEWEST = 8
"""What callers and dispatches get each, however low the limit is."""


@dataclass(frozen=True)
class DescriptorShares:
    """How many descriptors inbound and outbound connections may take."""

    inbound: int
    outbound: int


def share_out(limit: int, inbound: int, outbound: int) -> DescriptorShares:
    """What each gets of ``limit`` descriptors: as much as it wants, or, where that is too much, outbound up to half.

    What leaves the engine comes first: a caller that is turned away can come again, an attempt that cannot be sent
    stops a flow.
    """
    spare = max(limit - RESERVED, 2 * FEWEST)
    if inbound + outbound <= spare:
        return DescriptorShares(inbound, outbound)
    outbound = min(outbound, max(spare // 2, spare - inbound))
    return DescriptorShares(min(inbound, spare - outbound), outbound)


def raise_limit(wanted: int) -> int:
    """Raise the soft limit on descriptors to what is wanted, as far as the hard one allows; the limit that holds."""
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
    """Take a descriptor and give it back; raises OSError when none can be had."""
    os.close(os.open(os.devnull, os.O_RDONLY))
