"""The state of the process's generators of random numbers, to continue a training where it was."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from peer.learning.flat import generators_of


def random_state(device: torch.device, *, libraries: bool) -> dict[str, Any]:
    """Return the states of torch's generators for a device, and with ``libraries`` of Python's and NumPy's, as plain values."""
    state: dict[str, Any] = {"torch": [generator.get_state() for generator in generators_of(device)]}
    return state | ({"python": random.getstate(), "numpy": np.random.get_state()} if libraries else {})


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Set what `random_state` returned."""
    for generator, values in zip(generators_of(device), state["torch"], strict=True):
        generator.set_state(values)
    if "python" in state:
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
