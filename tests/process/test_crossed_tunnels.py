"""Goal: two neighbors that could not dial each other for a while are connected again, and over tunnels only where dialing fails.

Where it failed at another time for each, each calls the other over the tunnel that the other opens. Such a tunnel runs over the
calls of its owner, so both would run over nothing.
"""

from __future__ import annotations

import asyncio

import pytest
from tools.running import PATIENCE_S
from tunnel_support import NEIGHBOR, RELAY, End, peers
from wire_support import hello_of

from peer.runtime.edges import UNDIALED_HELLOS

pytestmark = pytest.mark.process

BOTH = ((RELAY, NEIGHBOR), (NEIGHBOR, RELAY))


async def _redirect(ends: dict[int, End], caller: int, owner: int) -> None:
    """Let a peer call the owner of a tunnel over it: its hellos were not answered, while those of the owner came in."""
    async with asyncio.timeout(PATIENCE_S):
        while ends[caller].edges.kind(owner) != "tunnel":
            ends[caller].link(owner).unanswered_hellos = UNDIALED_HELLOS
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


def test_hellos_that_were_lost_in_both_directions_are_no_sign_that_a_neighbor_cannot_be_dialed() -> None:
    async def scenario() -> None:
        async with peers(RELAY, NEIGHBOR) as ends:
            for caller, owner in BOTH:
                await ends[caller].reaches(owner, caller)
            ends[RELAY].link(NEIGHBOR).unanswered_hellos = 5  # in a cut, which ends now
            reply = await ends[NEIGHBOR].edges.hello(RELAY, hello_of(NEIGHBOR))
            assert not reply.cannot_dial
            ends[RELAY].link(NEIGHBOR).unanswered_hellos = UNDIALED_HELLOS  # since then
            reply = await ends[NEIGHBOR].edges.hello(RELAY, hello_of(NEIGHBOR))
            assert reply.cannot_dial

    asyncio.run(scenario())
