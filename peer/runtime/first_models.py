"""Where the first models of a peer come from: the seed of the run, or what ``run.start_from`` names."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from peer.algorithms.base import Algorithm
from peer.learning.learner import TorchLearner
from peer.learning.start import WarmStart, start_of


def choose_first_models(
    algorithm: Algorithm, learner: TorchLearner, given: Path | None, kept: Path | None = None
) -> WarmStart | None:
    """Let a learner begin from what the run asks for, and return it; None: from the seed.

    Args:
        algorithm: of the peer.
        learner: changed.
        given: ``--start-from``.
        kept: folder with a copy, written at the first start.

    Raises:
        UsageError, ConfigError: file or run do not fit, or are missing.
        StorageError: they cannot be read.
    """
    start = start_of(algorithm.manifest.start_from, given, algorithm.peer_id, kept)
    if start is not None:
        drawn = algorithm.initial_models(learner)[0][: algorithm.slots]
        differ = not all(np.array_equal(drawn[0], model) for model in drawn)
        start.check(learner.schema, algorithm.slots, differ=differ)
        learner.start = start
    return start
