"""What this peer knows of the numbers that all sites must agree on before the first round. Pure.

A site is a peer with its training set. The engine does not know what its numbers mean (`peer.tasks.sites`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from peer.core.messages import Numbers


class Sites:
    """The numbers of each site, as far as they are known; those of a site never change.

    Args:
        peer_id: this peer.
        own: its numbers.
        peers: all peers of the graph.
        problem: why numbers cannot be those of a site; "" if they can.
        saved: the numbers of all sites, of a checkpoint.

    Attributes:
        known: numbers by peer id; where a checkpoint has them, they stand, whatever the data of this peer are now.
    """

    def __init__(
        self,
        peer_id: int,
        own: Numbers,
        peers: Iterable[int],
        problem: Callable[[Numbers], str],
        saved: Mapping[int, Numbers] | None = None,
    ) -> None:
        self.peers = frozenset(peers)
        self.problem = problem
        self.size = len(own)
        self.known: dict[int, Numbers] = dict(saved or {peer_id: own})

    @property
    def missing(self) -> list[int]:
        """The peers whose numbers are not known, ascending."""
        return sorted(self.peers - self.known.keys())
