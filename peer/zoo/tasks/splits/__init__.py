"""Splits by name, which divide a data set between the peers: those of this package, and of other installed packages.

A split is a pure function of (labels, N, options, data seed) with the true cluster of each sample. Local test samples
follow the distribution of the peer's training samples. To add a split, write its function and add one entry to `SPLITS`, or to
the entry points of your own package.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import getdoc

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.installed import named
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.options import NoOptions, parsed
from coordinator_free_bootstrap.seeds import generator
from coordinator_free_bootstrap.validation import unknown_name
from peer.zoo.tasks.splits.labels import by_column, dirichlet, iid, label_flip, patho, two_class, writers
from peer.zoo.tasks.splits.mixtures import LETTERS, letters_case, mixture, pair_mixture
from peer.zoo.tasks.splits.options import (
    ByColumn,
    Cases,
    Dirichlet,
    Imbalance,
    LabelFlip,
    Pair,
    Patho,
    Pattern,
    Rotated,
    Rotations,
    SplitOptions,
    Steps,
    TwoClass,
    WriterOptions,
)
from peer.zoo.tasks.splits.plan import PeerSplit, PoolSamples, SplitFunction, SplitInput, finished
from peer.zoo.tasks.splits.rotated import imbalance, oddeven_rotated, oddeven_steps, rotated_hard, rotated_soft

__all__ = ["SPLITS", "PeerSplit", "PoolSamples", "Split", "SplitInput", "check_split", "make_split", "splits"]

GROUP = "coordinator_free.splits"
OWN_SHARDS = "shard"  # the value of run.split where each device has its own data


@dataclass(frozen=True)
class Split:
    """How the samples of a data set are dealt to the peers.

    Attributes:
        function: takes `SplitInput`, options and a generator of random numbers, and returns one `PeerSplit` per peer; the first
            line of its docstring describes the split.
        sized: whether it reads samples_per_peer and test_per_peer itself, so that they do not cut its result.
        options: class of its ``split_options``.
        needs: options of an example that the default task cannot do without.
        classes: number of labels that the peers see, where it is not that of the data set.
    """

    function: SplitFunction
    sized: bool = False
    options: type[SplitOptions] = SplitOptions
    needs: str = ""
    classes: int | None = None

    @property
    def about(self) -> str:
        """One sentence on how the samples are dealt."""
        return (getdoc(self.function) or "").splitlines()[0]


SPLITS: dict[str, Split] = {
    "iid": Split(iid),
    "by_column": Split(
        by_column,
        options=ByColumn,
        needs="--set run.task=tabular --set run.split_options.by=hospital --set data_root=table.csv",
    ),
    "rotated_hard": Split(rotated_hard, options=Rotations),
    "rotated_soft": Split(rotated_soft, sized=True, options=Rotated),
    "oddeven_rotated": Split(oddeven_rotated, sized=True, options=Rotated),
    "oddeven_steps": Split(oddeven_steps, sized=True, options=Steps),
    "mixture": Split(mixture, sized=True, options=Pattern),
    "linear_synth": Split(mixture, sized=True, options=Pattern, needs="--set run.task=linear"),
    "letters_case": Split(
        letters_case,
        sized=True,
        options=Cases,
        needs="--set run.task=emnist --set run.task_options.split=byclass --set data_root=DIR",
        classes=LETTERS,
    ),
    "dirichlet": Split(dirichlet, options=Dirichlet),
    "patho": Split(patho, options=Patho),
    "two_class": Split(two_class, options=TwoClass),
    "imbalance": Split(imbalance, sized=True, options=Imbalance),
    "pair_mixture": Split(
        pair_mixture,
        sized=True,
        options=Pair,
        needs="--set run.task=mnist --set run.task_options.second=fmnist --set data_root=DIR",
    ),
    "label_flip": Split(label_flip, options=LabelFlip),
    "writers": Split(writers, options=WriterOptions, needs="--set run.task=femnist --set data_root=DIR"),
}


@functools.cache  # reading the metadata of all installed packages costs a forked peer 2 MB
def splits() -> Mapping[str, Split]:
    """Return all splits by name, those of installed packages too.

    Raises:
        ConfigError: an installed package is wrong, or has a name that another one has.
    """
    return named(GROUP, "split", Split, reserved=[OWN_SHARDS])


def check_split(manifest: Manifest) -> None:
    """Check the name of a split and its options; no sample is dealt.

    Raises:
        TaskError: an unknown name, or an option that is unknown, out of range or without effect.
    """
    kind = NoOptions if manifest.split == OWN_SHARDS else _split(manifest.split).options
    parsed(kind, manifest.split_options, "run.split_options.{}".format, TaskError, f"split {manifest.split!r}")


def make_split(name: str, data: SplitInput, options: Mapping[str, object], data_seed: int) -> list[PeerSplit]:
    """Return the samples of each peer; equal arguments give equal results on every machine.

    Raises:
        TaskError: an unknown split or option, or a data set that cannot be divided this way between the peers.
    """
    split = _split(name)
    read = split.options.of(options, name)
    dealt = split.function(data, read, generator(data_seed, "split", name))
    dealt = finished(dealt, read, not split.sized, generator(data_seed, "split-finish", name))
    for peer_id, mine in enumerate(dealt):
        if len(mine.train) == 0 or len(mine.test) == 0:
            raise TaskError(
                f"split: {name}: expected one or more of each, got {len(mine.train)} training and {len(mine.test)} test "
                f"samples for peer {peer_id}. Use fewer peers or other split_options."
            )
    return dealt


def _split(name: str) -> Split:
    if name not in splits():
        raise TaskError(unknown_name("run.split", name, [*splits(), OWN_SHARDS]))
    return splits()[name]
