"""Describe a task and a shard as a `Meaning`, which neighbors compare before they average models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from coordinator_free_bootstrap.meaning import CONSTANT, OWN, RAW, SCALED, Meaning
from coordinator_free_bootstrap.user_file import digest_of_code
from peer.core.schema import Schema
from peer.tasks.arrays import Inputs, is_stored
from peer.tasks.columns import DATE
from peer.tasks.dealt import DealtTask
from peer.tasks.preprocessing import Preprocessing
from peer.tasks.shard import Shard
from peer.tasks.task import Task

PATTERN_MAX = 4096  # inputs of which the record says one by one whether they are scaled
TENSORS_MAX = 256  # that the record names


def meaning_of(task: Task, shard: Shard | None, schema: Schema, input_dtype: str, shape: Any) -> Meaning:
    """Return what the numbers of a model mean for a task and a checked shard.

    Args:
        task: as loaded.
        shard: its inputs are read where they are in memory, to recognize constant columns; None: other data, of an own loop.
        schema: of a model.
        input_dtype: of what the model gets; JSON by name for several inputs; "" if it is not known.
        shape: of one sample; None if it is not known.
    """
    reported = task.reported()
    return Meaning(
        kind=task.kind,
        target=None if shard is None else shard.metadata.get("target"),
        classes=_classes(task, shard),
        targets=_form(task, shard),
        inputs=json.loads(input_dtype) if input_dtype.startswith("{") else input_dtype or None,
        facts=dict(task.facts),
        metric=f"{reported.name}, {'higher' if reported.higher_is_better else 'lower'} is better",
        more_metrics=tuple(metric.name for metric in task.more_metrics),
        loss="own" if type(task).loss is not Task.loss else "default",
        shape=shape,
        task_file=digest_of_code(type(task)),
        tensors=tuple(f"{tensor.name} {list(tensor.shape)}" for tensor in schema.tensors[:TENSORS_MAX]),
        versions=f"torch {torch.__version__}, numpy {np.__version__}",
        open=task.open_options if isinstance(task, DealtTask) else (),
        **_scaling(task, shard),
    )


def _classes(task: Task, shard: Shard | None) -> tuple[str, ...] | int | None:
    if task.kind == "regression":
        return None
    names = (shard.class_names if shard else None) or task.class_names
    if isinstance(task, DealtTask):  # a split may rename the labels of some peers on purpose; the data set is one
        names = task.pool_names or names
    if names is not None and task.classes in (None, len(names)):
        return tuple(map(str, names))
    return None if task.classes is None else int(task.classes)


def _form(task: Task, shard: Shard | None) -> str:
    """Return the form of one target; labels of elements may have other sizes at other peers."""
    if shard is None:
        return OWN
    shape = list(shard.train_y.shape[1:])
    if task.kind == "classification":
        return "one label" if not shape else f"labels with {len(shape)} axes"
    return f"{task.kind} {shape}"


def _scaling(task: Task, shard: Shard | None) -> dict[str, Any]:
    """Return the fields about preprocessing; numbers of mean and deviation only where the task has them for all peers."""
    own, common = (shard.preprocessing if shard else None), task.preprocessing
    used = own or common
    if used is None:
        return {}
    if used.shared is not None:
        least = f"mean and deviation of all sites, each of {used.shared.samples_min} samples or more"
        return {**_columns(used), "divisor": used.divisor, "scaling": least}
    centered = bool(np.any(used.mean) or np.any(np.not_equal(used.std, 1.0)))
    fields = {
        **_columns(used),
        "divisor": used.divisor,
        "scaling": "mean and deviation" if centered else "none",
    }
    if own is None:
        return fields | {"mean": used.mean, "std": used.std}
    assert shard is not None  # it has the scaling
    return fields | {"scaled": _pattern(used, shard.train_x) if centered else None}


def _columns(used: Preprocessing) -> dict[str, Any]:
    """Return the names of the inputs, and of the table's columns that they are made of: the same, unless columns are texts."""
    if used.columns is None:
        return {}
    if used.table is None:
        return {"columns": used.columns, "read": used.columns}
    kinds = dict(used.table.kinds)
    columns = tuple(f"{name} (date)" if kinds.get(name) == DATE else name for name in used.columns)
    return {"columns": columns, "read": tuple(kinds)}


def _pattern(used: Preprocessing, x: Inputs) -> str | None:
    """Return a letter for each feature or channel; None where the numbers are not one for each."""
    if isinstance(x, Mapping):
        return None
    size = int(x.shape[1])
    mean, std = np.broadcast_arrays(used.mean, used.std)
    if mean.shape != (size, *[1] * (len(x.shape) - 2)) or size > PATTERN_MAX:
        return None
    scaled = (mean.ravel() != 0) | (std.ravel() != 1)
    varies = np.zeros(size, bool) if is_stored(x) else np.array([np.ptp(x[:, i]) > 0 for i in range(size)])
    return "".join(SCALED if s else RAW if v else CONSTANT for s, v in zip(scaled, varies, strict=True))
