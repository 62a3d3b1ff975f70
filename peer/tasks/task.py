"""The interface of a learning problem; built-in tasks and a user's file implement it.

    class Sensors(Task):
        classes = 3
        def make_model(self): return nn.Linear(8, 3)
        def load_shard(self, peer_id): return Shard(train_x=..., train_y=..., test_x=..., test_y=...)

    task = Sensors()

and ``peer testbed --set run.task=sensors.py:task``. The default is classification with cross-entropy and
accuracy; ``kind = "regression"`` has squared error. A subclass may override `loss`, `metric` and `make_optimizer`.

A task with an own training loop has `train`, and mostly `evaluate` and `load_data`:

    class Scans(Task):
        def make_model(self): return UNet()
        def load_data(self, peer_id): return {"train": DataLoader(...), "test": DataLoader(...)}
        def train(self, model, data, budget): ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from coordinator_free_bootstrap.errors import TaskError
from peer.core.metric import Metric
from peer.tasks.budget import Budget, Trained
from peer.tasks.preprocessing import Preprocessing
from peer.tasks.shard import IGNORED, Kind, Shard

OPTIONAL = ("load_data", "train", "evaluate", "losses", "count", "subset")


class Task(ABC):
    """A data set, a model, a loss and a metric; it has `make_model`, and `load_shard` or `load_data`.

    Attributes:
        kind: of the targets; it decides the default loss and metric: classification (one label of several for each sample, or
            for each element of it), multilabel (several labels, each yes or no), regression.
        classes: number of labels; None: the range of labels is not checked.
        class_axis: axis of a classifier's outputs that has the classes: 1 as in torch, -1 for [samples, tokens, classes].
        class_names: name of each label, which `peer predict` prints; None: the numbers are printed.
        preprocessing: how `load_shard` scales raw inputs, if it is the same for all peers, else it stands in the `Shard`.
            Model files hold it and `peer predict` applies it. None: not declared, so `peer predict` refuses raw inputs.
            "shared", or a `Preprocessing` with ``shared``: raw rows are scaled by mean and deviation of the training samples of
            all peers, on which they agree before round 0 (docs/data.md).
        facts: what else all peers must have in common, as text by name: units, the tokenizer. Neighbors refuse other facts.
        more_metrics: name and direction of what `measure` returns beside the metric.
        metric_name: name of the result of `metric`.
        higher_is_better: whether a larger `metric` is better, for reports.
        metric_is_share: whether its values are in [0, 1]; tables of experiments then show percent.

    >>> import numpy as np, peer, torch
    >>> class Circle(Task):  # is a point inside of a circle?
    ...     classes = 2
    ...     def make_model(self):
    ...         return torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    ...     def load_shard(self, peer_id):
    ...         x = np.random.default_rng(peer_id).uniform(-1, 1, (50, 2))
    ...         y = ((x**2).sum(1) < 0.5).astype(int)
    ...         return peer.Shard(train_x=x[:40], train_y=y[:40], test_x=x[40:], test_y=y[40:])
    >>> graph = peer.Graph.make("line", peers=2, run={"rounds": 1})
    >>> peer.simulate(graph, Circle(), progress=False).metrics["rounds"]
    1
    """

    kind: Kind = "classification"
    classes: int | None = None
    class_axis: int = 1
    class_names: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = None
    more_metrics: tuple[Metric, ...] = ()
    facts: Mapping[str, str] = MappingProxyType({})

    @property
    def metric_name(self) -> str:
        """Name of the result of `metric`."""
        return "mse" if self.kind == "regression" else "accuracy"

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger `metric` is better: true for accuracy, false for an error."""
        return self.kind != "regression"

    @property
    def metric_is_share(self) -> bool:
        """Whether the values of `metric` are in [0, 1]: true for the accuracy."""
        return self.metric_name == "accuracy"

    @property
    def needs_all_outputs(self) -> bool:
        """Whether a metric needs the outputs for a whole set at once: an own `metric`, or `more_metrics`.

        Otherwise an evaluation keeps two numbers of each sample, however large its outputs are.
        """
        return bool(self.more_metrics) or type(self).metric is not Task.metric

    @property
    def can_try(self) -> bool:
        """Whether `train` may be called before the run, to try the task: not where the loop is that of a running program."""
        return True

    def reported(self) -> Metric:
        """Return name, direction and format of `metric`, which logs, files and tables take from here."""
        return Metric(self.metric_name, self.higher_is_better, self.metric_is_share)

    @abstractmethod
    def make_model(self) -> nn.Module:
        """Return a new model with float32 parameters, initialized from torch's global generator.

        Every call must return the same names and shapes; peers compare them in the handshake.
        """

    def load_shard(self, peer_id: int) -> Shard:
        """Return the data of one peer, 0-based, as arrays."""
        raise NotImplementedError

    def load_data(self, peer_id: int) -> Any:
        """Return the data of one peer, 0-based, for an own `train`: anything; by default the arrays of `load_shard`.

        Data sets or loaders by part, ``{"train": ..., "validation": ..., "test": ...}``, whose batches are pairs of inputs and
        targets, can do what arrays can: `loss` and `metric` evaluate them. Other data need an own `evaluate` and `count`.
        """
        return self.load_shard(peer_id)

    def train(self, model: nn.Module, data: Any, budget: Budget) -> Trained | None:
        """Train a model in place, as long as the budget says; optional: without it, the built-in loop trains.

        The module is the same in every call and has the values to start from; do not keep what depends on them beyond the call,
        except by ``budget.keep``. What the values are afterwards is this peer's model of the round.

        Args:
            model: in training mode, on the device of the peer; float32.
            data: as `load_data` returned them; of some algorithms a part of the training samples.
            budget: of the round.
        """
        raise NotImplementedError

    def evaluate(self, model: nn.Module, data: Any) -> Mapping[str, float]:
        """Return the values of `metric_name` and `more_metrics` on the test samples, by name, and maybe ``loss``.

        Optional: without it, `loss` and `metric` evaluate. Values for validation samples have the prefix ``validation_``.
        The model is in evaluation mode; gradients are off.
        """
        raise NotImplementedError

    def losses(self, model: nn.Module, data: Any) -> Tensor:
        """Return the loss of each training sample, float32 [n], always in the same order; the model is in evaluation mode.

        Optional: algorithms that assign samples or peers to clusters ask for it. Without it, `loss` gives them, where the data
        are arrays, data sets or loaders.
        """
        raise NotImplementedError

    def count(self, data: Any) -> int:
        """Return the number of training samples; optional where data are arrays, data sets or loaders."""
        raise NotImplementedError

    def subset(self, data: Any, indices: NDArray[np.int64]) -> Any:
        """Return data whose training samples are those with these indices, int64 [m], in the order of `losses`, some maybe twice.

        Optional where data are arrays, data sets or loaders.
        """
        raise NotImplementedError

    @property
    def own(self) -> frozenset[str]:
        """Which of the optional methods about training and data this task has."""
        return frozenset(name for name in OPTIONAL if getattr(type(self), name) is not getattr(Task, name))

    def encode(self, rows: Any, preprocessing: Preprocessing | None) -> Any:
        """Return inputs of the model [n, ...] for raw samples, as `load_shard` makes them; `peer predict` calls an own one.

        Override it where raw samples become inputs by more than `preprocessing`: texts, missing values, windows of a log.

        Args:
            rows: of a table a list of dicts, the text of each cell by column; of JSON lines a list of their objects; of pictures
                their bytes [n, channels, height, width]; else the array of the file, or a dict of its arrays by name.
            preprocessing: of the peer that trained the model; None: neither task nor shard declared one.
        """
        raise NotImplementedError

    @property
    def encodes(self) -> bool:
        """Whether the task has an own `encode`."""
        return type(self).encode is not Task.encode

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample, float32 [n], of ``outputs`` [n, ...] against ``targets`` [n, ...].

        The default is the cross-entropy (of each label for multilabel) or the squared error, its mean over a sample's elements.
        """
        if self.kind == "classification":
            losses = functional.cross_entropy(outputs.movedim(self.class_axis, 1), targets, reduction="none")
            return _mean_of_counted(losses, targets)
        if self.kind == "multilabel":
            return functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(1)
        return _squared_error(outputs, targets)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the score of each sample, float32 [n]: the share of its labels that are right, or the squared error."""
        if self.kind == "classification":
            return _mean_of_counted((outputs.argmax(self.class_axis) == targets).float(), targets)
        if self.kind == "multilabel":
            return ((outputs > 0) == (targets > 0.5)).float().mean(1)
        return _squared_error(outputs, targets)

    def metric(self, outputs: Tensor, targets: Tensor) -> float:
        """Return one number for a whole set: by default the mean of `score`.

        ``outputs`` are those of the model: those of a classifier are probabilities if an algorithm mixes predictions.
        """
        return float(self.score(outputs, targets).double().mean())

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, float]:
        """Return the values of `more_metrics` for a whole set, by name."""
        return {}

    def measured_more(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return the result of `measure`, checked.

        Raises:
            TaskError: its names are not those of `more_metrics`, or a value is no number.
        """
        if not self.more_metrics:
            return {}
        measured, names = self.measure(outputs, targets), [metric.name for metric in self.more_metrics]
        if not isinstance(measured, Mapping) or sorted(measured) != sorted(names):
            shown = list(measured) if isinstance(measured, Mapping) else type(measured).__name__
            raise TaskError(f"measure: expected a dict with the names of more_metrics, {names}, got {shown}")
        return {name: float(measured[name]) for name in names}

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return probabilities for a model's outputs, of the same shape; in regression the outputs."""
        if self.kind == "classification":
            return outputs.softmax(self.class_axis)
        return outputs.sigmoid() if self.kind == "multilabel" else outputs

    def outputs_for(self, probabilities: Tensor) -> Tensor:
        """Return outputs for which `probabilities` would give these (mixed ones, as in FedEM); in regression they are equal."""
        if self.kind == "classification":
            return probabilities.clamp_min(1e-30).log()
        return probabilities.logit(1e-7) if self.kind == "multilabel" else probabilities

    def make_optimizer(self, parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer | None:
        """Return an optimizer for one local training, or None for the optimizer of the manifest."""
        return None


def _mean_of_counted(values: Tensor, labels: Tensor) -> Tensor:
    """Return each sample's mean, float32 [n], of values [n, ...] over the elements whose label counts; without any, 0."""
    if labels.dim() == 1:
        return values
    counts = (labels != IGNORED).flatten(1)
    return (values.flatten(1) * counts).sum(1) / counts.sum(1).clamp_min(1)


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of each sample, averaged over its outputs, float32 [n].

    Raises:
        TaskError: there are more or fewer outputs than targets; they must not broadcast.
    """
    if outputs.numel() != targets.numel():
        raise TaskError(
            f"model: expected as many outputs as targets, got outputs of shape {list(outputs.shape)} for targets of "
            f"shape {list(targets.shape)}. Correct the last layer, or give the task a loss."
        )
    errors = outputs.reshape(len(outputs), -1) - targets.reshape(len(targets), -1)
    return errors.square().mean(1)
