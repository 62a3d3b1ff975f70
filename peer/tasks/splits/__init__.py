"""How a data set is dealt to the peers: pure functions of (labels, N, options, data seed), with ground truth.

One name per row of the splits table of the algorithms specification; `make_split` is the way in. Local test data follow
the peer's own training distribution.
"""

from __future__ import annotations

from collections.abc import Mapping

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.seeds import generator
from peer.tasks.splits.labels import dirichlet, iid, label_flip, patho, two_class, writers
from peer.tasks.splits.mixtures import letters_case, mixture, pair_mixture
from peer.tasks.splits.plan import Options, PeerSplit, Samples, SplitFunction, SplitInput, finished
from peer.tasks.splits.rotated import imbalance, oddeven_rotated, rotated_hard, rotated_soft

__all__ = ["SPLITS", "PeerSplit", "Samples", "SplitInput", "make_split"]

SPLITS: dict[str, SplitFunction] = {
    "iid": iid,
    "rotated_hard": rotated_hard,
    "rotated_soft": rotated_soft,
    "oddeven_rotated": oddeven_rotated,
    "mixture": mixture,
    "linear_synth": mixture,
    "letters_case": letters_case,
    "dirichlet": dirichlet,
    "patho": patho,
    "two_class": two_class,
    "imbalance": imbalance,
    "pair_mixture": pair_mixture,
    "label_flip": label_flip,
    "writers": writers,
}
# These choose each peer's size themselves and read samples_per_peer and test_per_peer for it.
SIZED = frozenset(
    {"rotated_soft", "oddeven_rotated", "mixture", "linear_synth", "letters_case", "imbalance", "pair_mixture"}
)


def make_split(name: str, data: SplitInput, options: Mapping[str, object], data_seed: int) -> list[PeerSplit]:
    """Return what each peer gets; equal on every machine for equal arguments.

    Raises:
        TaskError: an unknown split or option, or a data set that cannot be dealt this way to so many peers.
    """
    if name not in SPLITS:
        raise TaskError(f"split: {name!r} is unknown; known are {', '.join(sorted(SPLITS))}, and 'shard' for own files")
    read = Options(name, options)
    splits = SPLITS[name](data, read, generator(data_seed, "split", name))
    splits = finished(splits, read, name not in SIZED, generator(data_seed, "split-finish", name))
    read.finish()
    for peer_id, split in enumerate(splits):
        if len(split.train) == 0 or len(split.test) == 0:
            raise TaskError(
                f"split: {name} leaves peer {peer_id} {len(split.train)} training and {len(split.test)} test samples; "
                "use fewer peers or other split_options"
            )
    return splits
