"""The outer step: at the end of a round a step with momentum, from a model at the round's start towards the average of the round.

With x the model at the start, a the average, b the rate and m the momentum of ``run.outer``, and v = 0 at first:

    nesterov   v <- m v + (a - x),     x <- x + b (m v + a - x)
    noloco     v <- m v + b (a - x),   x <- x + v

a - x holds what this peer and its neighbors have trained, and what they differed by before. Only parameters that travel make the
step: averaged buffers stay averages, and private tensors are this peer's own.

Sources: Arthur Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023, arXiv 2311.08105; its
average is that of all workers. Jari Kolehmainen et al., "NoLoCo: No-all-reduce Low Communication Training Method for Large
Models", 2025, arXiv 2506.10911: pairs of workers. It has one rate for what was trained and one for the difference from the
partner; here they are one, so that a pair exchanges one model and not two.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from coordinator_free_bootstrap.errors import DivergedError
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector
from peer.core.part import TravellingPart
from peer.core.schema import Schema

MEMORY = "outer/slot"  # of v in `Workspace.optimizers`
STARTS = "outer_starts"  # of x in `Workspace.scratch`, by slot


def begin(workspace: Workspace, slots: Iterable[int]) -> None:
    """Keep the models at the start of a round."""
    if workspace.manifest.outer.is_on:
        workspace.scratch[STARTS] = {slot: workspace.models.share(slot) for slot in slots}


def step(workspace: Workspace, travelling: Schema) -> None:
    """Make the step from what `begin` kept, in each slot that the round has changed.

    Raises:
        DivergedError: the step leads to a model that is not finite.
    """
    for slot, start in workspace.scratch.pop(STARTS, {}).items():
        average = workspace.models.model(slot)
        if average is start:
            continue
        steps = Schema(tuple(spec for spec in travelling.tensors if spec.role == "parameter"))
        part = TravellingPart.between(workspace.learner.schema, steps)
        stepped, momentum = _stepped(
            workspace, part.of(start), part.of(average), workspace.optimizers.get(f"{MEMORY}{slot}")
        )
        if not np.isfinite(stepped).all():
            raise DivergedError(
                f"peer {workspace.peer_id} diverged in round {workspace.round_index}: the outer step of slot {slot} leads to a "
                f"model that is not finite; lower run.outer.momentum ({workspace.manifest.outer.momentum:g}) or "
                f"run.outer.learning_rate ({workspace.manifest.outer.learning_rate:g}) (docs/trouble.md#diverged)"
            )
        workspace.models.replace(slot, part.joined(average, stepped))
        workspace.optimizers[f"{MEMORY}{slot}"] = momentum


def forget(workspace: Workspace) -> None:
    """Drop the momentum: this peer skips rounds and takes over models to which it does not lead."""
    for name in [name for name in workspace.optimizers if name.startswith(MEMORY)]:
        del workspace.optimizers[name]


def _stepped(workspace: Workspace, start: Vector, average: Vector, momentum: Vector | None) -> tuple[Vector, Vector]:
    """Return the new model and momentum, float32 [d]; the arguments are not changed."""
    outer = workspace.manifest.outer
    rate, share = np.float32(outer.learning_rate), np.float32(outer.momentum)
    gain = rate if outer.optimizer == "noloco" else np.float32(1)
    with np.errstate(over="ignore", invalid="ignore"):  # refused by `step`
        toward = average - start
        after: Vector = gain * toward if momentum is None else share * momentum + gain * toward
        move: Vector = after if outer.optimizer == "noloco" else rate * (share * after + toward)
        stepped: Vector = start + move
    return stepped, after
