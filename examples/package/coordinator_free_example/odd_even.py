"""Peers with even ids see even labels, the others odd ones: the split of this package."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from peer import PeerSplit, PoolSamples, Split, SplitInput, SplitOptions


class OddEvenOptions(SplitOptions):
    """``run.split_options`` of split ``odd_even``; `SplitOptions` has those of every split."""

    shared: float = Field(0.0, ge=0, le=1, description="share of the samples that is dealt to all peers at random")


def odd_even(data: SplitInput, options: OddEvenOptions, draw: np.random.Generator) -> list[PeerSplit]:
    """Deal even labels to the peers with even ids and odd labels to the others; the parity is the true cluster."""
    train, test = (_dealt(half, data, options.shared, draw) for half in data.halves)
    return [PeerSplit(mine, unseen) for mine, unseen in zip(train, test, strict=True)]


def _dealt(half: np.ndarray, data: SplitInput, shared: float, draw: np.random.Generator) -> list[PoolSamples]:
    half = draw.permutation(half)
    common, own = np.split(half, [round(shared * len(half))])
    parts = [[part] for part in np.array_split(common, data.peers)]
    for parity in (0, 1):
        peers = range(parity, data.peers, 2)
        mine = own[data.labels[own] % 2 == parity]
        for peer_id, part in zip(peers, np.array_split(mine, len(peers)), strict=True):
            parts[peer_id].append(part)
    chosen = [np.concatenate(part) for part in parts]
    return [PoolSamples.of(index, cluster=data.labels[index] % 2) for index in chosen]


ODD_EVEN = Split(odd_even, options=OddEvenOptions)
