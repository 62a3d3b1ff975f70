"""The run manifest: everything that all peers of a run must agree on, as the ``run`` attribute of the graph file.

Local choices (state directory, device, threads, logging) are not here: they may differ from device to device.
Keys that belong to one algorithm, task, model or split stand in ``options``, ``task_options``, ``model_options`` and
``split_options``; they are validated by the part of `peer` that owns them.
"""

from __future__ import annotations

import hashlib
import json
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Scalar = bool | int | float | str | None
Options = dict[str, Scalar | list[Scalar]]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class StartRule(_Section):
    """When a peer begins its first round; decided by each peer alone."""

    rule: Literal["all", "quorum", "deadline"] = Field(
        "all", description="begin when all neighbors, a share of them, or (whatever happens) the deadline is reached"
    )
    quorum: float = Field(0.5, gt=0, le=1, description="share of the neighbors that rule 'quorum' waits for")
    deadline_s: float = Field(60.0, gt=0, description="begin after this many seconds with whoever is there")


class Timeouts(_Section):
    """The user's knobs, an ordered ladder: 4 x heartbeat <= suspicion <= round deadline, and idle transfer <= that, too."""

    heartbeat_s: float = Field(1.0, gt=0, description="a neighbor hears from this peer at least this often")
    suspicion_s: float = Field(5.0, gt=0, description="silence after which a neighbor is dead; 4 heartbeats or more")
    idle_transfer_s: float = Field(10.0, ge=0.1, description="a transfer without one new byte for this long is cut")
    round_deadline_s: float = Field(600.0, gt=0, description="a round closes after this long with whoever delivered")

    @model_validator(mode="after")
    def _ladder(self) -> Self:
        """Hold the order: one lost heartbeat must not look like a death, nor a death outlast the round."""
        least = 4 * self.heartbeat_s
        if self.suspicion_s < least:
            raise ValueError(
                f"found suspicion_s {self.suspicion_s:g} with heartbeat_s {self.heartbeat_s:g}; allowed: suspicion_s "
                f"of at least 4 times heartbeat_s; raise suspicion_s to {least:g} or lower heartbeat_s"
            )
        for name in ("suspicion_s", "idle_transfer_s"):
            if (found := getattr(self, name)) > self.round_deadline_s:
                raise ValueError(
                    f"found {name} {found:g} with round_deadline_s {self.round_deadline_s:g}; allowed: {name} of at most "
                    f"round_deadline_s; lower {name} or raise round_deadline_s"
                )
        return self


class Limits(_Section):
    """What a peer accepts from a neighbor. Each is tested at the limit and one past it (see proto/WIRE.md)."""

    frame_bytes_max: int = Field(1 << 20, ge=1 << 10, le=3 << 20, description="payload bytes in one frame")
    model_bytes_max: int = Field(8 << 30, ge=1, description="encoded bytes of one model")
    concurrent_receives: int = Field(2, ge=1, le=64, description="models read at the same time, over all neighbors")
    streams_per_neighbor: int = Field(8, ge=1, le=256, description="open pushes and pulls of one neighbor")
    requests_per_second: float = Field(200.0, gt=0, description="messages of one neighbor, averaged; bursts of 5 s")
    rounds_ahead: int = Field(2, ge=1, le=16, description="lockstep: rounds a neighbor may be ahead of this peer")
    weight_max: float = Field(1e6, gt=0, description="largest weight or sample count believed from a neighbor")
    weight_min: float = Field(1e-9, ge=1e-12, description="smallest one; what weighs less is not sent")
    models_per_round: int = Field(
        2, ge=1, description="async: models of one neighbor and slot folded in one round; two of a pace drift by one"
    )


class Screening(_Section):
    """What an arrival must satisfy beyond being complete, of the right size, digest-true and finite."""

    norm_bound: float | None = Field(None, gt=0, description="refuse if its norm exceeds this times the own model's")
    clip: float | None = Field(None, gt=0, description="clip its distance from the round-start local model to this")
    trimmed_mean: float | None = Field(
        None, gt=0, lt=0.5, description="buffer a slot's arrivals and trim this share at each end (costs memory)"
    )


class Manifest(_Section):
    """The agreed settings of one run. Every key has a default, so that a graph file without ``run`` works."""

    federation: str = Field("federation", pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$", description="name in certificates")
    algorithm: str = Field("dfca", description="dfca, fedspd, dfedavg, local, ...: a module of peer.algorithms")
    options: Options = Field(default_factory=dict, description="the algorithm's own keys")
    clusters: int = Field(2, ge=1, le=64, description="k: cluster models (slots) at every peer")
    rounds: int = Field(60, ge=1, le=1_000_000, description="T: rounds of the run")
    pace: Literal["lockstep", "async"] = Field("lockstep", description="wait for live neighbors, or for nobody")
    participation: float = Field(1.0, gt=0, le=1, description="share of peers that train in a round")
    seed: int = Field(1, ge=0, lt=1 << 63, description="every random choice of the run derives from it")

    task: str = Field("digits", description="a built-in task, an entry point, or path/to/file.py:object")
    task_options: Options = Field(default_factory=dict)
    model: str | None = Field(None, description="a built-in model; default: the task's own")
    model_options: Options = Field(default_factory=dict)
    split: str = Field("rotated_hard", description="how the data set is dealt to the peers; 'shard' for own data")
    split_options: Options = Field(default_factory=dict)
    data_seed: int = Field(0, ge=0, lt=1 << 63, description="seed of the split, apart from the run's seed")

    local_epochs: int = Field(2, ge=1, le=10_000, description="tau: epochs (or steps) of a round's training")
    local_unit: Literal["epoch", "fullbatch_step"] = Field("epoch", description="what local_epochs counts")
    batch_size: int = Field(100, ge=1)
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = Field(0.1, gt=0)
    learning_rate_decay: float = Field(1.0, gt=0, le=1, description="factor, every learning_rate_decay_rounds")
    learning_rate_decay_rounds: int = Field(1, ge=1)
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    evaluate_every: int = Field(1, ge=1, description="rounds between evaluations; the last round always counts")

    aggregation: Literal["sequential", "batch"] = Field("sequential", description="DFCA Eq. 8 or Eq. 7")
    mix: Literal["uniform", "metropolis"] | None = Field(None, description="averaging weights; default: algorithm's")
    fold_order: Literal["neighbor_id", "arrival"] | None = Field(None, description="default: by pace")
    stale: Literal["drop", "fold"] | None = Field(
        None, description="what becomes of an arrival of an earlier round; default: drop in lockstep, fold in async"
    )
    stale_rounds_max: int = Field(1, ge=0, le=1000, description="oldest age that 'fold' accepts, in rounds")
    stale_weight: float = Field(0.5, gt=0, le=1, description="rho: an arrival of age a weighs rho ** a")
    dynamic_edges: float = Field(0.0, ge=0, lt=1, description="p: share of edges down in a round, by shared seed")
    encoding: Literal["float32", "float16", "bfloat16", "int8"] = "float32"
    checkpoint_rounds: int = Field(1, ge=0, description="rounds between checkpoints; 0: only at the end")
    allow_disconnected: bool = False

    start: StartRule = Field(default_factory=StartRule)
    timeouts: Timeouts = Field(default_factory=Timeouts)
    limits: Limits = Field(default_factory=Limits)
    screening: Screening = Field(default_factory=Screening)


def canonical_json(manifest: Manifest) -> str:
    """Return the one text of a manifest: sorted keys, no spaces, ASCII, every default filled in."""
    return json.dumps(manifest.model_dump(), sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(manifest: Manifest) -> str:
    """Return the SHA-256 (hex) of the canonical JSON; neighbors compare it in the handshake."""
    return hashlib.sha256(canonical_json(manifest).encode()).hexdigest()
