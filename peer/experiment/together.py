"""Do the work of many peers so that their local trainings meet: each peer's work pauses where it wants to train.

Algorithms call `Learner.train` wherever it suits them. Here every piece of work runs on a thread of its own, but only one
thread moves at a time, like a coroutine; when each has either ended or asked to train, all requests are trained as
one stack, and the threads go on with the results. No algorithm knows of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from peer.algorithms.base import Bench
from peer.algorithms.work import perform
from peer.core.averaging import Vector
from peer.core.effects import Work
from peer.core.events import WorkDone
from peer.experiment.network import SimulatedPeer
from peer.learning.learner import Learner, TrainStats
from peer.learning.stacked import StackedTrainer, TrainRequest

T = TypeVar("T")


class Together:
    """The `perform_all` of a virtual network that trains in stacks."""

    def __init__(self) -> None:
        self._trainer = StackedTrainer()

    def perform(self, works: Sequence[tuple[SimulatedPeer, Work]]) -> list[WorkDone]:
        """Do all works and return their answers in the same order; each peer's seconds are its share of the whole."""
        began = time.perf_counter()
        answers = self.run(
            [
                (peer.bench, partial(perform, work, peer.algorithm, peer.bench, time.perf_counter))
                for peer, work in works
            ]
        )
        share = (time.perf_counter() - began) / max(1, len(works))
        return [replace(done, seconds=dict.fromkeys(done.seconds, share)) for done in answers]

    def run(self, tasks: Sequence[tuple[Bench, Callable[[], T]]]) -> list[T]:
        """Call functions that train on their benches, and return what they return."""
        movers = [_Mover(bench, function) for bench, function in tasks]
        for mover in movers:
            mover.start()
            mover.move()
        while waiting := [mover for mover in movers if mover.request is not None]:
            trained = self._trainer.train([mover.request for mover in waiting if mover.request is not None])
            for mover, result in zip(waiting, trained, strict=True):
                mover.result = result
                mover.move()
        return [mover.value for mover in movers]


class _Mover(threading.Thread, Generic[T]):
    """One function that can be moved up to its next training or its end."""

    value: T

    def __init__(self, bench: Bench, function: Callable[[], T]) -> None:
        super().__init__(daemon=True)
        self.request: TrainRequest | None = None
        self.result: tuple[Vector, TrainStats] | None = None
        self._bench, self._function = bench, function
        self._error: BaseException | None = None
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)

    def move(self) -> None:
        """Let the function go on until it wants to train or has ended; raises what it raises."""
        self._go.release()
        self._paused.acquire()
        if self._error is not None:
            raise self._error

    def run(self) -> None:
        self._go.acquire()
        learner = self._bench.learner
        self._bench.learner = _PausingLearner(learner, self)  # type: ignore[assignment]
        try:
            self.value = self._function()
        except BaseException as error:  # handed to the thread that moves this one
            self._error = error
        finally:
            self._bench.learner = learner
            self._paused.release()

    def train(self, request: TrainRequest) -> tuple[Vector, TrainStats]:
        """Ask for a training; called on this thread."""
        self.request = request
        self._paused.release()
        self._go.acquire()
        result, self.request, self.result = self.result, None, None
        assert result is not None
        return result


class _PausingLearner:
    """A learner whose `train` waits for the others."""

    def __init__(self, learner: Any, mover: _Mover[Any]) -> None:
        self._learner: Learner = learner
        self._mover = mover

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    def train(self, theta: Vector, **settings: Any) -> tuple[Vector, TrainStats]:
        return self._mover.train(TrainRequest(self._learner, theta, settings))
