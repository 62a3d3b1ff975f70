"""Stacked training of many peers: the work of each peer pauses at its call of `Learner.train`, and all calls train as one stack.

Every piece of work runs on its own thread, but only one thread runs at a time, like a coroutine. When each thread has
either ended or called `train`, all calls are trained as one stack, and the threads continue with the results. Algorithms need
no change for this.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from typing_extensions import override

from peer.algorithms.learner import TrainingPlan, TrainStats
from peer.algorithms.private import PrivateLearner
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector
from peer.core.effects import Work
from peer.core.events import WorkDone
from peer.lab.network import SimulatedPeer
from peer.lab.stacked import StackedTrainer, TrainRequest
from peer.learning.learner import TorchLearner

T = TypeVar("T")


class Together:
    """The `perform_all` of a virtual network with stacked training."""

    def __init__(self) -> None:
        self._trainer = StackedTrainer()

    def perform(self, works: Sequence[tuple[SimulatedPeer, Work]]) -> list[WorkDone]:
        """Do all works and return their answers in the same order; each answer gets an equal share of the seconds."""
        began = time.perf_counter()
        answers = self.run([(peer.host.workspace, partial(peer.host.work, work)) for peer, work in works])
        share = (time.perf_counter() - began) / max(1, len(works))
        return [replace(done, seconds=dict.fromkeys(done.seconds, share)) for done in answers]

    def run(self, tasks: Sequence[tuple[Workspace, Callable[[], T]]]) -> list[T]:
        """Call functions that train on their workspaces, and return their results."""
        movers = [_Mover(workspace, function) for workspace, function in tasks]
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
    """One function that `move` runs to its next call of `train` or to its end."""

    value: T

    def __init__(self, workspace: Workspace, function: Callable[[], T]) -> None:
        super().__init__(daemon=True)
        self.request: TrainRequest | None = None
        self.result: tuple[Vector, TrainStats] | None = None
        self._bench, self._function = workspace, function
        self._error: BaseException | None = None
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)

    def move(self) -> None:
        """Run the function to its next call of `train` or to its end; raises the exceptions of the function."""
        self._go.release()
        self._paused.acquire()
        if self._error is not None:
            raise self._error

    @override
    def run(self) -> None:
        self._go.acquire()
        learner = self._bench.learner
        self._bench.learner = _PausingLearner(learner, self)
        try:
            self.value = self._function()
        except BaseException as error:  # raised again in `move`
            self._error = error
        finally:
            self._bench.learner = learner
            self._paused.release()

    def train(self, request: TrainRequest) -> tuple[Vector, TrainStats]:
        """Request a training and wait for its result; called on this thread."""
        self.request = request
        self._paused.release()
        self._go.acquire()
        result, self.request, self.result = self.result, None, None
        assert result is not None
        return result


class _PausingLearner:
    """A learner whose `train` waits for the stack; a private one trains by itself."""

    def __init__(self, learner: Any, mover: _Mover[Any]) -> None:
        self._learner: TorchLearner = learner
        self._private = isinstance(learner, PrivateLearner)
        self._mover = mover

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    def train(self, theta: Vector, plan: TrainingPlan) -> tuple[Vector, TrainStats]:
        if self._private:
            return self._learner.train(theta, plan)
        return self._mover.train(TrainRequest(self._learner, theta, plan))
