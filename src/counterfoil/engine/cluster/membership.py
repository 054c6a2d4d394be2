"""This node as one of several: renewing its lease, and looking for what no notification may have told."""

from __future__ import annotations

from counterfoil.engine.cluster.lease import Lease
from counterfoil.engine.cluster.peers import Peers
from counterfoil.engine.queries.feed import Feed
from counterfoil.engine.queries.results import Results
from counterfoil.engine.wakeups import SweepName, Wakeups
from counterfoil.engine.work.sending_room import SendingRoom
from counterfoil.store.group_commit.batch_sizes import BatchSizer


class Membership:
    """Renews the lease. What other nodes committed shows here at the latest with the next renewal."""

    def __init__(
        self,
        lease: Lease,
        peers: Peers,
        feed: Feed,
        results: Results,
        wakeups: Wakeups,
        room: SendingRoom,
        sizer: BatchSizer,
    ) -> None:
        self._lease = lease
        self._peers = peers
        self._feed = feed
        self._results = results
        self._wakeups = wakeups
        self._room = room
        self._sizer = sizer

    async def renew(self) -> None:
        """Renew the lease, then look again for room and for commits of other nodes, also of nodes that have left."""
        lease = self._lease
        if lease.keep_every_ms is None:
            return
        had_others, lapsed = lease.others, not lease.held
        await lease.keep()
        self._sizer.expect_others(lease.others)
        if lease.others and not had_others:
            self._peers.greet()
        self._room.look_again()
        if had_others or lease.others or lapsed:
            self._feed.ring_all()
            self._results.look_again()
        if lapsed:
            self._wakeups.now(SweepName.REQUEUE)
