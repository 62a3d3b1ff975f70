"""What an own training loop gets from a run, and what it returns: the arguments of `Task.train`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import torch


class Stateful(Protocol):
    """What a loop may keep over rounds: an optimizer, a scheduler, a sampler, a scaler."""

    def state_dict(self) -> Any:
        """Return the state: tensors, arrays, numbers, texts, and lists, tuples and dicts of them."""

    def load_state_dict(self, state: Any) -> object:
        """Take a state that `state_dict` returned."""


StatefulT = TypeVar("StatefulT", bound=Stateful)
ItemT = TypeVar("ItemT")


class Keep(Protocol):
    """See `Budget.keep`."""

    def __call__(self, name: str, make: Callable[[], StatefulT]) -> StatefulT:
        """Return the object that ``make`` returns, with the state of the round before."""


class Resumable(Protocol):
    """See `Budget.resumable`."""

    def __call__(self, items: Iterable[ItemT]) -> Iterator[ItemT]:
        """Yield the items that are not done yet."""


@dataclass(frozen=True)
class Budget:
    """How long and with what an own loop trains in one round.

    Attributes:
        round: 0-based.
        epochs: passes over the training samples; None where the run counts steps.
        steps: of the optimizer; None where the run counts epochs.
        learning_rate: of this round.
        seed: of this training; the generators of torch, NumPy and Python are seeded from it when the loop begins.
        device: of the model.
        precision: "bfloat16" where the peer was asked for it (``--amp``), for `torch.autocast`; the model stays float32.
        should_stop: returns true where the peer has been asked to leave; call it before each step, and return if it is true.
        keep: ``keep("optimizer", lambda: torch.optim.AdamW(model.parameters()))`` returns the object with the state that it had
            at the end of the round before, also after a restart; checkpoints contain it. What is not kept is new in each round.
        kept: names of the objects of which the round before has a state.
        resumable: ``for epoch in budget.resumable(range(budget.epochs))`` and ``for x, y in budget.resumable(loader)`` let a
            restart inside the round go on with the item where it was, and end the loop where ``should_stop`` is true. Make the
            outer loop resumable first. The model, what is kept, and the generators of random numbers are as they were; numbers
            that the loop adds up itself are not, unless an object that is kept has them. The same items must come again: the
            first ones are read and left out. Number them inside: ``budget.resumable(enumerate(loader))``.
        due: returns true where it is time for a loop to write a checkpoint of its own into ``folder``: every
            ``checkpoint_minutes``, and where the peer has been asked to leave.
        resumed: a loop that goes on from such a checkpoint calls it with the number of steps that the checkpoint has.
    """

    round: int
    epochs: int | None
    steps: int | None
    learning_rate: float
    seed: int
    device: torch.device
    precision: Literal["float32", "bfloat16"]
    should_stop: Callable[[], bool]
    keep: Keep
    kept: frozenset[str]
    resumable: Resumable
    due: Callable[[], bool]
    resumed: Callable[[int], object]
    make_folder: Callable[[], Path]

    @property
    def folder(self) -> Path:
        """A folder for files of this training: empty when it begins, kept over a restart inside the round, then removed."""
        return self.make_folder()


@dataclass(frozen=True)
class Trained:
    """What an own loop reports of one round; each may be missing.

    Attributes:
        loss: mean over the used samples.
        samples: used, with repetitions; default: those of the training set, once for each epoch.
        steps: of the optimizer; default: those of the `torch.optim` optimizers that have this model's parameters.
        numbers: own numbers for the history, by name.
    """

    loss: float | None = None
    samples: int | None = None
    steps: int | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
