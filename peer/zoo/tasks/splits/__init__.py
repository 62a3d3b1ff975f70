"""The table of splits, which divide a data set between the peers.

A split is a pure function of (labels, N, options, data seed) with the true cluster of each sample. Local test samples
follow the distribution of the peer's training samples. To add a split, write its function and add one entry to `SPLITS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import getdoc

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.options import NoOptions, parsed
from coordinator_free_bootstrap.seeds import generator
from coordinator_free_bootstrap.validation import unknown_name
from peer.zoo.tasks.splits.labels import by_column, dirichlet, iid, label_flip, patho, two_class, writers
from peer.zoo.tasks.splits.mixtures import letters_case, mixture, pair_mixture
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

__all__ = ["SPLITS", "PeerSplit", "PoolSamples", "SplitInput", "check_split", "make_split"]


@dataclass(frozen=True)
class Split:
    """One entry of `SPLITS`.

    Attributes:
        function: deals the samples; the first line of its docstring describes the split.
        sized: whether it reads samples_per_peer and test_per_peer itself, so that they do not cut its result.
        options: class of its ``split_options``.
        needs: options of an example that the default task cannot do without.
    """

    function: SplitFunction
    sized: bool = False
    options: type[SplitOptions] = SplitOptions
    needs: str = ""

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


def check_split(manifest: Manifest) -> None:
    """Check the name of a split and its options; no sample is dealt.

    Raises:
        TaskError: an unknown name, or an option that is unknown, out of range or without effect.
    """
    if manifest.split != "shard" and manifest.split not in SPLITS:
        raise TaskError(unknown_name("run.split", manifest.split, [*SPLITS, "shard"]))
    kind = SPLITS[manifest.split].options if manifest.split in SPLITS else NoOptions
    parsed(kind, manifest.split_options, "run.split_options.{}".format, TaskError, f"split {manifest.split!r}")


def make_split(name: str, data: SplitInput, options: Mapping[str, object], data_seed: int) -> list[PeerSplit]:
    """Return the samples of each peer; equal arguments give equal results on every machine.

    Raises:
        TaskError: an unknown split or option, or a data set that cannot be divided this way between the peers.
    """
    if name not in SPLITS:
        raise TaskError(unknown_name("run.split", name, [*SPLITS, "shard"]))
    read = SPLITS[name].options.of(options, name)
    splits = SPLITS[name].function(data, read, generator(data_seed, "split", name))
    splits = finished(splits, read, not SPLITS[name].sized, generator(data_seed, "split-finish", name))
    for peer_id, split in enumerate(splits):
        if len(split.train) == 0 or len(split.test) == 0:
            raise TaskError(
                f"split: {name}: expected one or more of each, got {len(split.train)} training and {len(split.test)} test "
                f"samples for peer {peer_id}. Use fewer peers or other split_options."
            )
    return splits
