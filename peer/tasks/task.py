"""The interface of a learning problem; built-in tasks and a user's file implement it.

    class Sensors(Task):
        classes = 3
        def make_model(self): return nn.Linear(8, 3)
        def load_shard(self, peer_id): return Shard(train_x=..., train_y=..., test_x=..., test_y=...)

    task = Sensors()

and ``peer testbed --task sensors.py:task``. The default is classification with cross-entropy and
accuracy; ``kind = "regression"`` has squared error. A subclass may override `loss`, `metric` and `make_optimizer`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from peer.core.metric import Metric
from peer.tasks.preprocessing import Preprocessing
from peer.tasks.shard import Kind, Shard


class Task(ABC):
    """A data set, a model, a loss and a metric.

    Attributes:
        kind: kind of the targets; it decides the default loss and metric.
        classes: number of labels; None: the range of labels is not checked.
        class_names: name of each label, which `peer predict` prints; None: the numbers are printed.
        preprocessing: how `load_shard` scales raw inputs, if it is the same for all peers, else it stands in the `Shard`.
            Model files hold it and `peer predict` applies it. None: not declared, so `peer predict` refuses raw inputs.
        metric_name: name of the result of `metric`.
        higher_is_better: whether a larger `metric` is better, for reports.
        metric_is_share: whether its values are in [0, 1]; tables of experiments then show percent.
    """

    kind: Kind = "classification"
    classes: int | None = None
    class_names: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = None

    @property
    def metric_name(self) -> str:
        """Name of the result of `metric`."""
        return "accuracy" if self.kind == "classification" else "mse"

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger `metric` is better: true for accuracy, false for an error."""
        return self.kind == "classification"

    @property
    def metric_is_share(self) -> bool:
        """Whether the values of `metric` are in [0, 1]: true for the accuracy."""
        return self.metric_name == "accuracy"

    def reported(self) -> Metric:
        """Return name, direction and format of `metric`, which logs, files and tables take from here."""
        return Metric(self.metric_name, self.higher_is_better, self.metric_is_share)

    @abstractmethod
    def make_model(self) -> nn.Module:
        """Return a new model with float32 parameters, initialized from torch's global generator.

        Every call must return the same names and shapes; peers compare them in the handshake.
        """

    @abstractmethod
    def load_shard(self, peer_id: int) -> Shard:
        """Return the data of one peer, 0-based."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample, float32 [n], of ``outputs`` [n, ...] against ``targets`` [n, ...]."""
        if self.kind == "classification":
            return functional.cross_entropy(outputs, targets, reduction="none")
        return _squared_error(outputs, targets)

    def metric(self, outputs: Tensor, targets: Tensor) -> float:
        """Return one number for a whole set: accuracy in [0, 1], or the mean squared error.

        ``outputs`` of a classifier are logits, or probabilities if an algorithm mixes predictions.
        """
        if self.kind == "classification":
            return float((outputs.argmax(1) == targets).double().mean())
        return float(_squared_error(outputs, targets).double().mean())

    def make_optimizer(self, parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer | None:
        """Return an optimizer for one local training, or None for the optimizer of the manifest."""
        return None


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of each sample, averaged over its outputs, float32 [n]."""
    errors = outputs.reshape(len(outputs), -1) - targets.reshape(len(targets), -1)
    return errors.square().mean(1)
