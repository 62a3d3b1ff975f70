"""Trainings on disk while they run, so that a restart inside a round goes on where they were.

    trainings/round-000007-3f0a.../checkpoint-0000000003/    the last state of a training, or its result; as checkpoints are
    trainings/round-000007-3f0a.../files/                    an own loop's files, of `Budget.folder`

The name has a digest of all that decides the result of the training: start, plan, task. So a state is used by exactly the
training that made it. When a checkpoint has the round, its trainings are removed.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Buffer

from coordinator_free_bootstrap.errors import StorageError, TaskError
from peer.algorithms.learner import Arrays, TrainingPlan, TrainStats
from peer.core.averaging import Vector
from peer.core.checkpoint import Checkpoint
from peer.store.checkpoint import CheckpointStore
from peer.store.files import storage_errors

log = logging.getLogger("peer")
FORM = "1"  # of the states; another release with another form does not use them
_NO_IDENTITY = {"should_stop", "partial"}  # of a plan
_NAME = re.compile(r"round-(\d{6,})-[0-9a-f]{32}")


class PartialCheckpoints:
    """The trainings of one peer on disk; implements `peer.algorithms.learner.Partials`. The compute thread owns it.

    Args:
        directory: `StateDir.trainings`; made with the first state.
        owner: the checkpoints of the peer.
        meaning: of its task and shard, with the digest of its code.
        every_s: seconds between two states of a training; 0: after each step.
        rounds: T, for log lines.
        safe_round: rounds that the checkpoints have; what is on disk of them is removed.
        on_resume: called with the steps that are not repeated.
        clock: returns seconds, monotonic.

    Raises:
        StorageError: the directory cannot be read.
    """

    def __init__(
        self,
        directory: Path,
        owner: CheckpointStore,
        meaning: str,
        every_s: float,
        *,
        rounds: int,
        safe_round: int = 0,
        on_resume: Callable[[int], object] = lambda steps: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory, self.owner, self.every_s, self.clock = directory, owner, every_s, clock
        self.rounds, self.on_resume = rounds, on_resume
        self._meaning, self._failing = meaning, False
        with storage_errors("read", directory):
            names = [path.name for path in directory.iterdir()] if directory.exists() else []
        self._found = {match[0]: int(match[1]) for match in map(_NAME.fullmatch, names) if match}  # -> round
        self._unused = {name for name, round_index in self._found.items() if round_index >= safe_round}
        self.drop(safe_round)

    def of(self, theta: Vector, plan: TrainingPlan) -> PartialCheckpoint:
        """Return what is on disk of one training."""
        self.drop(plan.round_index - 1)  # a run with few checkpoints does not repeat them with the same models
        partial = PartialCheckpoint(self, theta, plan)
        if plan.round_index in self._found.values() and partial.name in self._found:
            self._unused.discard(partial.name)
            partial.look()
        return partial

    def identity(self, theta: Vector, plan: TrainingPlan) -> str:
        """Return the digest of all that decides the result of a training, 32 hexadecimal digits."""
        state = hashlib.sha256()
        values = {each.name: getattr(plan, each.name) for each in fields(plan) if each.name not in _NO_IDENTITY}
        _hash([FORM, self._meaning, theta, values], state.update)
        return state.hexdigest()[:32]

    def used(self, name: str, round_index: int) -> Path:
        """Return the place of a training that is about to be written."""
        self._found[name] = round_index
        return self.directory / name

    def drop(self, before_round: int) -> None:
        """Remove the trainings of rounds before one; what cannot be removed costs disk space only."""
        for name in [name for name, round_index in self._found.items() if round_index < before_round]:
            round_index = self._found.pop(name)
            shutil.rmtree(self.directory / name, ignore_errors=True)
            if name in self._unused:
                self._unused.discard(name)
                reason = "it belongs to a training with another start, other settings or another task"
                log.warning("state of a training in round %d was not used: %s", round_index + 1, reason)

    def clear(self) -> None:
        """Remove all trainings: the run is over, or would diverge again."""
        self._unused.clear()
        self._found.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    def note(self, problem: str) -> None:
        """Log why a state could not be written, until one is written again: ""."""
        if problem and not self._failing:
            log.warning("%s; training goes on without a checkpoint inside the round", problem)
        self._failing = bool(problem)


class PartialCheckpoint:
    """One training on disk; implements `peer.algorithms.learner.Partial`.

    Args:
        trainings: of the peer.
        theta: float32 [d], the model at the start; not changed meanwhile.
        plan: of the training.
    """

    def __init__(self, trainings: PartialCheckpoints, theta: Vector, plan: TrainingPlan) -> None:
        self.resumed = 0
        self._all, self._theta, self._plan = trainings, theta, plan
        self._name = ""
        self._saved: Checkpoint | None = None
        self._since = trainings.clock()
        self._written = self._unusable = False

    @property
    def name(self) -> str:
        """Of its folder; the digest of a large model takes a tenth of a second, so only where it is needed."""
        if not self._name:
            self._name = f"round-{self._plan.round_index:06d}-{self._all.identity(self._theta, self._plan)}"
        return self._name

    def look(self) -> None:
        """Read the state that a process before has left."""
        store = self._store()
        try:
            self._saved = store.load_latest()
        except StorageError as error:
            log.warning("%s; training from the start of the round", error)
        for path, reason in store.rejected:
            log.warning("state of a training, %s, was not used: %s", path, reason)
        self._written = self._saved is not None

    def finished(self) -> tuple[Vector, TrainStats] | None:
        """Return the result, if it is on disk."""
        if self._saved is None or "result" not in self._saved.state:
            return None
        saved, self._saved = self._saved, None
        result = saved.state["result"]
        kept = saved.arrays_of("optimizer") if result.pop("keeps_optimizer") else None
        stats = TrainStats(**result, optimizer_state=kept, center=saved.arrays.get("center"))
        self._resume(stats.steps, "after a training of %d steps", stats.steps)
        return saved.arrays["model"], stats

    def load(self) -> Arrays | None:
        """Return the last state before a restart, once."""
        saved, self._saved = self._saved, None
        if saved is None:
            return None
        self.note_resumed(saved.state["step"], saved.state["steps"])
        return saved.arrays

    def note_resumed(self, step: int, steps: int | None) -> None:
        """Tell that a training goes on after a step."""
        at = ("at step %d", step) if steps is None else ("at step %d of %d", step, steps)
        self._resume(step, *at)

    def _resume(self, steps: int, what: str, *numbers: int) -> None:
        self.resumed = steps
        log.info(f"resuming in round %d of %d {what}", self._plan.round_index + 1, self._all.rounds, *numbers)
        self._all.on_resume(steps)

    def due(self) -> bool:
        """Return whether ``every_s`` seconds have passed since the last state, or the start."""
        return not self._unusable and self._all.clock() - self._since >= self._all.every_s

    def save(self, step: int, steps: int | None, state: Callable[[], Arrays]) -> None:
        """Write the state; a full disk or a state that cannot be written is logged."""
        try:
            arrays = state()
        except TaskError as error:
            self._unusable = True
            self._all.note(str(error))
            return
        self._write(arrays, {"step": step, "steps": steps})

    def renew(self) -> None:
        """Note that a loop writes a state of its own."""
        self._written, self._since = True, self._all.clock()

    def finish(self, theta: Vector, stats: TrainStats) -> None:
        """Write the result, if a state was written or is due."""
        if stats.stopped or not (self._written or self.due()):
            return
        optimizer = stats.optimizer_state
        arrays: dict[str, np.ndarray] = {"model": theta}
        arrays |= {f"optimizer/{name}": array for name, array in (optimizer or {}).items()}
        arrays |= {} if stats.center is None else {"center": stats.center}
        result = {name: getattr(stats, name) for name in ("loss", "samples", "steps", "stopped", "metric")}
        result |= {"numbers": dict(stats.numbers), "keeps_optimizer": optimizer is not None}
        self._write(arrays, {"result": result})

    def folder(self) -> str | None:
        """Return the path of ``files``, made if it is missing."""
        path = self._all.used(self.name, self._plan.round_index) / "files"
        try:
            with storage_errors("create", path):
                path.mkdir(parents=True, exist_ok=True)
        except StorageError as error:
            self._all.note(str(error))
            return None
        return str(path)

    def _store(self) -> CheckpointStore:
        return self._all.owner.beside(self._all.directory / self.name)

    def _write(self, arrays: Arrays, state: dict[str, Any]) -> None:
        self._all.used(self.name, self._plan.round_index)
        try:
            self._store().save(self._plan.round_index, dict(arrays), state)
        except StorageError as error:
            self._all.note(str(error))
        else:
            self._written = True
            self._all.note("")
        self._since = self._all.clock()


def _hash(value: Any, update: Callable[[Buffer], object]) -> None:
    """Add a value of a plan to a digest, so that two that differ in a value, a type or a shape give other bytes."""
    match value:
        case np.ndarray():
            update(f"array {value.dtype} {value.shape} ".encode())
            update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        case Mapping():
            update(f"mapping {len(value)} ".encode())
            for key in sorted(value):
                _hash(key, update)
                _hash(value[key], update)
        case list() | tuple() | frozenset():
            items = sorted(value) if isinstance(value, frozenset) else value
            update(f"list {len(items)} ".encode())
            for each in items:
                _hash(each, update)
        case _:
            update(f"{type(value).__name__} {value!r} ".encode())
