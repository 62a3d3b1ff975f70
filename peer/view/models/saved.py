"""Model files: metadata, vector, evaluation and predictions of a saved model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coordinator_free_bootstrap import Manifest, parse_manifest
from coordinator_free_bootstrap.errors import Option, ShardError, StorageError, TaskError, UsageError
from coordinator_free_bootstrap.user_file import USER_ERRORS
from peer.algorithms.predictor import PERSONALIZED, Predictor
from peer.core.averaging import Vector
from peer.core.schema import Schema
from peer.learning.bench import EVALUATION_BATCH
from peer.learning.combined import Combined
from peer.learning.flat import FlatModule, seeded
from peer.learning.learner import TorchLearner
from peer.learning.model_about import BEST
from peer.learning.samples import call
from peer.store.model_file import load_model
from peer.tasks.arrays import Inputs, by_name, count, each, sample_shape
from peer.tasks.loading import find_task_file, load_task
from peer.tasks.preprocessing import Preprocessing
from peer.tasks.process_settings import users_settings
from peer.tasks.shard import Shard
from peer.tasks.sources import source_named
from peer.tasks.task import Task
from peer.tasks.user_code import data_of, user_code
from peer.view.models.inputs import PredictionInputs, checked_inputs, read_inputs, read_named_inputs, read_raw


@dataclass(frozen=True)
class SavedModel:
    """A model file: named tensors and metadata. It may hold several models that predict together (``weights``)."""

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

    @classmethod
    def chosen(cls, path: Path, *, best: bool = False) -> SavedModel:
        """Read a model file; or of a state directory, or with ``best``, the one of that name beside it.

        Raises:
            StorageError: as `read`; or the peer has no best model.
        """
        folder = path / "models" if path.is_dir() else path.parent
        if best:
            return cls.read(best_in(folder))
        return cls.read(folder / "personalized.safetensors" if path.is_dir() else path)

    def manifest(self) -> Manifest | None:
        """Return the manifest of the run that trained the model, or None if the metadata lack it."""
        return parse_manifest(self._json("manifest"), str(self.path)) if "manifest" in self.metadata else None

    def known_manifest(self) -> Manifest:
        """Return the manifest of the run that trained the model.

        Raises:
            StorageError: the metadata lack it.
        """
        if (found := self.manifest()) is None:
            raise StorageError(
                f"{self.path}: metadata: expected a manifest, got none. Give a finished run's file, or name its task."
            )
        return found

    def located(self) -> Manifest:
        """Return the manifest with the present path of the task file, which may have moved with the run's folder.

        Raises:
            StorageError: the metadata lack the manifest.
            TaskError: the task file is not found.
        """
        manifest = self.known_manifest()
        return manifest.model_copy(update={"task": find_task_file(manifest.task, self.path)})

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of the models in the file that predict together; () of a file with one model."""
        return tuple(self._json("weights")) if "weights" in self.metadata else ()

    def parts(self) -> Sequence[Mapping[str, NDArray[np.float32]]]:
        """Return the named tensors of each model in the file."""
        if not self.weights:
            return [self.tensors]
        parts: list[dict[str, NDArray[np.float32]]] = [{} for _ in self.weights]
        for name, tensor in self.tensors.items():
            number, _, rest = name.partition(".")
            if not number.isdigit() or int(number) >= len(parts):
                raise StorageError(f"{self.path}: expected only tensors of {len(parts)} models, got {name!r}")
            parts[int(number)][rest] = tensor
        return parts

    def vectors(self, schema: Schema) -> list[Vector]:
        """Return each model in the file as float32 [d] in schema order.

        Raises:
            StorageError: names or shapes differ from the schema, or a value is NaN or Inf.
        """
        return [self._vector(part, schema) for part in self.parts()]

    def vector(self, schema: Schema) -> Vector:
        """Return the only model in the file, as `vectors` does."""
        return self._vector(self.tensors, schema)

    def _vector(self, tensors: Mapping[str, NDArray[np.float32]], schema: Schema) -> Vector:
        self.check_whole()
        names, parts = {spec.name for spec in schema.tensors}, []
        for spec, _ in schema.slices():
            found = tensors.get(spec.name)
            if found is None or found.shape != spec.shape or found.dtype != np.float32:
                seen = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
                raise StorageError(
                    f"{self.path}: tensor {spec.name!r}: expected float32 {list(spec.shape)}, got {seen}. Give a "
                    "model of this task, not of another task."
                )
            if not np.isfinite(found).all():
                raise StorageError(
                    f"{self.path}: tensor {spec.name!r}: expected finite numbers, got NaN or Inf, so the run "
                    "diverged. Train again with a smaller learning rate."
                )
            parts.append(found.ravel())
        if unknown := sorted(tensors.keys() - names):
            raise StorageError(
                f"{self.path}: expected only tensors of this task's model, got {unknown[0]!r}. Give a file as the run wrote it."
            )
        return np.concatenate(parts)

    def predict(self, manifest: Manifest, inputs: Inputs) -> NDArray[np.float32]:
        """Return the outputs, float32 [n, ...], for ``inputs`` [n, ...], or several by name, preprocessed as in training.

        Raises:
            StorageError: the metadata lack the architecture, or the tensors are of another model.
            TaskError: the inputs have a wrong shape, or the model fails.
        """
        shape = self._json("sample_shape")
        if sample_shape(inputs) != shape:
            raise TaskError(f"input: expected samples of shape {shape}, got {sample_shape(inputs)}")
        module = self.module(manifest)
        # A model may draw random numbers in evaluation, too.
        with users_settings(), torch.inference_mode(), seeded(0, torch.device("cpu")):
            try:
                size = EVALUATION_BATCH["cpu"]
                batches = (
                    each(lambda array: torch.from_numpy(array[start : start + size]), inputs)  # noqa: B023
                    for start in range(0, count(inputs), size)
                )
                outputs: NDArray[np.float32] = torch.cat([call(module, batch) for batch in batches]).numpy()
            except USER_ERRORS as error:
                given = ", ".join(
                    f"{name} {array.dtype} inputs {list(array.shape)} from {array.min():g} to {array.max():g}".strip()
                    for name, array in by_name(inputs).items()
                )
                raise TaskError(
                    f"model: {type(error).__name__}: {error}, for {given}. Give inputs as in training."
                ) from error
        if not np.isfinite(outputs).all():
            place = int(np.argwhere(~np.isfinite(outputs))[0, 0])
            raise TaskError(
                f"model: expected finite outputs, got NaN or Inf for sample {place}. Give inputs as large as those in training."
            )
        return outputs

    def module(self, manifest: Manifest, task: Task | None = None) -> torch.nn.Module:
        """Return the model on the CPU, in evaluation mode; ``task`` makes it in place of the manifest's task.

        Of several models that predict together it is a `Combined`.

        Raises:
            StorageError: the metadata lack the architecture, or the tensors are of another model.
            TaskError: the task cannot be loaded.
        """
        made = [self._module(part, manifest, task) for part in self.parts()]
        if not self.weights:
            return made[0]
        return Combined(made, self.metadata["predictor"], self.weights, self.kind(), self.class_axis()).eval()

    def _module(
        self, tensors: Mapping[str, NDArray[np.float32]], manifest: Manifest, task: Task | None
    ) -> torch.nn.Module:
        self.check_whole()
        cpu = torch.device("cpu")
        make = task.make_model if task is not None else self._maker(manifest)
        # Parameters that are not trained are not in the file; `TorchLearner` makes them from this seed too.
        with user_code("make_model"), seeded(0, cpu):
            model = FlatModule(make(), cpu, frozenset(tensors))
        self.check_frozen(model.frozen_digest)
        model.load(self._vector(tensors, model.schema))
        return model.module.eval()

    def check_whole(self) -> None:
        """Check that no tensor of the model is missing because it never leaves its peer.

        Raises:
            StorageError: the file has only what travels.
        """
        if "private" in self.metadata:
            private, count = self._json("private"), len(self.tensors)
            raise StorageError(
                f"{self.path}: expected the {count + len(private)} tensors of the model, got {count}: "
                f"{', '.join(map(str, private[:3]))}{', ...' if len(private) > 3 else ''} never leave the peer "
                "(run.private_parameters). Give the personalized model, which has all."
            )

    def check_frozen(self, digest: str) -> None:
        """Compare the digest of the frozen weights that the model was trained with.

        Raises:
            StorageError: they differ, or the metadata lack it.
        """
        trained = self._text("frozen_digest")
        if trained != digest:
            raise StorageError(
                f"{self.path}: trained with frozen weights of digest {trained!r}; the model that the task makes here has "
                f"{digest!r}. Give this machine the same file of the base model, model code and library versions."
            )

    def predictions(self, manifest: Manifest, inputs: Inputs) -> list[dict[str, Any]]:
        """Return for each of ``inputs`` [n, ...] the class and its probability; in regression the value, or a list.

        Of a multilabel task it is a list with the probability of each label.

        Raises:
            StorageError, TaskError: as `predict`; or the outputs are not those of a classifier.
        """
        outputs = self.predict(manifest, inputs)
        if self.kind() == "multilabel" and not self.weights:
            outputs = torch.from_numpy(outputs).sigmoid().numpy()
        if self.kind() != "classification":
            return [{"value": row.item() if row.size == 1 else row.tolist()} for row in outputs]
        if outputs.ndim != 2:
            raise TaskError(
                "model: expected outputs [samples, classes], one class for each sample, got shape "
                f"{list(outputs.shape)}. For a class of each element write the model with `peer export`, and use it "
                "in PyTorch or with ONNX."
            )
        names = self._json("class_names") if "class_names" in self.metadata else list(range(outputs.shape[1]))
        if not isinstance(names, list) or len(names) != outputs.shape[1]:
            raise StorageError(
                f"{self.path}: class_names: expected {outputs.shape[1]}, as the model's classes, got {names}"
            )
        probabilities = outputs.astype(np.float64)
        if not self.weights:  # several models give probabilities already
            powers = np.exp(probabilities - probabilities.max(1, keepdims=True))
            probabilities = powers / powers.sum(1, keepdims=True)
        return [{"class": names[int(p.argmax())], "probability": float(p.max())} for p in probabilities]

    def other_predictor(self) -> str | None:
        """Return the predictor of the run's final metric, if it is not this model; None if it is, or is not known."""
        predictor, role = self.metadata.get("predictor"), self.metadata.get("role")
        if role == BEST:
            return "the model after the last round"
        if predictor is None or self.weights or (predictor, role) == (PERSONALIZED, PERSONALIZED):
            return None
        return PERSONALIZED.replace("_", " ") if predictor == PERSONALIZED else f"{predictor} of the cluster models"

    @property
    def best(self) -> str | None:
        """Which round the best model is of, as a phrase; None of another model."""
        if self.role != BEST:
            return None
        index, rounds = self._json("best_round"), self.known_manifest().rounds
        when = "after the final phase" if index == rounds else f"after round {index + 1} of {rounds}"
        metric, value = self.metadata.get("metric", "metric"), self._json("metric_validation")
        return f"the best model is that {when}, by {metric} {value:.4g} on the validation samples"

    @property
    def role(self) -> str:
        """The first word of what this model is: "cluster" of one that travels, else "personalized_model" or "best_model"."""
        return self.metadata.get("role", "").partition(" ")[0]

    def kind(self) -> str:
        """Return the kind of the task's targets.

        Raises:
            StorageError: the metadata lack it.
        """
        return self._text("kind")

    def class_axis(self) -> int:
        """Return the axis of a classifier's outputs that has the classes.

        Raises:
            StorageError: the metadata lack it.
        """
        return -1 if self._text("class_axis") == "-1" else 1

    @property
    def several_inputs(self) -> bool:
        """Whether the model takes several inputs by name."""
        return self.metadata.get("sample_shape", "").startswith("{")

    def sample_shape(self) -> tuple[int, ...]:
        """Return the shape of one input.

        Raises:
            StorageError: the metadata lack it.
        """
        shape = self._json("sample_shape")
        if not isinstance(shape, list) or not all(isinstance(n, int) and n > 0 for n in shape):
            raise StorageError(f"{self.path}: sample_shape: expected a list of sizes, got {shape}")
        return tuple(shape)

    def input_dtype(self) -> str:
        """Return the dtype of the inputs: float32, or int64 for models that embed tokens.

        Raises:
            StorageError: the metadata lack it.
        """
        found = self._text("input_dtype")
        if found not in {"float32", "int64"}:
            raise StorageError(f"{self.path}: input_dtype: expected float32 or int64, got {found!r}")
        return found

    def preprocessing(self, manifest: Manifest) -> Preprocessing | None:
        """Return how raw samples become inputs: from the metadata, else from the user's task; None if not declared."""
        if "preprocessing" in self.metadata:
            try:
                found = Preprocessing.from_json(self.metadata["preprocessing"])
            except TaskError as error:
                raise StorageError(f"{self.path}: metadata: {error}. Give a finished run's file.") from error
            if found.is_pending:
                raise StorageError(
                    f"{self.path}: expected mean and deviation of all sites, got a model of a peer that ended before the "
                    "peers had agreed on them. Give a finished run's file."
                )
            return found
        return None if source_named(manifest.task) is not None else load_task(manifest, 1).preprocessing

    def read_inputs(self, manifest: Manifest, path: Path, *, preprocessed: bool) -> PredictionInputs:
        """Return the samples of a file as inputs of the model; ``preprocessed``: they are inputs already.

        Raises:
            StorageError: the metadata lack shape, dtype or preprocessing.
            TaskError: the samples are wrong.
        """
        if not preprocessed and source_named(manifest.task) is None and (task := load_task(manifest, 1)).encodes:
            return self._encoded(task, path, self.preprocessing(manifest))
        if self.several_inputs:
            return self._read_named(path)
        preprocessing = None if preprocessed else self.preprocessing(manifest)
        if preprocessing is None and not preprocessed:
            declare = f"Set `preprocessing` in {manifest.task} and " if source_named(manifest.task) is None else ""
            raise StorageError(
                f"{self.path}: metadata: expected preprocessing, without which raw samples cannot be scaled as in training, got "
                f"none. {declare}train again, or give {Option('preprocessed')} if the samples are inputs of the model already."
            )
        return read_inputs(path, self.sample_shape(), self.input_dtype(), preprocessing)

    def _encoded(self, task: Task, path: Path, preprocessing: Preprocessing | None) -> PredictionInputs:
        """Return the samples of a file as the task's own `encode` makes inputs of them."""
        shape = self._json("sample_shape")
        dtype = self._json("input_dtype") if self.several_inputs else self.input_dtype()
        raw = read_raw(path, shape)
        with user_code(f"encode({path.name})"):
            found = task.encode(raw, preprocessing)
        return checked_inputs(found, shape, dtype)

    def _read_named(self, path: Path) -> PredictionInputs:
        shapes, dtypes = self._json("sample_shape"), self._json("input_dtype")
        return read_named_inputs(path, shapes, dtypes)

    def check_shard(self, manifest: Manifest, task: Task, shard: Shard) -> Shard:
        """Return a shard with inputs as this model was trained on, where its data were scaled by other numbers.

        Raises:
            ShardError: the columns or the classes of the shard differ, or are in another order.
        """
        known, own = self.preprocessing(manifest), shard.preprocessing or task.preprocessing
        names = shard.class_names or task.class_names
        pairs = [
            ("columns", None if known is None else known.columns, None if own is None else own.columns),
            ("classes", self._json("class_names") if "class_names" in self.metadata else None, names),
        ]
        if isinstance(shard.train_x, Mapping):
            return shard
        for what, trained, found in pairs:
            if trained is not None and found is not None and list(trained) != list(found):
                raise ShardError(
                    f"shard: expected the {what} {', '.join(trained)}, with which {self.path} was trained, got "
                    f"{', '.join(found)}. Give data with the same {what} in this order."
                )
        if known is None or own is None:
            return shard
        parts = {name: getattr(shard, name) for name in ("train_x", "val_x", "test_x")}
        scaled: dict[str, Any] = {
            name: x if np.issubdtype(x.dtype, np.integer) else known.replacing(own, x)  # integers are scaled by batch
            for name, x in parts.items()
            if x is not None
        }
        return replace(shard, preprocessing=known, **scaled)

    def _maker(self, manifest: Manifest) -> Callable[[], torch.nn.Module]:
        if (source := source_named(manifest.task)) is None:
            return load_task(manifest, 1).make_model
        outputs = self._json("outputs")
        if not isinstance(outputs, int) or outputs < 1:
            raise StorageError(f"{self.path}: outputs: expected the number of outputs, got {outputs}")
        return partial(source.make_model, manifest, self.sample_shape(), outputs)

    def _text(self, key: str) -> str:
        if key not in self.metadata:
            raise StorageError(f"{self.path}: metadata: expected {key}, got none. Give a finished run's file.")
        return self.metadata[key]

    def _json(self, key: str) -> Any:
        text = self._text(key)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise StorageError(f"{self.path}: {key}: expected JSON, got {text[:80]!r}") from error


def best_in(folder: Path) -> Path:
    """Return the file of the best model in a folder of models.

    Raises:
        StorageError: there is none.
    """
    path = folder / "best.safetensors"
    if not path.is_file():
        raise StorageError(
            f"{Option('best')}: expected {path}, got no such file: a peer chooses its best round by the metric on its validation "
            "samples, and this one has none, or has completed no round with an evaluation. Give its shard validation samples "
            f"(val_x, val_y) and run again, or leave out {Option('best')}."
        )
    return path


def evaluated(
    saved: SavedModel, manifest: Manifest, task: Task, peer_id: int, part: Any, device: str = "cpu"
) -> dict[str, Any]:
    """Return metric, loss and sample count of a saved model on the data of one peer.

    Raises:
        UsageError: an unknown part.
        TaskError, ShardError, StorageError: task, data and model do not fit each other.
    """
    if part not in {"train", "validation", "test"}:
        raise UsageError(f"{Option('part')}: expected one of train, validation, test, got {part!r}")
    data = data_of(task, peer_id)
    data = saved.check_shard(manifest, task, data) if isinstance(data, Shard) else data
    learner = TorchLearner(task, data, device=device)
    saved.check_frozen(learner.frozen_digest)
    how = saved.metadata["predictor"] if saved.weights else PERSONALIZED
    result = Predictor(tuple(saved.vectors(learner.schema)), how, saved.weights).evaluate(learner, part)
    return {
        "model": str(saved.path),
        "part": part,
        result.metric_name: result.metric,
        "loss": result.loss,
        "samples": result.samples,
    }
