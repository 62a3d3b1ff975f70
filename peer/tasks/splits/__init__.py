"""The table of splits, which divide a data set between the peers.

A split is a pure function of (labels, N, options, data seed) with the true cluster of each sample. Local test samples
follow the distribution of the peer's training samples. To add a split, write its function and add one entry to `SPLITS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.seeds import generator
from peer.tasks.splits.labels import dirichlet, iid, label_flip, patho, two_class, writers
from peer.tasks.splits.mixtures import letters_case, mixture, pair_mixture
from peer.tasks.splits.plan import Options, PeerSplit, Samples, SplitFunction, SplitInput, finished
from peer.tasks.splits.rotated import imbalance, oddeven_rotated, rotated_hard, rotated_soft

__all__ = ["SPLITS", "PeerSplit", "Samples", "SplitInput", "make_split"]


@dataclass(frozen=True)
class Split:
    """One entry of `SPLITS`; ``sized``: it reads samples_per_peer and test_per_peer itself, so they do not cut its result."""

    function: SplitFunction
    sized: bool = False


SPLITS: dict[str, Split] = {
    "iid": Split(iid),
    "rotated_hard": Split(rotated_hard),
    "rotated_soft": Split(rotated_soft, sized=True),
    "oddeven_rotated": Split(oddeven_rotated, sized=True),
    "mixture": Split(mixture, sized=True),
    "linear_synth": Split(mixture, sized=True),
    "letters_case": Split(letters_case, sized=True),
    "dirichlet": Split(dirichlet),
    "patho": Split(patho),
    "two_class": Split(two_class),
    "imbalance": Split(imbalance, sized=True),
    "pair_mixture": Split(pair_mixture, sized=True),
    "label_flip": Split(label_flip),
    "writers": Split(writers),
}


def make_split(name: str, data: SplitInput, options: Mapping[str, object], data_seed: int) -> list[PeerSplit]:
    """Return the samples of each peer; equal arguments give equal results on every machine.

    Raises:
        TaskError: an unknown split or option, or a data set that cannot be divided this way between so many peers.
    """
    if name not in SPLITS:
        raise TaskError(f"split: found {name!r}; allowed: {', '.join(sorted(SPLITS))}, and 'shard' for own data")
    read = Options(name, options)
    splits = SPLITS[name].function(data, read, generator(data_seed, "split", name))
    splits = finished(splits, read, not SPLITS[name].sized, generator(data_seed, "split-finish", name))
    read.finish()
    for peer_id, split in enumerate(splits):
        if len(split.train) == 0 or len(split.test) == 0:
            raise TaskError(
                f"split: {name}: found {len(split.train)} training and {len(split.test)} test samples for peer {peer_id}; "
                "allowed: one or more; use fewer peers or other split_options"
            )
    return splits
