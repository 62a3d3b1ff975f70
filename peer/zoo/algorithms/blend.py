"""Blend: clusters as in DFCA, a shared model as in DFedAvg and an own one side by side; each peer mixes their predictions.

Which method suits the data is not known before the run: one shared model where peers are alike, a model for each cluster where
they fall into groups, an own model where no other peer's data help. A peer trains one of each in every round and sends two: its
cluster's model and the shared one. In the first half of the run it holds a share of its samples out. Then it tunes shared and
cluster model on its other samples, and weighs all models by the loss that their mixed predictions have on the samples held out.
Few samples choose badly. So with its cluster's model a peer sends its weights, and counts half by them and half by the mean over
the peers of its cluster, unless its samples held out clearly speak against it at the end of that round. From then on it trains on
all samples. After the last round it tunes again, each model as far as the guard of the final phase allows: models that gained by
tuning in mid-run have learned more since, and may lose by it. The prediction is

    p(y | x) = sum_m w_m p_m(y | x)        m: k cluster models, the shared one, the own one, the two tuned ones

With secure sums (`run.secure_sum`) there are no clusters: their models and weights would have to travel one by one, and a model
of a cluster tells of the same samples as the shared one that is hidden in a sum. A peer then weighs three models: the shared one,
the own one and the tuned shared one, by its own samples held out alone.

This method is an addition of this project. Its parts: clusters, DFCA (arXiv 2510.15300), started by `peer.algorithms.seeding`, or
where that is not possible by the relay warm-up and splitting of `peer.algorithms.dfca`; the shared model, DFedAvg (arXiv
2104.11375); tuning after the last round, FedSPD (arXiv 2410.18862), Section 4, with the guard of `peer.algorithms.final_phase`;
weights, `peer.algorithms.ensemble`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem, Refusal, RefusalCode
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.options import EffectiveWhen
from peer.algorithms.dfca import STARTS, Dfca, DfcaOptions, DfcaState, SplitEmpty, WarmupRounds
from peer.algorithms.ensemble import Losses, clearly_above, selected_weights
from peer.algorithms.final_phase import moved, tuned, validated_share
from peer.algorithms.held_out import Indices
from peer.algorithms.learner import Ability, Fields, measured, training_fields
from peer.algorithms.personalize import Predictions, mixed
from peer.algorithms.predictor import MIXTURE, Predictor
from peer.algorithms.private import SampleUse
from peer.algorithms.seeding import obstacle_to_seeds
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector
from peer.core.decisions import Offer
from peer.core.messages import ModelHeader, Numbers, Select

OF_CLUSTERS = EffectiveWhen(lambda r: r.run.secure_sum is None, "run.secure_sum is set, so no cluster has a model")


class BlendOptions(DfcaOptions):
    """``run.options`` of algorithm ``blend``: those of ``dfca``, with seeds or, where these are not possible, relaying."""

    initialization: Literal["global", "local", "seeds", "groups"] = Field(
        "seeds",
        description="first models, as for dfca; the default is global with warmup_rounds, in async pace, with dynamic edges, "
        "and with no more rounds than clusters",
    )
    warmup_rounds: WarmupRounds = Field(
        0, ge=0, description="W: number of first rounds with relaying; without seeds the default is 3"
    )
    split_empty: SplitEmpty = Field(
        False,
        description="in warm-up rounds, split the largest cluster if a cluster is trained by no peer; without seeds the "
        "default is true",
    )
    held_out: float = Field(
        0.25,
        gt=0,
        lt=1,
        description="share of the training samples held out in the first half of the rounds, without validation data",
    )
    tune_epochs: int = Field(10, ge=1, description="epochs that tune the shared and the cluster model")


@dataclass(frozen=True)
class BlendState(DfcaState):
    """State of Blend; ``mixture`` is what predicts.

    Attributes:
        chosen: the weights by this peer's samples held out; (): not chosen yet.
        pooled: the mean of the weights over the peers of the cluster.
        pooling: whether ``pooled`` counts; None: not decided yet.
    """

    chosen: tuple[float, ...] = ()
    pooled: tuple[float, ...] = ()
    pooling: bool | None = None


class Blend(Dfca[BlendOptions, BlendState]):
    """DFCA, DFedAvg and local training at once, and a mixture of their predictions, weighed by samples held out.

    Slots 0 .. k-1 are clusters, slot k is shared. Private: the own model, the tuned shared model, the tuned cluster model.
    With secure sums slot 0 is shared, and there is no cluster and no tuned cluster model.
    """

    name = "blend"
    steps_out = False
    Options = BlendOptions
    State = BlendState
    result_is_model = False
    tunes = True
    sums = True
    keys: ClassVar[Mapping[str, EffectiveWhen]] = {"clusters": OF_CLUSTERS}

    @classmethod
    @override
    def needs(cls, manifest: Manifest) -> frozenset[Ability]:
        """Return training on a part of the samples, and outputs, which it mixes."""
        return super().needs(manifest) | {"subset", "outputs"}

    @classmethod
    @override
    def completed(cls, manifest: Manifest) -> Mapping[str, object]:
        """Return ``run.options``, with a start where they leave it open."""
        given: dict[str, object] = dict(manifest.options)
        if manifest.secure_sum is not None:
            return {"initialization": "global"} | given
        if "initialization" not in given and (given.get("warmup_rounds") or obstacle_to_seeds(manifest)):
            given["initialization"] = "global"
        if given.get("initialization", "seeds") not in STARTS and given.setdefault("warmup_rounds", 3):
            given.setdefault("split_empty", not manifest.privacy.is_on)
        return given

    @classmethod
    @override
    def slot_count(cls, manifest: Manifest) -> int:
        """Return k + 1: the clusters and the shared model."""
        return 1 if manifest.secure_sum is not None else manifest.clusters + 1

    @classmethod
    @override
    def private_count(cls, manifest: Manifest) -> int:
        """Return 3: the own model and the two tuned ones."""
        return 2 if manifest.secure_sum is not None else 3

    def __init__(self, manifest: Manifest, peer_id: int, graph: Graph) -> None:
        super().__init__(manifest, peer_id, graph)
        if not self.clusters and (self.options.initialization != "global" or self.options.warmup_rounds):
            key = "warmup_rounds" if self.options.warmup_rounds else "initialization"
            expected = "nothing that finds clusters, which there are not with run.secure_sum (docs/security.md)"
            got = str(getattr(self.options, key))
            raise ConfigError(ConfigProblem(f"run.options.{key}", expected, got, "Remove the option."))

    @property
    @override
    def clusters(self) -> range:
        """The slots of the cluster models."""
        return range(self.slots - 1)

    @property
    def shared(self) -> int:
        """The slot of the shared model."""
        return self.slots - 1

    @property
    def own(self) -> int:
        """The slot of the own model."""
        return self.slots

    # ---- decisions --------------------------------------------------------------------------------------------------

    @override
    def offers(
        self, state: BlendState, round_index: int, step: int, neighbor: int, select: Select | None
    ) -> tuple[Offer, ...]:
        """Offer the cluster's model, with the cluster's weights once there are some, and the shared model."""
        found = super().offers(state, round_index, step, neighbor, select)
        if self.warming_up(round_index) or self.seeding(round_index) or not state.pooled:
            return found
        return tuple(
            offer if offer.slot == self.shared else replace(offer, numbers=Numbers.of(state.pooled)) for offer in found
        )

    @override
    def rejects(self, state: BlendState, header: ModelHeader, select: Select | None) -> Refusal | None:
        """Refuse what DFCA refuses, and numbers that are no weights."""
        rejection = super().rejects(state, header, select)
        if rejection is None and header.numbers and not self.warming_up(header.round_index):
            found, total = header.numbers, sum(header.numbers)
            if len(found) != self.held or min(found) < 0 or abs(total - 1) > 1e-6:
                expected = f"expected {self.held} weights from 0 with the sum 1"
                return Refusal(RefusalCode.MALFORMED, f"{expected}, got {len(found)} numbers with the sum {total:g}")
        return rejection

    @override
    def uses(self, round_index: int) -> SampleUse:
        """Return the choice of a cluster and three trainings; once, in mid-run, also two that tune and the choice of weights."""
        found = super().uses(round_index)
        chooses = round_index == self._choosing_round
        return SampleUse(
            local=(2 + bool(self.clusters)) * self.manifest.local_epochs,
            epochs=self.uses_at_the_end().epochs if chooses else 0,
            choices=found.choices + chooses,
        )

    @override
    def uses_at_the_end(self) -> SampleUse:
        """Return the two trainings that tune once more."""
        return SampleUse(epochs=(1 + bool(self.clusters)) * self.options.tune_epochs)

    @property
    def _choosing_round(self) -> int:
        """The first round of the second half of the run."""
        return -(-self.manifest.rounds // 2)

    # ---- training ---------------------------------------------------------------------------------------------------

    @override
    def assign(self, workspace: Workspace[BlendState]) -> BlendState:
        """Choose the cluster as in DFCA; it and the shared model train. When relaying, the shared model has mass 1."""
        state = super().assign(workspace)
        state = replace(state, trained=(*state.trained, self.shared) if self.clusters else (self.shared,))
        if self.warming_up(workspace.round_index):
            state = replace(state, masses=(*state.masses[: self.shared], 1.0))
        return state

    @override
    def nearest(self, workspace: Workspace[BlendState], state: BlendState, clusters: Sequence[int]) -> BlendState:
        """Return a state with the cluster of lowest loss, if there are clusters."""
        return super().nearest(workspace, state, clusters) if clusters else state

    @override
    def train(self, workspace: Workspace[BlendState]) -> Fields:
        """Train cluster, shared and own model, on the samples that are not held out; before it, in mid-run, weigh all models."""
        r, trained = workspace.round_index, workspace.state.trained
        if self._chooses(workspace, r):
            self._choose(workspace)
        seeding, indices = self.seeds_now(workspace), self._training(workspace)
        done = [seeding.train(workspace, self.fold(workspace))] if seeding else []
        slots = [slot for slot in (*trained, self.own) if not seeding or slot != r]
        return training_fields(
            done
            + [
                workspace.fit_slot(slot, replace(workspace.slot_plan(slot), indices=indices), f"slot{slot}")
                for slot in slots
            ]
        )

    @property
    @override
    def held_out(self) -> float:
        """The share of the training samples that decide; the others train until then."""
        return self.options.held_out

    def _training(self, workspace: Workspace[BlendState]) -> Indices | None:
        """Return the samples to train on; None: all, once nothing is to be decided any more."""
        return None if workspace.state.pooling is not None else self.fold(workspace).rest

    def _chooses(self, workspace: Workspace[BlendState], r: int) -> bool:
        """Return whether models are weighed before the training of a round; in a private run in the one that pays for it."""
        due = r == self._choosing_round if workspace.private else 2 * r >= self.manifest.rounds
        return due and not self.seeding(r)

    # ---- the choice -------------------------------------------------------------------------------------------------

    @override
    def close(self, workspace: Workspace[BlendState]) -> BlendState:
        """Merge and choose the cluster as in DFCA; average the weights with those of neighbors."""
        pooled = self._pooled(workspace)
        workspace.state = super().close(workspace)
        if pooled is not None:
            workspace.state = self._with_pooled(workspace, pooled)
        return workspace.state

    def _choose(self, workspace: Workspace[BlendState]) -> None:
        """Tune without the samples held out and weigh all models by them, once; without any the shared model counts alone."""
        if workspace.state.chosen:
            return
        self._tune(workspace)
        weights = tuple(float(slot == self.shared) for slot in range(self.held))
        if workspace.private:
            weights = self._voted(workspace) or weights
        elif len((judged := self._judged(workspace))[0][0]):
            rows, losses = judged
            weights = tuple(selected_weights(rows, lambda mixed: float(losses(mixed).mean(dtype=np.float64))))
        workspace.state = replace(workspace.state, chosen=weights, pooled=weights, mixture=weights)

    def _voted(self, workspace: Workspace[BlendState]) -> tuple[float, ...]:
        """Return the share of the samples held out that each model fits best, with noise; () without any."""
        fold = self.fold(workspace)
        assert workspace.private is not None  # the caller asks
        votes = np.maximum(workspace.private.votes(self._models(workspace), fold.part, fold.held_out), 0.0)
        return tuple((votes / votes.sum()).tolist()) if votes.sum() > 0 else ()

    def _judged(self, workspace: Workspace[BlendState]) -> tuple[list[Predictions], Callable[[Predictions], Losses]]:
        """Return the predictions of all models for the samples held out, and the losses of such predictions."""
        learner, fold = workspace.learner, self.fold(workspace)
        rows = [learner.predict_proba(model, fold.part)[fold.held_out] for model in self._models(workspace)]
        return rows, lambda mixed: learner.prediction_losses(mixed, fold.part, fold.held_out)

    def _pooled(self, workspace: Workspace[BlendState]) -> tuple[float, ...] | None:
        """Return the mean of the weights over this peer and the neighbors that trained its cluster in this round."""
        state = workspace.state
        if not state.chosen or not state.trained:
            return None
        arrived = [
            tuple(arrival.header.numbers)
            for arrival in sorted(workspace.arrivals, key=lambda arrival: arrival.header.sender)
            if arrival.header.slot == state.cluster_index and len(arrival.header.numbers) == self.held
        ]
        return tuple(np.mean([state.pooled, *arrived], axis=0).tolist())

    def _with_pooled(self, workspace: Workspace[BlendState], pooled: tuple[float, ...]) -> BlendState:
        """Return the state with pooled weights; at the first time decide whether they count."""
        state = workspace.state
        halved = tuple(((np.array(state.chosen) + pooled) / 2).tolist())
        counts = self._agrees(workspace, halved) if state.pooling is None else state.pooling
        return replace(state, pooled=pooled, pooling=counts, mixture=halved if counts else state.chosen)

    def _agrees(self, workspace: Workspace[BlendState], weights: Sequence[float]) -> bool:
        """Return whether the samples held out allow other weights than the chosen ones; in a private run they are not asked."""
        if workspace.private:
            return True
        rows, losses = self._judged(workspace)
        chosen, other = (losses(mixed(rows, found)) for found in (workspace.state.chosen, weights))
        return not clearly_above(other, chosen)

    def _tune(self, workspace: Workspace[BlendState], *, guarded: bool = False) -> None:
        """Put the shared and the cluster model, tuned at half the first rate, into the last two slots.

        With ``guarded`` a model goes as far towards its tuned form as is best for samples held out of the tuning.
        """
        epochs, indices = self.options.tune_epochs, self._training(workspace)
        for place, slot in enumerate((self.shared, workspace.state.cluster_index or 0)[: self.private - 1]):
            start = workspace.models.model(slot)
            end = tuned(workspace, start, epochs, indices, "tune", place)
            share = validated_share(workspace, start, epochs) if guarded else 1.0
            model = moved(start, end, share)
            usable = share and np.isfinite(model).all()
            workspace.models.replace(self.own + 1 + place, model if usable else start.copy())

    def _models(self, workspace: Workspace[BlendState]) -> list[Vector]:
        return [workspace.models.model(slot) for slot in range(self.held)]

    # ---- results ----------------------------------------------------------------------------------------------------

    @override
    def evaluate(self, workspace: Workspace[BlendState]) -> Fields:
        """Return the metrics of the mixed predictions; before the choice, of the shared model."""
        shared = workspace.learner.evaluate(workspace.models.model(self.shared))
        weights = workspace.state.mixture
        if not weights:
            return measured(shared)
        found = super().evaluate(workspace)
        names = [*(f"cluster {slot}" for slot in self.clusters), "shared", "own", "shared, tuned", "cluster, tuned"]
        names = names[: self.held]
        shown = {"blend": dict(zip(names, weights, strict=True)), **self.shown_seeds(workspace)}
        return found | {"metric_shared": shared.metric, "state": shown}

    @override
    def predictor(self, workspace: Workspace[BlendState]) -> Predictor:
        """Return all models, whose predictions are mixed; before the choice, the shared one."""
        weights = workspace.state.mixture
        if not weights:
            return Predictor((workspace.models.model(self.shared),))
        return Predictor(tuple(self._models(workspace)), MIXTURE, weights)

    @override
    def final(self, workspace: Workspace[BlendState]) -> tuple[Vector, Fields]:
        """Tune once more, guarded, on all samples; return the model of the largest weight and the metrics of the mixture.

        In a private run it tunes without the guard where that is paid for, and predicts with the shared model if no round was
        paid for that chose weights.
        """
        if not workspace.private:
            self._choose(workspace)
        if not workspace.state.mixture:
            return workspace.models.model(self.shared), self.evaluate(workspace)
        if not workspace.private or workspace.private.may_train:
            self._tune(workspace, guarded=not workspace.private)
        model = workspace.models.model(int(np.argmax(workspace.state.mixture)))
        return model, self.evaluate(workspace) | {"predictor": MIXTURE}
