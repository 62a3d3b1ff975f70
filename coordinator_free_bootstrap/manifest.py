"""The manifest: the settings that all peers of a run share, stored as ``run`` in the graph file.

Local settings (state directory, device, threads, logging) may differ between peers and are not in the manifest.
The keys of one algorithm, task, model or split are in ``options``, ``task_options``, ``model_options`` and
``split_options``; the algorithm, task, model or split validates them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from coordinator_free_bootstrap.identity import FEDERATION
from coordinator_free_bootstrap.learning_rates import ScheduleText, schedule_of
from coordinator_free_bootstrap.options import EffectiveWhen

Scalar = bool | int | float | str | None
Options = dict[str, Scalar | list[Scalar]]


@dataclass(frozen=True)
class AlgorithmFacts:
    """What the rules beside the keys ask about an algorithm; the defaults leave every key its effect.

    Attributes:
        exchanges: whether its peers exchange models.
        clustered: whether it holds a model for each cluster.
        keeps_arrivals: whether it keeps arrivals until a step closes.
        final_epochs: of its final phase, where ``run.final.epochs`` is not set.
        result_is_model: whether its result is one model, which a final phase can train.
        steps_out: whether its rounds may end with the outer step of ``run.outer``.
        tunes: whether it trains at the rate of ``run.final`` without a final phase, too.
        keys: further keys of ``run``, such as ``screening.clip``, and when each has an effect.
    """

    exchanges: bool = True
    clustered: bool = True
    keeps_arrivals: bool = True
    final_epochs: int = 1
    result_is_model: bool = True
    steps_out: bool = True
    tunes: bool = True
    keys: Mapping[str, EffectiveWhen] = field(default_factory=dict)


@dataclass(frozen=True)
class InRun:
    """What the rules beside keys and options of algorithms are asked about: when one has an effect (`peer.tasks.effect`).

    Attributes:
        run: all keys.
        own_task: whether the task is a user's, which makes its own model and data.
        own_loop: whether it trains in its own loop, as far as that is known here.
        algorithm: facts of the algorithm; the defaults where it is not known here.
        options: the options of the algorithm; None where it is not known here.
    """

    run: Manifest
    own_task: bool = False
    own_loop: bool = False
    algorithm: AlgorithmFacts = AlgorithmFacts()
    options: Any = None

    @property
    def final_epochs(self) -> int:
        """The epochs of the final phase."""
        given = self.run.final.epochs
        return (self.algorithm.final_epochs if given is None else given) if self.algorithm.result_is_model else 0


def _of_algorithm(rest: str) -> Callable[[InRun], str]:
    """Return the reason that an algorithm gives, as a function: ``algorithm local REST``."""
    return lambda r: f"algorithm {r.run.algorithm} {rest}"


OF_NAMED_DATA = EffectiveWhen(
    lambda r: not r.own_task,
    lambda r: f"task {r.run.task!r} makes its own model",
    stated="the task makes its own model",
)
OF_DEALT_DATA = EffectiveWhen(
    lambda r: not r.own_task or r.run.split == "shard",
    lambda r: f"task {r.run.task!r} loads its own shards",
    stated="the task loads its own shards",
)
OF_SPLIT = EffectiveWhen(lambda r: not r.own_task and r.run.split != "shard", "each peer has its own shard")
OF_EXCHANGE = EffectiveWhen(
    lambda r: r.algorithm.exchanges,
    lambda r: f"algorithm {r.run.algorithm} exchanges no models" + (" with these run.options" if r.run.options else ""),
    stated="the algorithm exchanges no models",
)
OF_FINAL = EffectiveWhen(lambda r: r.final_epochs > 0, "the run has no final phase: run.final.epochs is 0")
OF_FINAL_RATE = EffectiveWhen(lambda r: r.algorithm.tunes or r.final_epochs > 0, OF_FINAL.why_not)
OF_BUILTIN_LOOP = EffectiveWhen(
    lambda r: not r.own_loop,
    lambda r: f"task {r.run.task!r} trains in its own loop",
    stated="the task trains in its own loop",
)
OF_PRIVACY = EffectiveWhen(lambda r: r.run.privacy.is_on, "run.privacy.clip_norm is not set")
OF_OUTER = EffectiveWhen(lambda r: r.run.outer.is_on, "run.outer.optimizer is not set")
OF_ROUNDS = EffectiveWhen(lambda r: r.run.rounds > 1, "run.rounds is 1")


def _check_parts(size: _BatchSize) -> _BatchSize:
    if isinstance(size, list) and (len(size) != 2 or size[1] == "all" or (size[0] != "all" and size[1] > size[0])):
        raise ValueError(
            "expected a number, all, or [samples of a step, samples at a time] with no more at a time than in a step, got "
            f"{size}. Example: [128, 16]."
        )
    return size


_Samples = Annotated[int, Field(ge=1)] | Literal["all"]
_BatchSize = _Samples | list[_Samples]
BatchSize = Annotated[_BatchSize, AfterValidator(_check_parts)]


def step_and_part(size: BatchSize) -> tuple[int | Literal["all"], int | None]:
    """Return the samples of a step, and how many the model gets at a time; None: all of the step."""
    if isinstance(size, list):
        step, part = size
        return step, None if part == "all" else part
    return size, None


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class StartRule(_Section):
    """When a peer starts its first round; each peer decides by itself."""

    wait_for: Literal["all", "everyone", "deadline", "never_alone"] | Annotated[float, Field(gt=0, le=1)] = Field(
        "all",
        description="wait until the deadline for all neighbors, or for a share of them such as 0.5; 'everyone': for all peers of "
        "the graph, and end then if one is missing; 'deadline': for all neighbors, and begin then even if all refuse this peer; "
        "'never_alone': for all neighbors, then for any one, also later in the run, and end after deadline_s without one",
    )
    deadline_s: float = Field(
        600.0,
        gt=0,
        description="start after this many seconds with the neighbors that are alive; 'everyone': end without a start",
    )

    @property
    def share(self) -> float:
        """Share of the neighbors that is enough to begin before the deadline."""
        return 1.0 if isinstance(self.wait_for, str) else self.wait_for


class Timeouts(_Section):
    """Timeouts, seconds: the suspicion time is at most the round deadline, and two further times follow from it."""

    suspicion_s: float = Field(
        5.0,
        ge=0.1,
        description="silence that marks a neighbor dead; sets the heartbeat interval (a fifth) and the time after which a "
        "transfer without a new byte is cancelled (twice)",
    )
    round_deadline_s: float = Field(600.0, gt=0, description="a round closes after this long with the arrived models")

    @cached_property
    def heartbeat_s(self) -> float:
        """Longest time between two messages to a neighbor, seconds: a fifth of the suspicion time.

        Three heartbeats in a row may be lost, and the next one late, before a live neighbor is marked dead; one before it is a
        suspect.
        """
        return self.suspicion_s / 5

    @cached_property
    def idle_transfer_s(self) -> float:
        """Time without a new byte after which a transfer is cancelled, seconds: twice the suspicion time.

        Transfers of a dead neighbor end with the suspicion time. This limit ends those between two live peers, so it is longer:
        a link that was down for as long as a neighbor may be silent has the same time again to continue. It is at most the
        round deadline, since the round waits no longer.
        """
        return min(2 * self.suspicion_s, self.round_deadline_s)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        """Check the order: a dead neighbor is noticed within the round."""
        if self.suspicion_s > self.round_deadline_s:
            raise ValueError(
                f"expected suspicion_s of at most round_deadline_s, got suspicion_s {self.suspicion_s:g} with "
                f"round_deadline_s {self.round_deadline_s:g}. Lower suspicion_s or raise round_deadline_s."
            )
        return self


class Limits(_Section):
    """Limits on models of neighbors; tests cover each limit and one past it (see proto/WIRE.md)."""

    model_bytes_max: int = Field(8 << 30, ge=1, description="encoded bytes of one model")
    kept_bytes_max: Annotated[
        int,
        EffectiveWhen(
            lambda r: r.algorithm.keeps_arrivals or r.run.screening.trimmed_mean is not None,
            "run.screening.trimmed_mean is not set, so no arrival waits",
        ),
    ] = Field(
        1 << 30, ge=1, description="memory for arrivals that wait for the round's close, as a trimmed mean needs them"
    )


class Screening(_Section):
    """Screening of an arrival that is complete, of the right size and digest, and finite."""

    norm_bound: Annotated[float | None, OF_EXCHANGE] = Field(
        None, gt=0, description="highest allowed norm, as a multiple of the local model's norm"
    )
    clip: Annotated[float | None, OF_EXCHANGE] = Field(
        None, gt=0, description="clip the distance from the round-start local model to this"
    )
    trimmed_mean: Annotated[float | None, OF_EXCHANGE] = Field(
        None, gt=0, lt=0.5, description="share trimmed at each end of a slot's arrivals (costs memory)"
    )


class PrivateTraining(_Section):
    """Differential privacy of a peer's training samples (`peer.algorithms.private`); off without ``clip_norm``."""

    clip_norm: float | None = Field(
        None, gt=0, description="C: largest norm of a sample's gradient; switches differential privacy on"
    )
    noise_multiplier: Annotated[float | None, OF_PRIVACY] = Field(
        None, gt=0, description="sigma: deviation of a step's noise as a multiple of clip_norm; or target_epsilon"
    )
    target_epsilon: Annotated[float | None, OF_PRIVACY] = Field(
        None, gt=0, description="each peer takes the least noise with which its whole run costs at most this epsilon"
    )
    delta: Annotated[float, OF_PRIVACY] = Field(
        1e-5, gt=0, lt=1, description="of the guarantee (epsilon, delta); below one in the number of samples of a peer"
    )
    epsilon_max: Annotated[float | None, OF_PRIVACY] = Field(
        None, gt=0, description="a peer that would pass it trains no more; default: target_epsilon, or no limit"
    )

    @property
    def is_on(self) -> bool:
        """Whether the training is private."""
        return self.clip_norm is not None

    @property
    def epsilon_limit(self) -> float | None:
        """The largest epsilon that a peer spends; None: there is no limit."""
        return self.target_epsilon if self.epsilon_max is None else self.epsilon_max

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        """Check that exactly one key says how much noise there is."""
        if self.is_on and (self.noise_multiplier is None) == (self.target_epsilon is None):
            got = "neither" if self.noise_multiplier is None else "both"
            raise ValueError(f"expected one of noise_multiplier and target_epsilon with clip_norm, got {got}")
        return self


class FinalPhase(_Section):
    """Local training after the last round, on the own samples; nothing of it is sent."""

    epochs: Annotated[
        int | None,
        EffectiveWhen(
            lambda r: r.algorithm.result_is_model or not r.run.final.epochs,
            _of_algorithm("predicts with several models, which a final phase does not train"),
            stated="the algorithm predicts with several models",
        ),
    ] = Field(None, ge=0, le=10_000, description="local epochs after the last round; default: 10 with fedspd, else 0")
    learning_rate: Annotated[float | None, OF_FINAL_RATE] = Field(
        None, gt=0, description="its first learning rate; default: half of run.learning_rate"
    )
    learning_rate_schedule: Annotated[ScheduleText, OF_FINAL_RATE] = Field(
        "constant", description="of its learning rate over its epochs, as run.learning_rate_schedule over rounds"
    )
    guard: Annotated[bool, OF_FINAL] = Field(
        False, description="limit the change of the model to what lowers the loss on held-out samples"
    )


class OuterStep(_Section):
    """A step with momentum at the end of each round (`peer.algorithms.outer_step`); off without ``optimizer``."""

    optimizer: Annotated[
        Literal["nesterov", "noloco"] | None,
        EffectiveWhen(
            lambda r: r.algorithm.steps_out,
            _of_algorithm("ends a round in its own way"),
            stated="the algorithm ends a round in its own way",
        ),
    ] = Field(
        None,
        description="step with momentum from the round's start to its average: as in DiLoCo, or in NoLoCo, on one edge; default: "
        "the average itself",
    )
    learning_rate: Annotated[float, OF_OUTER] = Field(
        0.7, gt=0, le=2, description="share of the way to the average, with momentum beyond it"
    )
    momentum: Annotated[float, OF_OUTER] = Field(
        0.5, ge=0, lt=1, description="of the step; 0.9, as in DiLoCo, needs many edges in a round"
    )

    @property
    def is_on(self) -> bool:
        """Whether rounds end with an outer step."""
        return self.optimizer is not None


class Manifest(_Section):
    """The shared settings of one run. Every key has a default, so a graph file without ``run`` is valid.

    >>> Manifest(algorithm="dfca", rounds=12).clusters
    2
    """

    federation: str = Field("federation", pattern=f"^{FEDERATION}$", description="federation in certificates")
    algorithm: str = Field(
        "dfca", description="one of `peer list algorithms`: dfca, fedspd, dfedavg, ...; or your file.py:Class"
    )
    options: Options = Field(default_factory=dict, description="keys of the algorithm")
    clusters: Annotated[
        int,
        EffectiveWhen(
            lambda r: r.algorithm.clustered,
            _of_algorithm("does not divide the peers into clusters"),
            stated="the algorithm does not divide the peers into clusters",
        ),
    ] = Field(2, ge=1, le=64, description="k: cluster models (slots) per peer")
    rounds: int = Field(60, ge=1, le=1_000_000, description="T: rounds of the run")
    pace: Literal["lockstep", "async"] = Field("lockstep", description="wait for live neighbors, or for none")
    participation: float = Field(1.0, gt=0, le=1, description="share of peers that train in a round")
    seed: int = Field(1, ge=0, lt=1 << 63, description="seed of every random choice of the run")

    task: str = Field("digits", description="a built-in task, an entry point, or path/to/file.py:object")
    task_options: Options = Field(default_factory=dict, description="keys of the task")
    model: Annotated[str | None, OF_NAMED_DATA] = Field(
        None, description="a built-in model or torchvision:<name>; default: by task"
    )
    model_options: Annotated[Options, OF_NAMED_DATA] = Field(default_factory=dict, description="keys of the model")
    split: Annotated[str, OF_DEALT_DATA] = Field(
        "rotated_hard", description="how the data are divided between the peers; 'shard' for own data"
    )
    split_options: Annotated[Options, OF_SPLIT] = Field(default_factory=dict, description="keys of the split")
    data_seed: Annotated[int, OF_SPLIT] = Field(
        0, ge=0, lt=1 << 63, description="seed of the split, independent of seed"
    )

    local_epochs: int = Field(
        2, ge=1, le=10_000, description="tau: epochs of the training in a round; steps with local_unit step"
    )
    local_unit: Annotated[
        Literal["epoch", "step"],
        EffectiveWhen(
            lambda r: r.run.step_samples != "all" or r.own_loop,
            "an epoch is one step where run.batch_size is all",
            stated="run.batch_size is all, so that an epoch is one step",
        ),
    ] = Field(
        "epoch",
        description="what local_epochs counts; with steps a peer with more samples does not train longer; seeds, tuning and the "
        "final phase count epochs",
    )
    batch_size: Annotated[BatchSize, OF_BUILTIN_LOOP] = Field(
        100,
        description="samples per optimizer step; all: an epoch is one step on all samples; [128, 16]: 128, of which the model "
        "gets 16 at a time, in the memory of 16",
    )
    optimizer: Annotated[Literal["sgd", "adam", "adamw"], OF_BUILTIN_LOOP] = Field(
        "sgd", description="optimizer of the local training; adamw is adam with decoupled weight decay"
    )
    learning_rate: float = Field(0.1, gt=0, description="eta: step size of the optimizer")
    learning_rate_schedule: Annotated[
        ScheduleText,
        EffectiveWhen(
            lambda r: schedule_of(r.run.learning_rate_schedule).changes(r.run.rounds),
            lambda r: f"run.rounds is {r.run.rounds}",
            stated="it changes nothing within run.rounds",
        ),
    ] = Field(
        "constant",
        description="of the learning rate over rounds: constant, step:factor=0.8,every=5, cosine, or cosine:end=0.01; each with "
        "warm_up=10, first rounds in which it rises",
    )
    momentum: Annotated[
        float,
        EffectiveWhen(
            lambda r: r.run.optimizer == "sgd",
            lambda r: f"run.optimizer is {r.run.optimizer}",
            stated="run.optimizer is not sgd",
        ),
        OF_BUILTIN_LOOP,
    ] = Field(0.0, ge=0, lt=1, description="momentum of SGD")
    optimizer_state: Annotated[
        Literal["reset", "keep"],
        EffectiveWhen(
            lambda r: r.run.optimizer != "sgd" or r.run.momentum != 0, "run.optimizer is sgd and run.momentum is 0"
        ),
        OF_BUILTIN_LOOP,
    ] = Field(
        "reset",
        description="momentum buffers and the like at the start of a round: zero, or as the round before left them",
    )
    gradient_clip: Annotated[float | None, OF_BUILTIN_LOOP] = Field(
        None, gt=0, description="largest norm of a step's gradient; a longer one is scaled"
    )
    weight_decay: Annotated[float, OF_BUILTIN_LOOP] = Field(
        0.0, ge=0, description="weight decay of the optimizer; with adamw decoupled"
    )
    evaluate_every: Annotated[int, OF_ROUNDS] = Field(
        1, ge=1, description="rounds between evaluations; the last round is always evaluated"
    )

    aggregation: Annotated[
        Literal["sequential", "on_arrival", "batch"] | None,
        EffectiveWhen(
            lambda r: r.run.pace != "async" or r.run.aggregation != "sequential",
            "models are folded on arrival where run.pace is async",
            stated="it is sequential and run.pace async",
        ),
        OF_EXCHANGE,
    ] = Field(
        None,
        description="running mean in the order of neighbor ids (sequential) or of arrival, or batch mean: DFCA Eq. 8 or 7; "
        "default: sequential in lockstep, on_arrival in async",
    )
    mix: Annotated[Literal["uniform", "metropolis"] | None, OF_EXCHANGE] = Field(
        None, description="averaging weights; default: by algorithm"
    )
    stale_weight: Annotated[float | None, OF_EXCHANGE] = Field(
        None,
        ge=0,
        le=1,
        description="rho: an arrival of the round before has rho times its weight; 0 drops it; "
        "default: 0 in lockstep, 0.5 in async",
    )
    edges: Annotated[Literal["all", "one"], OF_EXCHANGE] = Field(
        "all",
        description="on which edges a round exchanges: with all neighbors, or with one, which follows from graph and round; "
        "peer graph check compares both",
    )
    dynamic_edges: Annotated[float, OF_EXCHANGE] = Field(
        0.0, ge=0, lt=1, description="p: probability that an edge is down in a round"
    )
    encoding: Annotated[
        Literal["float32", "float16", "bfloat16", "int8", "delta_int8", "delta_top10", "delta_top1"], OF_EXCHANGE
    ] = Field("float32", description="of models on the wire; peer list encodings")
    secure_sum: Annotated[float | None, OF_EXCHANGE] = Field(
        None,
        gt=0,
        le=1 << 20,
        description="R: neighbors read only the sum of a round's models, of values up to R; default: each model",
    )
    private_parameters: Annotated[list[Annotated[str, Field(min_length=1)]], OF_EXCHANGE] = Field(
        default_factory=list,
        description="names of tensors that never leave a peer, with * and ?, such as *.running_*; default: by algorithm",
    )
    start_from: Annotated[str, Field(pattern=r"^(own|[0-9a-f]{64})$")] | None = Field(
        None,
        description="SHA-256 of the model file from which all peers start, or own, where each has its own; peer run --start-from "
        "gives the file; default: the seed draws the first values",
    )
    checkpoint_rounds: Annotated[
        int,
        EffectiveWhen(
            lambda r: not r.run.privacy.is_on,
            "run.privacy writes a checkpoint before each round",
            stated="run.privacy is set, which writes a checkpoint before each round",
        ),
    ] = Field(1, ge=0, description="rounds between checkpoints; 0: one checkpoint at the end")
    diverged_restores: int = Field(
        0,
        ge=0,
        le=100,
        description="times that a diverged peer goes back to its last finite models, with half the learning rate; 0: it ends",
    )

    start: StartRule = Field(default_factory=StartRule)
    timeouts: Timeouts = Field(default_factory=Timeouts)
    limits: Limits = Field(default_factory=Limits)
    screening: Screening = Field(default_factory=Screening)
    outer: OuterStep = Field(default_factory=OuterStep)
    final: FinalPhase = Field(default_factory=FinalPhase)
    privacy: PrivateTraining = Field(default_factory=PrivateTraining)

    @model_validator(mode="after")
    def _check_outer_edges(self) -> Self:
        """Check that NoLoCo has pairs."""
        if self.outer.optimizer == "noloco" and self.edges != "one":
            raise ValueError(
                'outer.optimizer: expected nesterov, or noloco with edges "one", got noloco with edges "all". Set run.edges=one.'
            )
        return self

    @model_validator(mode="after")
    def _check_secure_sum(self) -> Self:
        """Check that nothing needs a neighbor's models by themselves, or makes one of them the difference of two sums."""
        if self.secure_sum is None:
            return self
        wrong = {
            "pace": (self.pace != "lockstep", "lockstep, as a sum is of one round"),
            "edges": (self.edges != "all", '"all", as a sum of one model is the model'),
            "participation": (self.participation < 1, "1, as a peer that sits out is the difference of two sums"),
            "dynamic_edges": (self.dynamic_edges > 0, "0, as an edge that is down makes a difference of two sums"),
            "encoding": (self.encoding != "float32", "float32, as masked values are 4 bytes"),
            "stale_weight": (self.rho > 0, "0, as a sum is of one round"),
            "checkpoint_rounds": (
                self.checkpoint_rounds != 1,
                "1, as a restarted peer must not send the model of an earlier round again",
            ),
            "screening.norm_bound": (self.screening.norm_bound is not None, "null, as no norm is known"),
            "screening.clip": (self.screening.clip is not None, "null, as no distance is known"),
            "screening.trimmed_mean": (self.screening.trimmed_mean is not None, "null, as no model is known"),
        }
        for key, (is_wrong, expected) in wrong.items():
            if is_wrong:
                got = self
                for name in key.split("."):
                    got = getattr(got, name)
                raise ValueError(f"{key}: expected {expected}, with secure_sum, got {got}. Set one of them.")
        return self

    @property
    def step_samples(self) -> int | Literal["all"]:
        """The samples of an optimizer step; "all": all of a peer."""
        return step_and_part(self.batch_size)[0]

    @property
    def rho(self) -> float:
        """The factor of an arrival's weight for each round of its age: `stale_weight`, or what the pace implies."""
        if self.stale_weight is not None:
            return self.stale_weight
        return 0.0 if self.pace == "lockstep" else 0.5


def canonical_json(manifest: Manifest) -> str:
    """Return the canonical JSON of a manifest: all keys, sorted, no spaces, ASCII."""
    return json.dumps(manifest.model_dump(), sort_keys=True, separators=(",", ":"), allow_nan=False)


def chosen_keys(manifest: Manifest) -> dict[str, Any]:
    """Return the keys that are not at their defaults, as JSON values.

    They are the same for a release with more keys, of a graph file that sets none of these: it takes part in the same run. A
    default that changes is a new wire version.
    """
    return {key: value for key, value in manifest.model_dump(exclude_defaults=True).items() if value != {}}


def digest(manifest: Manifest) -> str:
    """Return the SHA-256 (hex) of the chosen keys; neighbors compare it in the handshake."""
    text = json.dumps(chosen_keys(manifest), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
