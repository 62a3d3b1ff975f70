"""The table of splits, which divide a data set between the peers.

A split is a pure function of (labels, N, options, data seed) with the true cluster of each sample. Local test samples
follow the distribution of the peer's training samples. To add a split, write its function and add one entry to `SPLITS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import getdoc
from typing import NamedTuple

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.seeds import generator
from coordinator_free_bootstrap.validation import unknown_name
from peer.zoo.tasks.pool import refuse_unknown_options
from peer.zoo.tasks.splits.labels import by_column, dirichlet, iid, label_flip, patho, two_class, writers
from peer.zoo.tasks.splits.mixtures import letters_case, mixture, pair_mixture
from peer.zoo.tasks.splits.plan import Options, PeerSplit, Samples, SplitFunction, SplitInput, finished
from peer.zoo.tasks.splits.rotated import imbalance, oddeven_rotated, oddeven_steps, rotated_hard, rotated_soft

__all__ = ["SPLITS", "PeerSplit", "Samples", "SplitInput", "check_split", "make_split"]


class OptionHelp(NamedTuple):
    """Default and meaning of one key of ``split_options``; default None: no value, or a value that the meaning tells."""

    default: bool | float | str | None
    meaning: str


ROTATIONS = {
    "k": OptionHelp(2, "number of rotations: 1, 2 or 4, at equal angles"),
    "rotations": OptionHelp(None, "list of 0, 90, 180 or 270 degrees, in place of k"),
}
FRACTIONS = {
    "fraction_min": OptionHelp(0.1, "smallest fraction of a peer's samples from the first distribution"),
    "fraction_max": OptionHelp(0.9, "largest fraction of a peer's samples from the first distribution"),
}
ROTATION = {"rotation": OptionHelp(90, "degrees by which half of the samples are rotated: 90, 180 or 270")}
PATTERN = {
    "pattern": OptionHelp("10:90", "shares of two distributions in percent (any a:b), 'linear' or 'random'"),
    "samples_min": OptionHelp(100, "smallest size of a peer"),
    "samples_max": OptionHelp(200, "largest size of a peer"),
}
EVERY_SPLIT = {
    "samples_per_peer": OptionHelp(0, "largest number of training samples of a peer; 0: no limit"),
    "test_per_peer": OptionHelp(0, "largest number of test samples of a peer; 0: no limit"),
    "validation": OptionHelp(0.0, "share of the training samples that is held out for validation"),
}


@dataclass(frozen=True)
class Split:
    """One entry of `SPLITS`.

    Attributes:
        function: deals the samples; the first line of its docstring describes the split.
        sized: whether it reads samples_per_peer and test_per_peer itself, so that they do not cut its result.
        own_options: keys of ``split_options`` besides `EVERY_SPLIT`.
        needs: options of an example that the default task cannot do without.
    """

    function: SplitFunction
    sized: bool = False
    own_options: Mapping[str, OptionHelp] = field(default_factory=dict)
    needs: str = ""

    @property
    def options(self) -> dict[str, OptionHelp]:
        """All keys of ``split_options``."""
        return {**self.own_options, **EVERY_SPLIT}

    @property
    def about(self) -> str:
        """One sentence on how the samples are dealt."""
        return (getdoc(self.function) or "").splitlines()[0]


SPLITS: dict[str, Split] = {
    "iid": Split(iid),
    "by_column": Split(
        by_column,
        own_options={"by": OptionHelp(None, "column of the table; required; the column is not an input of the model")},
        needs="--task tabular --set run.split_options.by=hospital --data-root table.csv",
    ),
    "rotated_hard": Split(rotated_hard, own_options=ROTATIONS),
    "rotated_soft": Split(rotated_soft, sized=True, own_options={**ROTATION, **FRACTIONS}),
    "oddeven_rotated": Split(oddeven_rotated, sized=True, own_options={**ROTATION, **FRACTIONS}),
    "oddeven_steps": Split(
        oddeven_steps,
        sized=True,
        own_options={
            "rotation": OptionHelp(90, "degrees by which half of the samples are rotated: 0, 90, 180 or 270"),
            "step": OptionHelp(0.1, "difference of the shares of even labels between two peers, at most 0.25"),
            "test_step": OptionHelp(0.2, "the same in the test data; equal to step: as in training"),
        },
    ),
    "mixture": Split(mixture, sized=True, own_options=PATTERN),
    "linear_synth": Split(mixture, sized=True, own_options=PATTERN, needs="--task linear"),
    "letters_case": Split(
        letters_case,
        sized=True,
        own_options={
            "clusters": OptionHelp(2, "2: small and capital letters; 4: half of each also rotated"),
            **PATTERN,
        },
        needs="--task emnist --set run.task_options.split=byclass --data-root DIR",
    ),
    "dirichlet": Split(
        dirichlet,
        own_options={
            "alpha": OptionHelp(0.1, "parameter of the Dirichlet distribution; smaller is more skewed"),
            "samples_min": OptionHelp(20, "smallest number of training samples of a peer"),
        },
    ),
    "patho": Split(
        patho,
        own_options={
            "classes_per_peer": OptionHelp(3, "number of classes of a peer"),
            "samples_min": OptionHelp(10, "smallest number of samples of each class of a peer"),
        },
    ),
    "two_class": Split(
        two_class,
        own_options={
            "samples_min": OptionHelp(400, "smallest size of a peer"),
            "samples_max": OptionHelp(5000, "largest size of a peer"),
            "train_share": OptionHelp(0.75, "share of a peer's samples for training"),
        },
    ),
    "imbalance": Split(
        imbalance,
        sized=True,
        own_options={
            "r": OptionHelp(5.0, "size of the largest peers divided by the size of the smallest"),
            "base": OptionHelp("rotated_soft", "rotated_soft or oddeven_rotated"),
            **ROTATION,
            **FRACTIONS,
        },
    ),
    "pair_mixture": Split(
        pair_mixture,
        sized=True,
        own_options={"per_source": OptionHelp(25_000, "training samples taken from each data set"), **FRACTIONS},
        needs="--task mnist --set run.task_options.second=fmnist --data-root DIR",
    ),
    "label_flip": Split(
        label_flip,
        own_options={
            "q": OptionHelp(0.2, "share of the peers whose labels are renamed"),
            "base": OptionHelp("dirichlet", "how samples are dealt: iid, dirichlet or patho"),
            "alpha": OptionHelp(0.1, "as in dirichlet, with that base"),
            "classes_per_peer": OptionHelp(3, "as in patho, with that base"),
            "samples_min": OptionHelp(None, "as in the base: 20 in dirichlet, 10 in patho"),
        },
    ),
    "writers": Split(
        writers,
        own_options={**ROTATIONS, "k": OptionHelp(1, ROTATIONS["k"].meaning)},
        needs="--task femnist --data-root DIR",
    ),
}


def check_split(manifest: Manifest) -> None:
    """Check the name of a split and the keys of its options; no sample is dealt.

    Raises:
        TaskError: an unknown name or option.
    """
    if manifest.split != "shard" and manifest.split not in SPLITS:
        raise TaskError(unknown_name("run.split", manifest.split, [*SPLITS, "shard"]))
    keys = SPLITS[manifest.split].options if manifest.split in SPLITS else ()
    refuse_unknown_options("split_options", manifest.split_options, keys, f"split {manifest.split!r}")


def make_split(name: str, data: SplitInput, options: Mapping[str, object], data_seed: int) -> list[PeerSplit]:
    """Return the samples of each peer; equal arguments give equal results on every machine.

    Raises:
        TaskError: an unknown split or option, or a data set that cannot be divided this way between so many peers.
    """
    if name not in SPLITS:
        raise TaskError(unknown_name("run.split", name, [*SPLITS, "shard"]))
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
