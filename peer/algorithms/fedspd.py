"""FedSPD: each sample belongs to one of S clusters, each peer is a mixture of them; a peer trains one center per round.

Round (Algorithm 1): select s_i ~ u_i and tell the neighbors (Step 1); train center s_i for tau epochs on the samples of s_i
only; send it to the neighbors that selected the same cluster (Step 2); average their centers of s_i, no other center changes
(Step 3, Eq. 1); label every sample by its lowest loss (Step 4). At the end, the personalized model is the weighted sum of the
centers (Eq. 2), trained for a few epochs on all own samples.

Source: I-Cheng Lin, Osman Yağan and Carlee Joe-Wong, "FedSPD: A Soft-clustering Approach for Personalized Decentralized
Federated Learning", UAI 2025 (PMLR 286), arXiv 2410.18862.

Additions of this project, off by default: `warm_rounds` and `hard_rounds`, a start that breaks the symmetry between centers
without a coordinator, and `personalize`, which predicts without averaging centers. docs/fedspd.md has their measured effects.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from typing_extensions import override

from coordinator_free_bootstrap.errors import ConfigError, Refusal
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.options import EffectiveWhen
from coordinator_free_bootstrap.seeds import generator
from peer.algorithms import division, labels, mixture, sketches
from peer.algorithms.fedspd_decisions import NOTHING, FedSpdDecisions, FedSpdState
from peer.algorithms.learner import Ability, Fields, Learner, training_fields
from peer.algorithms.personalize import weighted_sum
from peer.algorithms.predictor import Predictor
from peer.algorithms.privacy import Privacy
from peer.algorithms.private import SampleUse
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector
from peer.core.messages import ModelHeader

BATCH_NORM_SAMPLES_MIN = 10  # as the authors' code


class FedSpd(FedSpdDecisions):
    """FedSPD; the choices that the paper leaves open are options."""

    name = "fedspd"
    default_final_epochs = 10
    keys: ClassVar = {"optimizer_state": EffectiveWhen.never("algorithm fedspd resets the optimizer in each round")}

    # ---- the start --------------------------------------------------------------------------------------------------

    @classmethod
    @override
    def needs(cls, manifest: Manifest) -> frozenset[Ability]:
        """Return losses of samples and training on those of a cluster; outputs where predictions are combined."""
        needed: frozenset[Ability] = frozenset({"losses", "subset"})
        return needed if cls.parse_options(manifest).personalize == "average" else needed | {"outputs"}

    @override
    def begin(self, workspace: Workspace[FedSpdState]) -> FedSpdState:
        """Return the state before the first round, and label the samples; with warm rounds, all belong to center 0.

        With differential privacy the state holds a sample count of 1, so no offer carries the true count.

        Raises:
            ConfigError: the options do not fit this peer's samples.
        """
        self._check_samples(workspace.learner)
        count = workspace.learner.count()
        if self.options.warm_rounds:
            z = np.zeros(count, np.int64)
        else:
            z = mixture.first_labels(self.options.init_labels, count, self.slots, self.manifest.seed, self.peer_id)
            z = mixture.fill_clusters(z, np.zeros((self.slots, count)), self._samples_min(workspace.learner))
        state = FedSpdState(
            sample_count=1 if self.options.dp_epsilon else count,
            selected_at=(NOTHING,) * self.slots,
            anchor=labels.Anchor(self.peer_id, 0),
        )
        return self._set_labels(state, z)

    def _check_samples(self, learner: Learner) -> None:
        if self.options.personalize == "confident" and learner.labels() is None:
            raise ConfigError(
                "run.options.personalize: expected 'average' or 'mixture' for a task without one class for each sample, got "
                "'confident'"
            )
        buffers = [
            spec.name for spec in self.travelling(self.manifest, learner.schema).tensors if spec.role == "buffer"
        ]
        if self.options.dp_epsilon is not None and buffers:
            raise ConfigError(
                f"run.options.dp_epsilon: expected a model that sends parameters alone, got the buffer {buffers[-1]!r}. "
                "With noise a variance may become negative, and without noise it leaks data. Use torch.nn.GroupNorm in place "
                "of BatchNorm, register_buffer(..., persistent=False) for a constant, or run.private_parameters."
            )
        count, least = learner.count(), self._samples_min(learner)
        if self.options.dp_epsilon is not None and count < self.slots * least:
            raise ConfigError(
                f"run.options.min_cluster_samples: expected at most {count // self.slots}, got {least}. This peer has {count} "
                f"training samples for {self.slots} clusters, and run.options.dp_epsilon needs {least} in each. Lower it, or "
                "set fewer run.clusters."
            )

    @override
    def notes(self, workspace: Workspace[FedSpdState]) -> list[str]:
        """Return the privacy statement, if dp_epsilon is set."""
        privacy = self._privacy(workspace)
        if privacy is None:
            return []
        models = self.slots if self.phase(0) == "all" else 1
        return [privacy.statement(self.manifest.rounds, models, self.options.noisy_self)]

    @override
    def uses(self, round_index: int) -> SampleUse:
        """Refuse run.privacy: this algorithm has the mechanism of its paper."""
        raise self.not_private("it has a mechanism of its own, run.options.dp_epsilon")

    @property
    @override
    def hides_samples(self) -> bool:
        return self.options.dp_epsilon is not None or super().hides_samples

    def _privacy(self, workspace: Workspace[FedSpdState]) -> Privacy | None:
        o = self.options
        if (
            o.dp_epsilon is None or o.min_cluster_samples is None
        ):  # the constructor refuses the first without the second
            return None
        return Privacy(o.dp_epsilon, o.dp_delta, o.dp_clip, o.min_cluster_samples)

    def _samples_min(self, learner: Learner) -> int:
        if self.options.min_cluster_samples is not None:
            return self.options.min_cluster_samples
        normalized = any(tensor.role == "buffer" for tensor in learner.schema.tensors)
        return BATCH_NORM_SAMPLES_MIN if normalized else 0

    # ---- the round ----------------------------------------------------------------------------------------------------

    @override
    def assign(self, workspace: Workspace[FedSpdState]) -> FedSpdState:
        """Select this round's center, keep all centers for the label check, and make this round's sketches."""
        state, t, phase = workspace.state, workspace.round_index, self.phase(workspace.round_index)
        trained: tuple[int, ...]
        if phase == "warm":
            selected, trained = 0 if self.relaying(t) else NOTHING, (0,)
        elif phase == "all":
            selected, trained = NOTHING, tuple(range(self.slots))
        else:
            selected = self._selected(workspace, state, phase)
            trained = (selected,)
        at = tuple(t if slot in trained else before for slot, before in enumerate(state.selected_at))
        state = replace(state, selected=selected, trained=trained, selected_at=at, round_index=t)
        self._keep_centers(workspace)
        if self.aligning(t):
            size, seed = self.options.sketch_size, self.manifest.seed
            part = workspace.models.part
            centers = [part.of(self.published(workspace, slot)) for slot in range(self.slots)]
            rows = sketches.sketch(centers, workspace.scratch["reference"], size, seed)
            return replace(state, sketches=rows, sketch_ids=None)
        if self.relaying(t):
            return replace(state, sketches=state.updates, sketch_ids=state.update_ids)
        return replace(state, sketches=None, sketch_ids=None)

    @override
    def sit_out(self, workspace: Workspace[FedSpdState]) -> FedSpdState:
        """Take no part in this round: select no cluster."""
        self._keep_centers(workspace)
        state = replace(workspace.state, trained=(), selected=NOTHING, sketches=None, sketch_ids=None)
        return replace(state, round_index=workspace.round_index)

    def _selected(self, workspace: Workspace[FedSpdState], state: FedSpdState, phase: str) -> int:
        if phase == "hard" and state.hard_cluster is not None:
            return state.hard_cluster
        if phase == "hard":
            return int(
                np.argmin([workspace.learner.mean_loss(workspace.models.model(slot)) for slot in range(self.slots)])
            )
        u_min, seed, t = self.options.u_min, self.manifest.seed, workspace.round_index
        if self.options.selection == "partition":
            ids = self.graph.ids
            return mixture.partition_cluster(self.slots, seed, t, ids.index(self.peer_id), len(ids))
        return mixture.select_cluster(state.mixture, u_min, seed, t, self.peer_id)

    def _keep_centers(self, workspace: Workspace[FedSpdState]) -> None:
        if "reference" not in workspace.scratch:
            part = workspace.models.part
            first, common = self.initial_models(workspace.learner)
            models = [part.of(model) for model in first] if common else []
            workspace.scratch["reference"] = weighted_sum(models, [1 / self.slots] * self.slots) if common else None
        if self.inspects_arrivals:
            workspace.scratch["round_start_centers"] = [workspace.models.share_part(slot) for slot in range(self.slots)]

    @property
    @override
    def inspects_arrivals(self) -> bool:
        """Whether the label check is on; it needs two centers."""
        return self.options.label_check and self.slots > 1

    @override
    def screen_arrival(self, workspace: Workspace[FedSpdState], header: ModelHeader, model: Vector) -> Refusal | None:
        """Refuse a model that fits another own center, as of the round's start, clearly better than the one it names."""
        if self.phase(header.round_index) == "warm" or "round_start_centers" not in workspace.scratch:
            return None
        centers, reference = workspace.scratch["round_start_centers"], workspace.scratch["reference"]
        return labels.conflict(model, header.slot, centers, reference, self.options.label_margin)

    @override
    def train(self, workspace: Workspace[FedSpdState]) -> Fields:
        """Train each center in state.trained on its samples D_is (warm and hard rounds: on all), longer in round 0."""
        done = []
        z, phase, privacy = workspace.state.z, self.phase(workspace.round_index), self._privacy(workspace)
        epochs = workspace.manifest.local_epochs * (
            self.options.first_round_factor if workspace.round_index == 0 else 1
        )
        for slot in workspace.state.trained:
            start = workspace.models.model(slot)
            indices = None if phase in ("warm", "hard") else np.flatnonzero(z == slot)
            if indices is not None and not len(indices):
                continue  # no samples: the center is sent unchanged
            model, stats = workspace.fit(start, replace(workspace.slot_plan(slot), indices=indices, epochs=epochs))
            done.append(stats)
            if workspace.round_index == 0 and self.options.split == "updates":
                self._sketch_update(workspace, model, start)
            if privacy is not None:
                part = workspace.models.part
                noisy = part.joined(model, privacy.noisy(part.of(start), part.of(model)))
                workspace.scratch.setdefault("noisy_models", {})[slot] = noisy
                model = noisy if self.options.noisy_self else model
            workspace.models.replace(slot, model)
        return training_fields(done) | {"selected_cluster": workspace.state.selected}

    @override
    def outgoing(self, workspace: Workspace[FedSpdState], slot: int) -> Vector | None:
        """Return the noisy model that `train` made, with privacy; else None."""
        return self.published(workspace, slot) if self.options.dp_epsilon else None

    @override
    def published(self, workspace: Workspace[FedSpdState], slot: int) -> Vector:
        """Return the model that may be sent: the center; with ``noisy_self`` false, the slot's last noisy model."""
        if self.options.dp_epsilon is None or self.options.noisy_self:
            return super().published(workspace, slot)
        noisy: dict[int, Vector] = workspace.scratch.setdefault("noisy_models", {})
        if slot not in noisy:  # not sent since the start of the process: the first model contains no data
            noisy[slot] = self.initial_models(workspace.learner)[0][slot]
        return noisy[slot]

    # ---- the close ------------------------------------------------------------------------------------------------------

    @override
    def close(self, workspace: Workspace[FedSpdState]) -> FedSpdState:
        """Merge (Eq. 1), split the center after the last warm round, label all samples (Step 4), align labels."""
        self.merge(workspace)
        state = workspace.state
        t, warm = workspace.round_index, self.options.warm_rounds
        if self.relaying(t):
            state = self._merge_relayed_sketches(workspace, state)
        if t + 1 < warm:
            return state
        if t + 1 == warm:
            self._split(workspace)
            state = self._hard_cluster(state)
        state = self._label_samples(workspace, state)
        return self._align(workspace, state) if self.aligning(t) else state

    def _sketch_update(self, workspace: Workspace[FedSpdState], model: Vector, start: Vector) -> None:
        size, seed, part = self.options.sketch_size, self.manifest.seed, workspace.models.part
        rows, ids = sketches.sketch([part.of(model)], part.of(start), size, seed), np.array([self.peer_id], np.int64)
        workspace.state = replace(workspace.state, updates=rows, update_ids=ids)

    def _merge_relayed_sketches(self, workspace: Workspace[FedSpdState], state: FedSpdState) -> FedSpdState:
        for _, select in sorted(workspace.selections.items()):
            if select.numbers and self.relaying(select.round_index):
                relayed = self.relayed(select.numbers)
                ids, rows = relayed[:, 0].astype(np.int64), sketches.rows(relayed[:, 1:], len(relayed))
                if state.update_ids is not None and state.updates is not None:
                    ids, rows = sketches.merge(state.update_ids, state.updates, ids, rows)
                else:
                    ids, rows = sketches.merge(ids[:0], rows[:0], ids, rows)
                state = replace(state, update_ids=ids, updates=rows)
        return state

    def _hard_cluster(self, state: FedSpdState) -> FedSpdState:
        """Return the state with the center of the hard rounds, if the sketches give one."""
        if state.update_ids is None or state.updates is None:
            return state
        parts = division.divide(state.update_ids, state.updates, self.slots, self.manifest.seed)
        return replace(state, hard_cluster=parts.get(self.peer_id, state.hard_cluster))

    def _label_samples(self, workspace: Workspace[FedSpdState], state: FedSpdState) -> FedSpdState:
        losses = np.stack([workspace.learner.sample_losses(workspace.models.model(slot)) for slot in range(self.slots)])
        classes = workspace.learner.labels() if self.options.center_labels else None
        compared = losses if classes is None else mixture.center_by_class(losses, classes)
        return self._set_labels(state, mixture.nearest(compared, self._samples_min(workspace.learner)))

    def _set_labels(self, state: FedSpdState, z: mixture.Labels) -> FedSpdState:
        weights = mixture.mixture_weights(z, self.slots)
        return replace(state, z=z, mixture=tuple(weights), cluster_index=int(np.argmax(weights)))

    def _split(self, workspace: Workspace[FedSpdState]) -> None:
        """Copy the warm center to all slots and add noise to each, different by slot and equal on all peers.

        Buffers get none: it would make a variance negative. Private tensors get none: no center is told from another by them.
        """
        warm = workspace.models.model(0)
        scale = np.float32(self.options.split_noise * np.linalg.norm(warm) / np.sqrt(warm.size))
        schema = workspace.learner.schema
        noisy = {spec.name for spec in self.travelling(self.manifest, schema).tensors if spec.role == "parameter"}
        plain = [place for spec, place in schema.slices() if spec.name not in noisy]
        for slot in range(self.slots):
            noise = generator(self.manifest.seed, "split", slot).standard_normal(warm.size, np.float32)
            for place in plain:
                noise[place] = 0
            workspace.models.replace(slot, warm + scale * noise)

    def _align(self, workspace: Workspace[FedSpdState], state: FedSpdState) -> FedSpdState:
        """Take over the labels of the neighbor with the smallest anchor: permute the own centers and labels to match."""
        # In async pace a neighbor's newest sketches may be those that it relayed in a warm round.
        selections = {n: s for n, s in workspace.selections.items() if self.aligning(s.round_index)}
        parent = labels.choose_parent(state.anchor, labels.anchors_of(selections), len(self.graph.nodes) - 1)
        if parent is None or state.sketches is None:
            return state
        select = workspace.selections[parent]
        anchor = labels.anchor_of(select)
        order = labels.matching(state.sketches, sketches.rows(select.numbers.array[2:], self.slots))
        state = replace(state, anchor=labels.Anchor(anchor.peer_id, anchor.hops + 1))
        if order == list(range(self.slots)):
            return state
        centers = [workspace.models.model(slot) for slot in order]
        for slot, center in enumerate(centers):
            workspace.models.replace(slot, center.copy())  # a snapshot may still share the array
        noisy = workspace.scratch.get("noisy_models", {})
        workspace.scratch["noisy_models"] = {slot: noisy[old] for slot, old in enumerate(order) if old in noisy}
        state = replace(state, selected_at=tuple(state.selected_at[s] for s in order))
        return self._set_labels(state, np.argsort(order)[state.z])

    @override
    def adopt(self, workspace: Workspace[FedSpdState]) -> FedSpdState:
        """Average the pulled centers, then label the samples by them."""
        state = super().adopt(workspace)
        return state if workspace.round_index < self.options.warm_rounds else self._label_samples(workspace, state)

    # ---- the result -----------------------------------------------------------------------------------------------------

    @override
    def evaluation_model(self, workspace: Workspace[FedSpdState]) -> Vector:
        """Return the sum of the centers, weighted by the mixture (Eq. 2)."""
        return weighted_sum([workspace.models.model(slot) for slot in range(self.slots)], workspace.state.mixture)

    @override
    def evaluate(self, workspace: Workspace[FedSpdState]) -> Fields:
        """Return the metrics of the personalized model or predictions, with the mixture and its confusion with the truth."""
        learner, state = workspace.learner, workspace.state
        shown: Fields = {"mixture": list(state.mixture), "anchor": list(state.anchor)}
        shown |= mixture.division(state.z, self.slots, true=workspace.true_cluster, classes=learner.labels())
        return super().evaluate(workspace) | {"state": shown}

    @override
    def predictor(self, workspace: Workspace[FedSpdState]) -> Predictor:
        """Return the personalized model, or the centers whose predictions are combined."""
        how = self.options.personalize
        if how == "average" or workspace.round_index < self.options.warm_rounds:
            return super().predictor(workspace)
        models = tuple(workspace.models.model(slot) for slot in range(self.slots))
        return Predictor(models, how, workspace.state.mixture)

    @override
    def final(self, workspace: Workspace[FedSpdState]) -> tuple[Vector, Fields]:
        """Return the model of Eq. 2 and the metrics of what predicts, which may be other than that model."""
        predictor = {"predictor": self.predictor(workspace).how}
        return self.evaluation_model(workspace), self.evaluate(workspace) | predictor
