"""Model files: metadata, vector, evaluation and predictions of a saved model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coordinator_free_bootstrap import Manifest, canonical_json, parse_manifest
from coordinator_free_bootstrap.errors import StorageError, TaskError, UsageError
from peer.core.schema import Schema
from peer.learning.flat import FlatModule, Vector
from peer.learning.learner import Learner
from peer.store.model_file import load_model
from peer.tasks.builtin import NamedModelTask
from peer.tasks.datasets import DATASETS
from peer.tasks.loading import load_task
from peer.tasks.task import Task


def model_metadata(learner: Learner, manifest: Manifest, peers: int) -> dict[str, str]:
    """Return the metadata of a model file; `peer evaluate` and `peer predict` need only that file."""
    return {
        "manifest": canonical_json(manifest),
        "peers": str(peers),
        "sample_shape": json.dumps(list(learner.shard.train_x.shape[1:])),
        "kind": learner.task.kind,
        "outputs": str(learner.predict(learner.initial_model(0), learner.shard.train_x[:1]).shape[-1]),
    }


@dataclass(frozen=True)
class SavedModel:
    """A model file: named tensors and metadata."""

    path: Path
    tensors: Mapping[str, NDArray[np.float32]]
    metadata: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> SavedModel:
        """Read a file.

        Raises:
            StorageError: the file is missing, or not a safetensors file.
        """
        return cls(path, *load_model(path))

    def manifest(self) -> Manifest | None:
        """Return the manifest of the run that trained the model, or None if the metadata lack it."""
        text = self.metadata.get("manifest")
        return None if text is None else parse_manifest(json.loads(text), str(self.path))

    def vector(self, schema: Schema) -> Vector:
        """Return the model as float32 [d] in schema order.

        Raises:
            StorageError: names or shapes differ from the schema.
        """
        parts = []
        for spec, _ in schema.slices():
            found = self.tensors.get(spec.name)
            if found is None or found.shape != spec.shape or found.dtype != np.float32:
                seen = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
                raise StorageError(
                    f"{self.path}: tensor {spec.name!r}: found {seen}; allowed: float32 {list(spec.shape)}; "
                    "give a model of this task, not of another task"
                )
            parts.append(found.ravel())
        unknown = sorted(set(self.tensors) - {spec.name for spec in schema.tensors})
        if unknown:
            raise StorageError(f"{self.path}: found an unknown tensor {unknown[0]!r}; give a model of this task")
        return np.concatenate(parts)

    def predict(self, manifest: Manifest, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Return the outputs, float32 [n, ...], for ``inputs`` [n, ...], which are scaled as in training.

        Raises:
            StorageError: the metadata lack the architecture, or the tensors are of another model.
            TaskError: the inputs have a wrong shape.
        """
        shape = self.sample_shape()
        if inputs.shape[1:] != shape:
            raise TaskError(f"input: found samples of shape {list(inputs.shape[1:])}; allowed: {list(shape)}")
        with torch.inference_mode():
            model = FlatModule(self._make(manifest), torch.device("cpu"))
            model.load(self.vector(model.schema))
            outputs: NDArray[np.float32] = model.module.eval()(torch.from_numpy(inputs)).numpy()
        return outputs

    def sample_shape(self) -> tuple[int, ...]:
        """Return the shape of one input.

        Raises:
            StorageError: the metadata lack it.
        """
        text = self.metadata.get("sample_shape")
        if text is None:
            raise StorageError(f"{self.path}: found no sample_shape in the metadata; give a finished run's file")
        return tuple(json.loads(text))

    def _make(self, manifest: Manifest) -> torch.nn.Module:
        if manifest.task not in DATASETS:
            return load_task(manifest, 1).make_model()
        outputs = int(self.metadata.get("outputs", "0"))
        if outputs < 1:
            raise StorageError(f"{self.path}: found no outputs in the metadata; give a finished run's file")
        return NamedModelTask.build(manifest, self.sample_shape(), outputs)


def evaluated(saved: SavedModel, task: Task, peer_id: int, part: Any, device: str = "cpu") -> dict[str, Any]:
    """Return metric, loss and sample count of a saved model on the data of one peer.

    Raises:
        UsageError: an unknown part.
        TaskError, ShardError, StorageError: task, data and model do not fit each other.
    """
    if part not in {"train", "validation", "test"}:
        raise UsageError(f"--part: found {part!r}; allowed: train, validation, test")
    learner = Learner(task, task.load_shard(peer_id), device=device)
    result = learner.evaluate(saved.vector(learner.schema), part)
    return {
        "model": str(saved.path),
        "part": part,
        result.metric_name: result.metric,
        "loss": result.loss,
        "samples": result.samples,
    }
