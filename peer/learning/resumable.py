"""Loops of a user that go on where they were: `Budget.resumable`.

A position is a path: for each open loop, outermost first, which loop of its kind it is in the item around it, and which of its
items is next. States are taken before an item that is not the first: so a restart never finds a loop without items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, TypeVar

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.strict_json import of_type
from peer.algorithms.learner import Arrays, Partial
from peer.learning.kept_state import packed, unpacked
from peer.learning.random_state import random_state, set_random_state

ItemT = TypeVar("ItemT")
SAME = "the same resumable loops as before the restart"


class StopFlag(Protocol):
    """`Budget.should_stop`; ``seen``: whether it has returned true."""

    seen: bool

    def __call__(self) -> bool:
        """Return whether the peer has been asked to leave."""


@dataclass
class _Loop:
    """An open loop.

    Attributes:
        number: how many were there before it in the same item of the loop around.
        began: state of the generators when it began, from which a loader draws its order.
        item: their state when the present item began.
        done: items done.
        inner: loops begun in the present item.
    """

    number: int
    began: dict[str, Any] = field(default_factory=dict)
    item: dict[str, Any] = field(default_factory=dict)
    done: int = 0
    inner: int = 0


class ResumableLoop:
    """The resumable loops of one training.

    Args:
        partial: where the state is kept; None: it is not.
        device: of the model.
        stop: whether the peer has been asked to leave.
        state: returns what the training changes, beside the generators of random numbers.
        resume: takes what ``state`` returned.
        step: returns the steps done.
        steps: of the whole training; None if it is not known.
    """

    def __init__(
        self,
        partial: Partial | None,
        device: Any,
        stop: StopFlag,
        state: Callable[[], dict[str, Any]],
        resume: Callable[[dict[str, Any]], object],
        step: Callable[[], int],
        steps: int | None,
    ) -> None:
        self._partial, self._device, self._stop = partial, device, stop
        self._state, self._resume, self._step, self._steps = state, resume, step, steps
        self._open = [_Loop(0)]  # the first one stands for the training
        saved = partial.load() if partial is not None else None
        self._saved: dict[str, Any] | None = None if saved is None else unpacked(saved)

    def __call__(self, items: Iterable[ItemT]) -> Iterator[ItemT]:
        """See `peer.tasks.budget.Budget.resumable`.

        Raises:
            TaskError: an iterator in place of what it iterates over, where that cannot be repeated.
        """
        depth = len(self._open)
        around = self._open[-1]
        loop = _Loop(around.inner)
        around.inner += 1
        if loop.number and isinstance(items, Iterator):
            raise TaskError(
                "train: resumable: expected a loader or another collection in the loop after a resumable one, got "
                f"{of_type(items)}, which may have drawn random numbers that a restart does not repeat. Make the loop around it "
                "resumable, too."
            )
        first = self._first(depth - 1, loop.number)
        if first is None:
            return
        loop.began = self._random()
        self._open.append(loop)
        loop.done = first
        iterator = iter(items)
        if sum(1 for _ in islice(iterator, first)) < first:
            raise self._others(f"{first} items or more, as before the restart")
        try:
            for item in iterator:
                del self._open[depth + 1 :]
                loop.inner = 0
                if self._saved is not None:
                    if loop.done > first:
                        raise self._others(SAME)
                    if depth == len(self._saved["path"]):
                        self._take(self._saved)
                    else:
                        set_random_state(self._saved["items"][depth - 1], self._device)
                elif loop.done > first and self._ends():
                    return
                loop.item = self._random()
                yield item
                loop.done += 1
        finally:
            del self._open[depth:]

    def check(self) -> None:
        """Check, when the training has ended, that it has come to where it was.

        Raises:
            TaskError: its loops are others than before.
        """
        if self._saved is not None:
            raise self._others(SAME)

    def _first(self, level: int, number: int) -> int | None:
        """Return the item with which a loop begins; None: the loop was done before the restart."""
        if self._saved is None:
            return 0
        path = self._saved["path"]
        if level >= len(path) or number > path[level][0]:
            raise self._others(SAME)
        if number < path[level][0]:
            return None
        set_random_state(self._saved["began"][level], self._device)
        return int(path[level][1])

    def _random(self) -> dict[str, Any]:
        return random_state(self._device, libraries=True)

    def _take(self, saved: dict[str, Any]) -> None:
        self._saved = None
        self._resume(saved["state"])
        set_random_state(saved["random"], self._device)

    def _ends(self) -> bool:
        """Keep the state if it is time to; return whether the peer has been asked to leave.

        A loop that knew it before may have left out a part of the item, so its state is none to go on from.
        """
        if self._stop.seen:
            return True
        stopping = self._stop()
        if self._partial is not None and (stopping or self._partial.due()):
            self._partial.save(self._step(), self._steps, self._packed)
        return stopping

    def _packed(self) -> Arrays:
        loops = self._open[1:]
        return packed(
            {
                "path": [[loop.number, loop.done] for loop in loops],
                "began": [loop.began for loop in loops],
                "items": [loop.item for loop in loops[:-1]],
                "random": self._random(),
                "state": self._state(),
            }
        )

    def _others(self, expected: str) -> TaskError:
        folder = None if self._partial is None else self._partial.folder()
        return TaskError(
            f"train: resumable: expected {expected}, got others. If the loop has changed, remove {folder or 'trainings'} and "
            "start again: the round begins anew."
        )
