"""Several models that predict together, as one PyTorch module: what FedEM and FedSPD evaluate where they mix predictions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from peer.algorithms.predictor import CONFIDENT
from peer.learning.samples import Batch, call


class Combined(nn.ModuleList):
    """The models of all clusters; the output is a class probability [n, C], in regression the mixed outputs.

    The state dict is that of a plain ``nn.ModuleList`` of the models: ``0.weight``, ``1.weight``, ...; the weights are not in it.

    Args:
        models: one for each cluster.
        predictor: "mixture", sum_m pi_m p_m(x) (FedEM, arXiv 2108.10252); or "confident", the model of the highest probability.
        weights: pi, one for each model; read for "mixture" only.
        kind: of the task: logits of a classification become class probabilities, those of multilabel one probability for each.
        class_axis: axis of the outputs that has the classes.
    """

    def __init__(
        self, models: Sequence[nn.Module], predictor: str, weights: Sequence[float], kind: str, class_axis: int = 1
    ) -> None:
        super().__init__(models)
        self.predictor, self.weights, self.kind, self.class_axis = predictor, tuple(weights), kind, class_axis

    @override
    def forward(self, inputs: Batch) -> Tensor:
        """Return the combined prediction for the input of one model; several inputs are a dict of them by name."""
        rows = torch.stack([self._prediction(call(model, inputs)) for model in self])  # [M, n, ...]
        if self.predictor == CONFIDENT:
            best = rows.amax(2).argmax(0)  # [n]
            return rows.gather(0, best[None, :, None].expand(1, -1, rows.shape[2]))[0]
        weights = torch.tensor(self.weights, dtype=rows.dtype, device=rows.device)
        mixed: Tensor = torch.tensordot(weights, rows, dims=1)
        return mixed

    def _prediction(self, outputs: Tensor) -> Tensor:
        if self.kind == "classification":
            return outputs.softmax(self.class_axis)
        return outputs.sigmoid() if self.kind == "multilabel" else outputs
