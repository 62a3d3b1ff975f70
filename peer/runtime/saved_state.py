"""The state that a start finds in its directory: of this run, of another one, or not usable. Only the first is resumed."""

from __future__ import annotations

import logging
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coordinator_free_bootstrap import Graph, digest
from coordinator_free_bootstrap.errors import CheckpointCorrupt, Option
from coordinator_free_bootstrap.strict_json import printable
from peer.algorithms.base import Algorithm
from peer.algorithms.saved_state import restored
from peer.core.checkpoint import Checkpoint
from peer.core.schema import Schema
from peer.learning.learner import TorchLearner
from peer.store.checkpoint import CheckpointStore
from peer.store.identity_files import IncarnationFile
from peer.store.origin import Origin, listed
from peer.store.state_dir import StateDir

log = logging.getLogger("peer")
_Count = Annotated[int, Field(ge=0)]


class _BestState(BaseModel):
    """The form of `peer.algorithms.predictor.Best.state`."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    round_index: _Count
    value: float
    how: Literal["personalized_model", "mixture", "confident"]
    weights: list[float]


class _EngineState(BaseModel):
    """The form of `peer.core.state.State.checkpoint`, and what the host adds to it."""

    model_config = ConfigDict(strict=True)

    incarnation: _Count
    round_index: _Count
    algorithm_state: dict[str, Any]
    restores: _Count
    folded: list[list[int]]
    incarnations: list[Annotated[list[int], Field(min_length=2, max_length=2)]]
    totals: dict[str, float]
    refusals: dict[str, int]
    waited_rounds: _Count = 0
    missed: list[Annotated[list[int], Field(min_length=2, max_length=2)]] = []
    best: _BestState | None = None
    spent: list[Annotated[list[float], Field(min_length=3, max_length=3)]] = []


def state_files(
    state_dir: StateDir, peer_id: int, graph: Graph, learner: TorchLearner
) -> tuple[CheckpointStore, Origin]:
    """Return the checkpoints in a state directory, as those of this run, and the run that the directory belongs to."""
    checkpoints = CheckpointStore(
        state_dir.checkpoints,
        peer_id=peer_id,
        manifest_digest=digest(graph.manifest),
        graph_digest=graph.digest,
        schema_digest=learner.schema.digest,
        frozen_digest=learner.frozen_digest,
        continues=graph.continues,
    )
    return checkpoints, Origin(state_dir.origin, peer_id, graph, learner.schema, learner.frozen_digest, learner.meaning)


def notes_of(checkpoints: CheckpointStore, run: Origin, incarnations: IncarnationFile) -> list[str]:
    """Return what was not used of a state directory, and what differs in a way that may be meant, as sentences."""
    unused = [f"checkpoint {path.name} was not used: {reason}" for path, reason in checkpoints.rejected]
    return [*unused, *run.notes, *([incarnations.problem] if incarnations.problem else [])]


def saved_state(
    state_dir: StateDir,
    checkpoints: CheckpointStore,
    run: Origin,
    algorithm: Algorithm,
    schema: Schema,
    *,
    discard: bool,
    remedy: str | None = None,
) -> Checkpoint | None:
    """Return the checkpoint to resume from, None at a first start. The caller writes ``run`` once the peer has begun.

    Args:
        state_dir: the state directory, locked.
        checkpoints: in it.
        run: this run.
        algorithm: of this peer.
        schema: of a whole model.
        discard: move state that is not of this run, or not usable, aside.
        remedy: what to do about such state, for the message; default: of a peer.

    Raises:
        CheckpointCorrupt: the state is of another run or not usable, and ``discard`` is false; nothing was changed.
        StorageError: the directory cannot be read or written.
    """
    try:
        saved = _usable(state_dir, checkpoints, run, algorithm, schema)
    except CheckpointCorrupt as error:
        if not discard:
            raise CheckpointCorrupt(f"{error}. {remedy or _anew()}") from error
        log.warning("%s; moved to %s", error, state_dir.set_aside())
        state_dir.create()
        saved = None
    else:
        if discard:
            log.warning(
                f"{Option('discard_state')} has no effect: %s has %s",
                state_dir.root,
                f"the state of this run, which is resumed after {saved.round_index} rounds" if saved else "no state",
            )
    return saved


def _anew() -> str:
    """Return how to start a peer again from round 0."""
    return (
        f"To start again at round 0, give {Option('discard_state')}, which moves this state to a folder discarded-N in it "
        f"(peer testbed: {Option('fresh')}, which deletes it), or name another folder."
    )


def _of_another_run(state_dir: StateDir, difference: str) -> CheckpointCorrupt:
    return CheckpointCorrupt(
        f"state directory {state_dir.root}: expected the state of this run, got another: {difference} (docs/trouble.md#other-run)"
    )


def _usable(
    state_dir: StateDir, checkpoints: CheckpointStore, run: Origin, algorithm: Algorithm, schema: Schema
) -> Checkpoint | None:
    """Return the newest checkpoint of this run; raises CheckpointCorrupt for a state that another run has made."""
    if checkpoints.is_empty:  # nothing was learned, so nothing can be lost
        return None
    if others := run.differences():
        raise _of_another_run(state_dir, listed(others))
    saved = checkpoints.load_latest()
    if saved is None and checkpoints.foreign:
        raise _of_another_run(state_dir, str(checkpoints.foreign[0]))
    if checkpoints.rejected and algorithm.manifest.privacy.is_on:  # an older one says less than was spent
        path, reason = checkpoints.rejected[0]
        raise CheckpointCorrupt(
            f"state directory {state_dir.root}: expected the newest checkpoint, which alone says what this peer has spent of "
            f"run.privacy, got {path.name}: {reason}. A start without it counts from 0, as if these samples had told nothing yet"
        )
    if saved is None:
        log.warning("no checkpoint can be used: moved to %s; starting at round 0", state_dir.set_aside(history=False))
        state_dir.create()
        return None
    if problem := _problem(saved, algorithm, schema):
        raise CheckpointCorrupt(
            f"state directory {state_dir.root}: the checkpoint of round {saved.round_index} {problem}"
        )
    return saved


def _problem(saved: Checkpoint, algorithm: Algorithm, schema: Schema) -> str:
    """Return which field that a start reads is wrong, "" if none is; a digest only says that it was written so."""
    try:
        _EngineState.model_validate(saved.state)
        restored(algorithm.State, saved.state["algorithm_state"], saved.arrays_of("state"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return f"has an engine state that is not valid ({printable(where)}: {printable(first['msg'])})"
    except CheckpointCorrupt as error:
        return f"is not of this release: {printable(str(error), 500)}"
    best = saved.arrays_of("best")
    count = max(1, len(saved.state["best"]["weights"])) if saved.state.get("best") else 0
    wrong = [name for name, model in best.items() if model.dtype != np.float32 or model.shape != (schema.size,)]
    if wrong or best.keys() != {str(number) for number in range(count)}:
        return f"has wrong models of the best round: expected {count} of float32 [{schema.size}], got {sorted(best)}"
    for slot in range(algorithm.held):
        size, model = schema.size, saved.arrays.get(f"slot/{slot}")
        if model is None or model.dtype != np.float32 or model.shape != (size,):
            actual = "nothing" if model is None else f"{model.dtype} {list(model.shape)}"
            return f"has a wrong slot/{slot}: expected float32 [{size}], got {actual}"
    return ""
