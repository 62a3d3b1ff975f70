"""Use a saved model without its peer: what its file says about the task, its vector, and its predictions."""

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
from peer.tasks.loading import load_task
from peer.tasks.task import Task


def model_metadata(learner: Learner, manifest: Manifest, peers: int) -> dict[str, str]:
    """Return what a model file should say so that `peer evaluate` and `peer predict` need only the file."""
    return {
        "manifest": canonical_json(manifest),
        "peers": str(peers),
        "sample_shape": json.dumps(list(learner.shard.train_x.shape[1:])),
        "kind": learner.task.kind,
        "outputs": str(learner.predict(learner.initial_model(0), learner.shard.train_x[:1]).shape[-1]),
    }


@dataclass(frozen=True)
class SavedModel:
    """A model file: named tensors and the words that stand beside them."""

    path: Path
    tensors: Mapping[str, NDArray[np.float32]]
    metadata: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> SavedModel:
        """Read a file.

        Raises:
            StorageError: the file is missing or no safetensors file.
        """
        return cls(path, *load_model(path))

    def manifest(self) -> Manifest | None:
        """Return the manifest of the run that trained the model, or None if the file does not tell."""
        text = self.metadata.get("manifest")
        return None if text is None else parse_manifest(json.loads(text), str(self.path))

    def vector(self, schema: Schema) -> Vector:
        """Return the model as float32 [d] in schema order.

        Raises:
            StorageError: names or shapes are not those of the task's model.
        """
        parts = []
        for spec, _ in schema.slices():
            found = self.tensors.get(spec.name)
            if found is None or found.shape != spec.shape or found.dtype != np.float32:
                seen = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
                raise StorageError(
                    f"{self.path}: tensor {spec.name!r}: found {seen}, the task's model has float32 {list(spec.shape)}; "
                    "is it the model of another task?"
                )
            parts.append(found.ravel())
        unknown = sorted(set(self.tensors) - {spec.name for spec in schema.tensors})
        if unknown:
            raise StorageError(f"{self.path}: tensor {unknown[0]!r} is not in the task's model")
        return np.concatenate(parts)

    def predict(self, manifest: Manifest, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Return the outputs, float32 [n, ...], for ``inputs`` [n, ...] that are scaled as the task's own.

        Raises:
            StorageError: the file does not tell its architecture, or is of another model.
            TaskError: the inputs do not fit.
        """
        shape = self.sample_shape()
        if inputs.shape[1:] != shape:
            raise TaskError(f"input: samples have shape {list(inputs.shape[1:])}, the model takes {list(shape)}")
        with torch.inference_mode():
            model = FlatModule(self._make(manifest), torch.device("cpu"))
            model.load(self.vector(model.schema))
            outputs: NDArray[np.float32] = model.module.eval()(torch.from_numpy(inputs)).numpy()
        return outputs

    def sample_shape(self) -> tuple[int, ...]:
        """Return the shape of one input.

        Raises:
            StorageError: the file does not tell.
        """
        text = self.metadata.get("sample_shape")
        if text is None:
            raise StorageError(f"{self.path} lacks sample_shape in its metadata; it was not written by a finished run")
        return tuple(json.loads(text))

    def _make(self, manifest: Manifest) -> torch.nn.Module:
        if ":" in manifest.task:
            return load_task(manifest, 1).make_model()
        outputs = int(self.metadata.get("outputs", "0"))
        if outputs < 1:
            raise StorageError(f"{self.path} lacks the number of outputs in its metadata")
        return NamedModelTask.build(manifest, self.sample_shape(), outputs)


def evaluated(saved: SavedModel, task: Task, peer_id: int, part: Any, device: str = "cpu") -> dict[str, Any]:
    """Return metric, loss and count of a saved model on one peer's data.

    Raises:
        UsageError: an unknown part.
        TaskError, ShardError, StorageError: task, data or model do not fit.
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
