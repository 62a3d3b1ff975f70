"""One round of a program's own loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from peer.tasks.budget import Budget, Trained


@dataclass(frozen=True)
class LocalRound(Budget):
    """What the manifest says of a round, and what the loop reports of it; see `peer.Budget`. What is kept, `peer.join` knows."""

    reported: list[Trained] = field(default_factory=list)

    def report(
        self, *, loss: float | None = None, samples: int | None = None, steps: int | None = None, **numbers: float
    ) -> None:
        """Write the mean loss of the round, the samples used, and own numbers to the history."""
        self.reported[:] = [Trained(loss, samples, steps, numbers)]
