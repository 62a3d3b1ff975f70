"""Deal the samples of a pool to the peers of a run, by the split of its manifest."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass

import numpy as np

from coordinator_free_bootstrap.errors import ConfigProblem, Option, TaskError
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.validation import counted
from peer.tasks.shard import Shard
from peer.zoo.tasks.pool import Pool
from peer.zoo.tasks.splits import PeerSplit, PoolSamples, SplitInput, make_split, splits
from peer.zoo.tasks.splits.plan import UNKNOWN


@dataclass(frozen=True, eq=False)
class Deal:
    """A pool and the run whose peers share it.

    Attributes:
        pool: the samples.
        manifest: keys split, split_options and data_seed are read; task and task_options are metadata.
        peers: N, the number of peers in the graph.
    """

    pool: Pool
    manifest: Manifest
    peers: int

    @property
    def classes(self) -> int | None:
        """Number of labels after the split; None for regression."""
        # EMNIST by-class has 62 labels; the split by case merges them into the 26 letters.
        named = splits().get(self.manifest.split)
        return self.pool.classes if named is None or named.classes is None else named.classes

    @property
    def outputs(self) -> int:
        """Number of outputs of a model."""
        return outputs_for(self.pool.y, self.classes)

    def split(self) -> list[PeerSplit]:
        """Return the samples of all peers; computed once per process.

        Raises:
            TaskError: the split cannot divide this pool between the peers.
        """
        if self.manifest.split == "shard":
            raise TaskError(
                f"run.split: expected own data with 'shard', got none. Give {Option('shard')} FILE, or choose another split."
            )
        options = json.dumps(self.manifest.split_options, sort_keys=True)
        return _split(self.pool, self.peers, self.manifest.split, options, self.manifest.data_seed)

    def shard(self, peer_id: int) -> Shard:
        """Return the samples of one peer, preprocessed.

        Raises:
            TaskError: there is no such peer, or as `split`.
        """
        if not 0 <= peer_id < self.peers:
            shared = f"0 to {self.peers - 1} with {counted(self.peers, 'peer')}"
            raise TaskError(ConfigProblem(Option("peer_id"), shared, str(peer_id)))
        mine = self.split()[peer_id]
        parts = {name: self._gather(getattr(mine, name), mine) for name in ("train", "test", "validation")}
        has_validation = len(mine.validation) > 0
        truth = mine.train.cluster
        return Shard(
            train_x=parts["train"][0],
            train_y=parts["train"][1],
            test_x=parts["test"][0],
            test_y=parts["test"][1],
            val_x=parts["validation"][0] if has_validation else None,
            val_y=parts["validation"][1] if has_validation else None,
            true_cluster=None if (truth == UNKNOWN).all() else truth,
            test_cluster=None if (mine.test.cluster == UNKNOWN).all() else mine.test.cluster,
            turns=mine.train.turns,
            preprocessing=self.pool.preprocessing,
            class_names=self.pool.class_names if mine.label_map is None else None,  # renamed labels lose their names
            metadata=self._metadata(peer_id),
        )

    def _gather(self, samples: PoolSamples, split: PeerSplit) -> tuple[np.ndarray, np.ndarray]:
        labels = self.pool.y[samples.index]
        if split.label_map is not None:
            labels = split.label_map[labels]
        return self.pool.gather(samples.index, samples.turns), labels

    def _metadata(self, peer_id: int) -> dict[str, str]:
        names = ("task", "task_options", "split", "split_options", "data_seed")
        settings: dict[str, object] = {name: getattr(self.manifest, name) for name in names}
        kind = "regression" if self.classes is None else "classification"
        settings |= {"peers": self.peers, "peer": peer_id, "kind": kind, "classes": self.classes}
        settings |= self.pool.about
        return {key: value if isinstance(value, str) else json.dumps(value) for key, value in settings.items()}


def outputs_for(targets: np.ndarray, classes: int | None) -> int:
    """Return the number of outputs of a model for ``targets`` [n, ...]."""
    return math.prod(targets.shape[1:]) if classes is None else classes


@functools.lru_cache(maxsize=4)
def _split(pool: Pool, peers: int, name: str, options: str, data_seed: int) -> list[PeerSplit]:
    labels = pool.y if pool.classes is not None else np.zeros(len(pool.y), dtype=np.int64)
    data = SplitInput(labels, pool.train_count, peers, pool.source, pool.group)
    return make_split(name, data, json.loads(options), data_seed)
