"""The privacy budget of one peer: what a round asks of its samples, and what all rounds so far have cost. Pure.

A round is paid for before its work begins, and the work begins once a checkpoint with the payment is safe. A round that is
repeated after a restart is paid for again: its first result may have reached a neighbor, and the noise of the second is another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from peer.core.accountant import Ledger, Mechanism, epsilon


class Charge(NamedTuple):
    """What a round asks of the samples: steps of training, and choices by votes of samples."""

    steps: int = 0
    choices: int = 0


NOTHING = Charge()


@dataclass(frozen=True)
class Terms:
    """The mechanisms of a peer, and its limit.

    Attributes:
        training: of a step.
        choice: of a choice; each sample has one vote.
        delta: of the guarantee.
        epsilon_max: no round begins to train that would pass it; None: no limit.
    """

    training: Mechanism
    choice: Mechanism
    delta: float
    epsilon_max: float | None = None

    def ledger(self, charge: Charge) -> Ledger:
        """Return the uses of each mechanism that a charge has."""
        used: Ledger = Counter()
        used[self.training] += charge.steps
        used[self.choice] += charge.choices
        return +used

    def epsilon(self, ledger: Mapping[Mechanism, int]) -> float:
        """Return what a ledger has cost."""
        return epsilon(ledger, self.delta)


@dataclass
class PrivacyBudget:
    """What a peer has spent, over all its incarnations.

    Args:
        terms: of this incarnation; a ledger has those of earlier ones as they were.
        charge_of: returns the charge of a round that trains; the number of rounds is the work after the last one.
        ledger: of the checkpoint.

    Attributes:
        spent: epsilon so far.
        paid_round: the round that is paid for in this incarnation; -1: none.
    """

    terms: Terms
    charge_of: Callable[[int], Charge]
    ledger: Ledger = field(default_factory=Counter)
    paid_round: int = -1

    def __post_init__(self) -> None:
        self.spent = self.terms.epsilon(self.ledger)

    def with_charge(self, charge: Charge) -> float:
        """Return what epsilon would be after a charge."""
        return self.terms.epsilon(self.ledger + self.terms.ledger(charge))

    def affords(self, charge: Charge) -> bool:
        """Return whether a charge keeps epsilon within its limit."""
        most = self.terms.epsilon_max
        return charge == NOTHING or most is None or self.with_charge(charge) <= most

    def pay(self, round_index: int, charge: Charge) -> None:
        """Add the charge of a round."""
        self.ledger = self.ledger + self.terms.ledger(charge)
        self.spent, self.paid_round = self.terms.epsilon(self.ledger), round_index
