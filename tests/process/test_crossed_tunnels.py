"""Goal: two neighbors that could not dial each other for a while, each at another time, are connected again.

Each then calls the other over the tunnel that the other opens, and each tunnel runs over the calls of its owner: over itself.
"""

from __future__ import annotations

import asyncio

import pytest
from tools.running import PATIENCE_S
from tunnel_support import NEIGHBOR, RELAY, End, peers

from peer.runtime.edges import UNDIALED_HELLOS

pytestmark = pytest.mark.process

BOTH = ((RELAY, NEIGHBOR), (NEIGHBOR, RELAY))


async def _redirect(ends: dict[int, End], caller: int, owner: int) -> None:
    """Let a peer call the owner of a tunnel over it: its hellos were not answered, while those of the owner came in."""
    ends[caller].link(owner).unanswered_hellos = UNDIALED_HELLOS
    async with asyncio.timeout(PATIENCE_S):
        while ends[caller].edges.kind(owner) != "tunnel":
            await ends[owner].reaches(caller, owner)
            await asyncio.sleep(0.02)  # the offer is on its way


@pytest.mark.parametrize("secure", [True, False])
def test_neighbors_that_call_each_other_over_tunnels_dial_again(secure: bool) -> None:
    async def scenario() -> None:
        async with peers(RELAY, NEIGHBOR, secure=secure) as ends:
            for caller, owner in BOTH:
                await ends[caller].reaches(owner, caller)
            await _redirect(ends, RELAY, NEIGHBOR)
            await ends[RELAY].reaches(NEIGHBOR, RELAY)
            assert ends[RELAY].edges.kind(NEIGHBOR) == "tunnel", "one tunnel alone works, and stays"
            await _redirect(ends, NEIGHBOR, RELAY)
            for caller, owner in BOTH:
                await ends[caller].reaches(owner, caller)
            assert "direct" in {ends[caller].edges.kind(owner) for caller, owner in BOTH}

    asyncio.run(scenario())
