"""How well the loss of a model that was sent tells training samples from test samples: membership inference by threshold.

A neighbor that has a sample guesses that the sender trained on it where its loss is low. The area under the ROC curve is the
probability that a training sample has a lower loss than a test sample: 0.5 tells nothing, 1 all. It is the least that a
neighbor can do: better attacks exist, and none is excluded by a low number.

Sources: Samuel Yeom, Irene Giacomelli, Matt Fredrikson and Somesh Jha, "Privacy Risk in Machine Learning: Analyzing the
Connection to Overfitting", 2018, arXiv 1709.01604, for the attack; Robert G. Newcombe, "Confidence intervals for an effect size
measure based on the Mann-Whitney statistic. Part 2", Statistics in Medicine 25, 2006, method 5, for the interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import StorageError
from peer.learning.learner import TorchLearner
from peer.store.files import write_json
from peer.store.state_dir import StateDir
from peer.tasks.shard import Shard
from peer.tasks.task import Task
from peer.tasks.user_code import data_of
from peer.view.models.saved import SavedModel
from peer.view.state.leaks import Leak

NORMAL = 1.959964  # of 95 %


def auc_of(members: NDArray[np.floating], others: NDArray[np.floating]) -> float:
    """Return the probability that a member's loss, of [m], is below another's, of [n]; equal ones count half."""
    both = np.concatenate([members, others])
    _, rank, counts = np.unique(both, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2  # the mean rank of equal values, from 1
    above = middle[rank][len(members) :].sum() - len(others) * (len(others) + 1) / 2
    return float(above / (len(members) * len(others)))


def interval_of(auc: float, members: int, others: int) -> tuple[float, float]:
    """Return the interval of 95 % of an area under a curve over independent samples; it has a width at 0 and 1, too."""
    spread = (members + others) / 2 - 1

    def deviation(true: float) -> float:
        ratio = 1 + spread * (1 - true) / (2 - true) + spread * true / (1 + true)
        return NORMAL * math.sqrt(true * (1 - true) * ratio / (members * others))

    return (
        _root(lambda true: auc - true - deviation(true), 0.0, auc),
        _root(lambda true: auc - true + deviation(true), auc, 1.0),
    )


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function changes from positive to negative, by bisection."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2


def leaks_of(place: StateDir, load: Callable[[SavedModel], Task], peer_id: int) -> Iterator[Leak]:
    """Yield what each kept model of a peer tells of its training samples.

    Args:
        place: of the peer.
        load: returns the task of a model file, with its data.
        peer_id: of the peer.

    Raises:
        StorageError: no sent model was kept, or its tensors are not all of the model.
        TaskError, ShardError: the samples cannot be loaded, or have no losses one by one.
    """
    paths = sorted(place.sent.glob("*.safetensors"))
    if not paths:
        raise StorageError(
            f"{place.sent}: expected models that this peer has sent, got none: a run that ends after its last round keeps them."
        )
    learner: TorchLearner | None = None
    for path in paths:
        saved = SavedModel.read(path)
        if learner is None:
            task, manifest = load(saved), saved.known_manifest()
            data = data_of(task, peer_id)
            learner = TorchLearner(task, saved.check_shard(manifest, task, data) if isinstance(data, Shard) else data)
        saved.check_frozen(learner.frozen_digest)
        model = saved.vector(learner.schema)
        members, others = learner.sample_losses(model, "train"), learner.sample_losses(model, "test")
        auc = auc_of(members, others)
        low, high = interval_of(auc, len(members), len(others))
        slot = int(saved.metadata["role"].rpartition(" ")[2])
        yield Leak(
            round_index=int(saved.metadata["round_index"]),
            slot=slot,
            auc=auc,
            low=low,
            high=high,
            train=len(members),
            test=len(others),
        )


def measure(place: StateDir, load: Callable[[SavedModel], Task], peer_id: int) -> list[Leak]:
    """Return what the kept models of a peer tell, and write it beside them, for report and model card."""
    found = list(leaks_of(place, load, peer_id))
    write_json(place.leak, found)
    return found
