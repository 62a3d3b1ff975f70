"""Training of a model vector in a user's own loop, `Task.train`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.seeds import derive_seed
from coordinator_free_bootstrap.strict_json import of_type
from peer.algorithms.learner import TrainingPlan, TrainStats
from peer.core.averaging import Vector, fold
from peer.learning.flat import FlatModule, seeded
from peer.learning.kept_state import Kept
from peer.learning.pull import pull
from peer.learning.resumable import ResumableLoop
from peer.store.scratch import ScratchFolder
from peer.tasks.budget import Budget, Trained
from peer.tasks.task import Task
from peer.tasks.user_code import libraries_seeded, user_code


class EnoughSteps(BaseException):
    """Ends the loop of a trial after its last step; no loop catches it by accident."""


class OwnLoop:
    """Runs the loop of a task on the working memory of a learner.

    Args:
        task: with an own `train`.
        model: the working memory.
        amp: whether the peer was asked for bfloat16.
    """

    def __init__(self, task: Task, model: FlatModule, *, amp: bool) -> None:
        self.task, self.model, self.amp = task, model, amp

    def train(self, theta: Vector, plan: TrainingPlan, data: Any, samples: int) -> tuple[Vector, TrainStats]:
        """Train a copy of ``theta``, float32 [d], on data; return it, a new float32 [d], and its statistics.

        Args:
            theta: not changed.
            plan: its epochs or steps, seed, rate, ``only`` and ``proximal`` are followed; it has own optimizers and batches.
            data: what the loop gets.
            samples: in the data.

        Raises:
            TaskError: the loop fails, returns something else than `Trained`, or takes another number of steps than it should.
        """
        model, steps = self.model, _Steps(self.model, plan)
        model.load(theta)
        model.reset_integers()
        model.module.train()
        model.restrict(plan.only)
        kept = Kept({} if plan.optimizer_state is None else plan.optimizer_state)
        stop, partial = _Stop(plan.should_stop), plan.partial
        total = plan.epochs if plan.unit == "step" else None

        def state() -> dict[str, Any]:
            gradients = [parameter.grad for parameter in model.parameters]
            return {"model": model.state(), "gradients": gradients, "kept": kept.arrays(), "steps": steps.state()}

        def resume(saved: dict[str, Any]) -> None:
            model.resume(saved["model"])
            for parameter, gradient in zip(model.parameters, saved["gradients"], strict=True):
                parameter.grad = None if gradient is None else gradient.to(model.device)
            kept.resume(saved["kept"])
            steps.resume(saved["steps"])

        resumable = ResumableLoop(partial, model.device, stop, state, resume, lambda: steps.count, total)
        own = _OwnCheckpoints(plan, stop, steps, total)
        budget = Budget(
            round=plan.round_index,
            epochs=plan.epochs if plan.unit == "epoch" else None,
            steps=total,
            learning_rate=plan.learning_rate,
            seed=derive_seed(plan.seed, "train"),
            device=model.device,
            precision="bfloat16" if self.amp else "float32",
            should_stop=stop,
            keep=kept.keep,
            kept=kept.names,
            resumable=resumable,
            due=own.due,
            resumed=own.resumed,
            make_folder=own.folder,
        )
        trained: object = Trained()
        try:
            seed = derive_seed(plan.seed, "dropout")
            with libraries_seeded(seed), seeded(seed, model.device), user_code("train"), steps.counted():
                trained = self.task.train(model.module, data, budget)
                resumable.check()
        except EnoughSteps:
            stop.seen = True
        finally:
            own.end()
            model.restrict(None)
            for parameter in model.parameters:
                parameter.grad = None  # as large as the model, not needed before the next training
        model.check_constants()
        result = _checked(trained)
        count = steps.count if result.steps is None else result.steps
        if plan.unit == "step" and not plan.trial and count != plan.epochs and not stop.seen:
            raise TaskError(
                f"train: expected {plan.epochs} steps, the budget.steps of a run that counts steps, got {count}. Let the loop "
                "end after budget.steps, or choose an algorithm and a run.local_unit that count epochs."
            )
        after = model.store()
        if count == 0 and not stop.seen and np.array_equal(after, theta):
            raise TaskError(
                "train: expected a change of the model, got none, and no step of a torch.optim optimizer with its parameters. "
                "Train the module that train gets, not a copy of it."
            )
        states = None if plan.optimizer_state is None else kept.arrays()
        used = samples * plan.epochs if result.samples is None and plan.unit == "epoch" else result.samples or 0
        loss = math.nan if result.loss is None else float(result.loss)
        stats = TrainStats(loss, used, count, stop.seen, states, None, _numbers(result.numbers), steps.center)
        return after, stats


class _Stop:
    """`Budget.should_stop`; ``seen``: whether it has returned true."""

    def __init__(self, asked: Callable[[], bool] | None) -> None:
        self._asked, self.seen = asked, False

    def __call__(self) -> bool:
        self.seen = self.seen or (self._asked is not None and self._asked())
        return self.seen


class _OwnCheckpoints:
    """What a budget has for a loop that writes checkpoints of its own, beside the state of the training."""

    def __init__(self, plan: TrainingPlan, stop: _Stop, steps: _Steps, total: int | None) -> None:
        self._partial, self._stop, self._steps, self._total = plan.partial, stop, steps, total
        self._follows = plan.follow is not None
        self._path: Path | None = None
        self._scratch: ScratchFolder | None = None

    def due(self) -> bool:
        """See `Budget.due`. A term that follows the model is in no checkpoint of a loop: such a training is repeated."""
        written = self._partial is not None and not self._follows and self._partial.due()
        if self._partial is not None and written:
            self._partial.renew()
        return self._stop() or written

    def resumed(self, steps: int) -> None:
        """See `Budget.resumed`."""
        self._steps.count += steps
        if self._partial is not None:
            self._partial.note_resumed(steps, self._total)

    def folder(self) -> Path:
        """Return `Budget.folder`; where none is kept, one for temporary files. The first call makes it."""
        if self._path is None:
            kept = None if self._partial is None else self._partial.folder()
            if kept is None:
                self._scratch = ScratchFolder("training")
            self._path = self._scratch.path if self._scratch else Path(kept or "")
        return self._path

    def end(self) -> None:
        """Remove a folder for temporary files."""
        if self._scratch is not None:
            self._scratch.remove()


class _Steps:
    """Counts the steps of an own loop, and adds the algorithm's term to the gradients of each."""

    def __init__(self, model: FlatModule, plan: TrainingPlan) -> None:
        self._model, self._plan = model, plan
        self.count = 0
        # A weighted objective is sum(w * loss) / batch size; its samples are drawn by w, so its gradient has the factor mean(w).
        self._factor = 1.0 if plan.sample_weights is None else float(plan.sample_weights.mean())
        self.center: Vector | None = None
        if plan.proximal is not None:
            self.center = plan.proximal[0]
            self._centers = model.views(self.center)

    def state(self) -> dict[str, Any]:
        """Return what the steps have changed here."""
        return {"count": self.count, "center": self.center}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Take what `state` returned."""
        self.count, self.center = state["count"], state["center"]
        if self.center is not None:
            self._centers = self._model.views(self.center)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count, and add the term, while the block runs."""
        from peer.learning.step_hooks import step_hooks  # here: torch.optim imports torch._dynamo

        changes = self.center is not None or self._factor != 1.0
        with step_hooks(self._model.parameters, self._change if changes else None, self._stepped):
            yield

    def _change(self, factor: float) -> None:
        if self._factor != 1.0:
            for parameter in self._model.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(self._factor)
        if self._plan.proximal is not None:
            pull(self._model.parameters, self._centers, self._plan.proximal[1] * factor)

    def _stepped(self) -> None:
        self.count += 1
        if (follow := self._plan.follow) is not None and self.center is not None and self.count % follow.steps == 0:
            theta = self._model.store()
            if follow.rate >= 1:
                self.center = theta
            elif follow.rate > 0:
                self.center = self.center.copy()
                fold(self.center, 1.0 - follow.rate, theta, follow.rate)
            self._centers = self._model.views(self.center)
        if self.count == self._plan.trial:
            raise EnoughSteps


def _checked(trained: object) -> Trained:
    """Return what a loop has returned; nothing is a `Trained` without fields."""
    trained = Trained() if trained is None else trained
    if not isinstance(trained, Trained):
        raise TaskError(
            f"train: expected a peer.Trained, or None, got {of_type(trained)}. Return peer.Trained(loss=...)."
        )
    for name in ("loss", "samples", "steps"):
        value = getattr(trained, name)
        if value is not None and not np.isscalar(value):
            raise TaskError(f"train: {name}: expected a number, got {of_type(value)}. Call float() or int() on it.")
    return replace(trained, numbers=dict(trained.numbers))


def _numbers(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """Return the own numbers for the history; one that is not finite is None there."""
    found: dict[str, float | None] = {}
    for name, value in numbers.items():
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise TaskError(f"train: numbers[{name!r}]: expected a number, got {of_type(value)}") from error
        found[str(name)] = number if math.isfinite(number) else None
    return found
