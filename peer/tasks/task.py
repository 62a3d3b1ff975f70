"""The interface between a learning problem and the runtime; built-in tasks and a user's own file both implement it.

    class Sensors(Task):
        classes = 3
        def make_model(self): return nn.Linear(8, 3)
        def load_shard(self, peer_id): return Shard(train_x=..., train_y=..., test_x=..., test_y=...)

    task = Sensors()

and ``peer testbed --task sensors.py:task``. Classification with cross-entropy and accuracy is the default;
``kind = "regression"`` gives squared error. `loss`, `metric` and `make_optimizer` can be replaced.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from peer.tasks.shard import Kind, Shard


class Task(ABC):
    """A data set, a model, a loss and a metric, seen from one peer.

    Attributes:
        kind: what targets are, and which loss and metric are the defaults.
        classes: number of labels; None leaves the range of labels unchecked.
        metric_name: printed beside the number that `metric` returns.
        higher_is_better: whether a larger `metric` is a better one, for reports.
    """

    kind: Kind = "classification"
    classes: int | None = None

    @property
    def metric_name(self) -> str:
        """Name of what `metric` returns."""
        return "accuracy" if self.kind == "classification" else "mse"

    @property
    def higher_is_better(self) -> bool:
        """Whether peers with a larger `metric` are better off: so with accuracy, not with an error."""
        return self.kind == "classification"

    @abstractmethod
    def make_model(self) -> nn.Module:
        """Return a new model with float32 parameters, initialized from torch's global generator.

        Every call must give the same names and shapes: all peers compare them in the handshake.
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

        ``outputs`` of a classifier may be logits, or probabilities where an algorithm mixes predictions.
        """
        if self.kind == "classification":
            return float((outputs.argmax(1) == targets).double().mean())
        return float(_squared_error(outputs, targets).double().mean())

    def make_optimizer(self, parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer | None:
        """Return an optimizer of one's own for one local training, or None for the one of the manifest."""
        return None


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of each sample, averaged over its outputs, float32 [n]."""
    errors = outputs.reshape(len(outputs), -1) - targets.reshape(len(targets), -1)
    return errors.square().mean(1)
