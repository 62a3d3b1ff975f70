"""A perceptron with one narrow layer: the model of this package."""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from peer import Model


class BottleneckOptions(BaseModel):
    """``run.model_options`` of model ``bottleneck``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    width: int = Field(8, ge=1, description="width of the hidden layer")


def bottleneck(sample_shape: tuple[int, ...], outputs: int, options: BottleneckOptions) -> nn.Module:
    """Return a new network for samples of a shape; initial values are drawn from torch's global generator."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(sample_shape), options.width), nn.Tanh(), nn.Linear(options.width, outputs)
    )


BOTTLENECK = Model(bottleneck, "One narrow hidden layer with tanh, for any samples.", BottleneckOptions)
