"""What a run needs: processor cores, memory, and memory of a GPU. Estimated from its model and data, before it starts.

Main memory is estimated from above: `tests/unit/lab/test_demand.py` measures peaks. That of a GPU was never measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from peer.algorithms.registry import algorithm_named
from peer.lab.jobs import Job
from peer.learning.learner import TorchLearner
from peer.tasks.arrays import by_name, is_stored
from peer.tasks.effect import used_data_root
from peer.tasks.loading import load_task
from peer.tasks.shard import PARTS, Shard
from peer.tasks.training_data import training_data
from peer.zoo.tasks.data_files import data_files

PROCESS_BYTES = 400_000_000  # Python, torch and what it allocates at first
CUDA_CONTEXT_BYTES = 700_000_000
FILE_COPIES = 3  # of the files of a data set: as read, as arrays, joined
MODELS_BESIDE = (
    6  # of each peer: averages (float64), copies in training, what it sent in this round and in the last one
)
MODELS_EACH = 2  # of each model that it holds: itself, and one that replaces it
SHARDS_MEASURED = 8  # peers whose samples are counted; the others are taken as their mean
GPU_SHARE = 0.9  # of a GPU's memory that is planned: its allocator leaves gaps


@dataclass(frozen=True)
class Demand:
    """What one run needs.

    Attributes:
        cpus: processor cores.
        memory: bytes of main memory.
        gpu_memory: bytes of memory of a GPU; 0: it uses none.
    """

    cpus: int
    memory: int
    gpu_memory: int = 0

    def grown(self) -> Demand:
        """Return the demand after a run was stopped because the memory of its machine was full: twice the memory."""
        return replace(self, memory=2 * self.memory)

    def gpus(self, smallest: int | None) -> float:
        """Return the share of a GPU: 1 / n where n such runs fit together, 1 if one fills it or its size is unknown.

        Args:
            smallest: bytes of memory of the smallest GPU; None: unknown.
        """
        if self.gpu_memory == 0:
            return 0.0
        together = 1 if smallest is None else max(1, int(GPU_SHARE * smallest / self.gpu_memory))
        return math.floor(1e4 / together) / 1e4  # Ray counts in steps of 0.0001


def demand_of(job: Job) -> Demand:
    """Return what a run needs; loads its data and makes its model once, so that missing data is an error before any run.

    Raises:
        ConfigError, TaskError, ShardError: the manifest, task or data cannot be used.
    """
    graph, settings = job.graph(), job.settings
    manifest, peers = graph.manifest, len(graph.nodes)
    root = used_data_root(manifest, settings.data_root)
    task = load_task(manifest, peers, data_root=root)
    spread = sorted({graph.ids[place * (peers - 1) // SHARDS_MEASURED] for place in range(SHARDS_MEASURED + 1)})
    shards = [training_data(task, peer_id, manifest) for peer_id in spread]
    samples = peers * int(np.mean([_bytes(shard) for shard in shards]))
    learner = TorchLearner(task, shards[0], batch_size=manifest.batch_size)
    model = 4 * learner.schema.size
    held = algorithm_named(manifest.algorithm)(manifest, 0, graph).held
    if job.case.method == "ifca-server":
        held = manifest.clusters
    files = sum(path.stat().st_size for path in data_files(manifest, root))
    models = peers * model * (MODELS_BESIDE + MODELS_EACH * held)
    memory = PROCESS_BYTES + FILE_COPIES * files + samples + models
    on_gpu = 0
    if settings.device.startswith("cuda"):
        at_a_time = min(learner.batch_samples, learner.at_a_time or learner.batch_samples)
        activations = 4 * peers * at_a_time * _activations(learner)
        on_gpu = CUDA_CONTEXT_BYTES + 2 * samples + models + 2 * activations  # values and gradients
    return Demand(settings.threads, memory, on_gpu)


def _bytes(shard: Shard) -> int:
    """Return the bytes of all arrays of a shard that are in memory."""
    parts = [array for part in PARTS for side in shard.part(part) for array in by_name(side).values()]
    return sum(array.nbytes for array in parts if isinstance(array, np.ndarray) and not is_stored(array))


def _activations(learner: TorchLearner) -> int:
    """Return how many numbers the layers of a model give for one sample: those of its own test samples are counted."""
    seen = 0

    def count(module: object, inputs: object, output: object) -> None:
        nonlocal seen
        seen += output.numel() if isinstance(output, Tensor) else 0

    hooks = [module.register_forward_hook(count) for module in learner.model.module.modules()]
    try:
        learner.evaluate(learner.model.store())
    finally:
        for hook in hooks:
            hook.remove()
    return seen // learner.count("test")
