"""What a model file says beside its tensors, and several models as one file."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from coordinator_free_bootstrap import Manifest, canonical_json
from peer.core.averaging import Vector
from peer.core.schema import Schema, TensorSpec
from peer.learning.learner import TorchLearner

BEST, CLUSTER, SENT = "best_model", "cluster", "sent"  # roles, beside PERSONALIZED


def model_metadata(learner: TorchLearner, manifest: Manifest, peers: int) -> dict[str, str]:
    """Return the metadata of a model file; `peer evaluate` and `peer predict` need only that file."""
    task, shard = learner.task, learner.shard
    preprocessing = (shard.preprocessing if shard else None) or task.preprocessing
    names = (shard.class_names if shard else None) or task.class_names
    about = {
        "manifest": canonical_json(manifest),
        "peers": str(peers),
        "kind": task.kind,
        "class_axis": str(task.class_axis),
        "metric": task.metric_name,
        "metric_better": "higher" if task.higher_is_better else "lower",
        "frozen_digest": learner.frozen_digest,
    }
    if (shape := learner.sample_shape) is not None:
        about |= {
            "sample_shape": json.dumps(shape),
            "input_dtype": learner.input_dtype,
            "outputs": str(learner.outputs),
        }
    if preprocessing is not None:
        about["preprocessing"] = preprocessing.to_json()
    if names is not None:
        about["class_names"] = json.dumps(list(names))
    return about


def together(models: Sequence[Vector], schema: Schema) -> tuple[Vector, Schema]:
    """Return several models as one vector, with the names that a ``torch.nn.ModuleList`` of them has: 0.weight, 1.weight, ..."""
    specs = (
        TensorSpec(f"{number}.{spec.name}", spec.shape, spec.role)
        for number in range(len(models))
        for spec in schema.tensors
    )
    return np.concatenate(models), Schema(tuple(specs))
