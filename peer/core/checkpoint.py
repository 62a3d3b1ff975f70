"""What a peer resumes from, in memory; `peer.store.checkpoint` writes it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Checkpoint:
    """The state of a peer between two rounds.

    Attributes:
        round_index: rounds completed.
        arrays: ``slot/<i>`` and, with deltas, ``published/<i>``: float32 [d], never mutated afterwards; ``state/<field>``: those
            of the algorithm's state; ``optimizer/<name>``: kept state of optimizers; ``site/<peer>``:
            float64, the numbers of each site, with shared scaling.
        state: JSON values: the engine's state, the algorithm's (``algorithm_state``), ``restores``, and
            after the last round ``model_tests``.
    """

    round_index: int
    arrays: dict[str, np.ndarray]
    state: dict[str, Any]

    def arrays_of(self, kind: str) -> dict[str, np.ndarray]:
        """Return the arrays ``<kind>/<name>`` by name."""
        prefix = f"{kind}/"
        return {name.removeprefix(prefix): array for name, array in self.arrays.items() if name.startswith(prefix)}
