"""FedSPD: each sample belongs to one of S distributions, each peer is a mixture of them, each round trains one center.

Round (specification, section 2): select s_i ~ u_i and announce it; tau epochs on the samples of s_i only; send the model to the
neighbors that selected the same; average what comes (Eq. 1), no other center moves; label every sample anew by its lowest
loss. At the end the personalized model is the weighted sum of the centers (Eq. 2) and a few epochs on all own samples.

Beyond the paper, as options that are off: `warm_rounds` and `hard_rounds`, a start that breaks the symmetry between centers
without a coordinator, and `personalize`, which predicts without averaging centers (docs/fedspd.md has what they gain).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coordinator_free_bootstrap.errors import ConfigError
from coordinator_free_bootstrap.seeds import derive_seed, generator
from peer.algorithms import labels, mixture, sides
from peer.algorithms.base import Bench, Learner
from peer.algorithms.fedspd_decisions import NOTHING, FedSpdDecisions
from peer.algorithms.personalize import confident_predictions, final_phase, mixed_predictions, weighted_sum
from peer.algorithms.privacy import Privacy
from peer.core.averaging import Vector
from peer.core.decisions import Facts, Rejection
from peer.core.messages import ModelHeader

BATCH_NORM_SAMPLES_MIN = 10
PASSING = ("sketches", "sketch_ids", "co_selecting")  # facts of one round


class FedSpd(FedSpdDecisions):
    """FedSPD with every choice that the paper leaves open as an option."""

    name = "fedspd"

    # ---- the start --------------------------------------------------------------------------------------------------

    def initial_models(self, learner: Learner) -> tuple[list[Vector], bool]:
        """S different centers: the same on all peers (OURS), or each peer's own draws (the authors' code)."""
        if self.options.initialization == "global":
            return super().initial_models(learner)
        seeds = [derive_seed(self.manifest.seed, "initial", slot, self.peer_id) for slot in range(self.slots)]
        return [learner.initial_model(seed) for seed in seeds], False

    def begin(self, bench: Bench) -> Facts:
        """Random labels, none too rare; with a warm start everything belongs to center 0 until the split.

        Raises:
            ConfigError: the options do not fit this peer's samples.
        """
        self._check_samples(bench.learner)
        count = bench.learner.count()
        if self.options.warm_rounds:
            z = np.zeros(count, np.int64)
        else:
            z = mixture.first_labels(self.options.init_labels, count, self.slots, self.manifest.seed, self.peer_id)
            z = mixture.filled(z, np.zeros((self.slots, count)), self._samples_min(bench.learner))
        facts = {"trained": [], "selected": NOTHING, "selected_at": [NOTHING] * self.slots, "anchor": [self.peer_id, 0]}
        facts["sample_count"] = 1 if self.options.dp_epsilon else count  # with privacy, counts stay at home
        return facts | self._relabeled(bench, z)

    def _check_samples(self, learner: Learner) -> None:
        if self.options.personalize == "confident" and learner.labels() is None:
            raise ConfigError(
                "run.options.personalize: found 'confident' for a regression, where the largest prediction is not the surest; "
                "allowed: 'average' or 'mixture'"
            )
        count, least = learner.count(), self._samples_min(learner)
        if self.options.dp_epsilon is not None and count < self.slots * least:
            raise ConfigError(
                f"run.options.min_cluster_samples: found {least}, but this peer has {count} training samples for {self.slots} "
                f"clusters, and run.options.dp_epsilon needs {least} in each; allowed: up to {count // self.slots}, or fewer "
                "run.clusters"
            )

    def notes(self, bench: Bench) -> list[str]:
        """Say what epsilon means, where there is one."""
        privacy = self._privacy(bench)
        if privacy is None:
            return []
        models = self.slots if self.phase(0) == "all" else 1
        return [privacy.statement(self.manifest.rounds, models, self.options.noisy_self)]

    def _privacy(self, bench: Bench) -> Privacy | None:
        o = self.options
        return None if o.dp_epsilon is None else Privacy(o.dp_epsilon, o.dp_delta, o.dp_clip, o.min_cluster_samples)

    def _samples_min(self, learner: Learner) -> int:
        if self.options.min_cluster_samples is not None:
            return int(self.options.min_cluster_samples)
        normalized = any(tensor.role == "buffer" for tensor in learner.schema.tensors)
        return BATCH_NORM_SAMPLES_MIN if normalized else 0

    # ---- the round ----------------------------------------------------------------------------------------------------

    def assign(self, bench: Bench) -> Facts:
        """Select this round's center; keep all centers as they are now, for the checks of arrivals and for sketches."""
        facts = {key: value for key, value in bench.facts.items() if key not in PASSING}
        t, phase = bench.round_index, self.phase(bench.round_index)
        if phase == "warm":
            facts.update(selected=0 if self.passing_on(t) else NOTHING, trained=[0])
        elif phase == "all":
            facts.update(selected=NOTHING, trained=list(range(self.slots)))
        else:
            selected = self._selected(bench, facts, phase)
            facts.update(selected=selected, trained=[selected])
        for slot in facts["trained"]:
            facts["selected_at"] = [t if s == slot else at for s, at in enumerate(facts["selected_at"])]
        facts["round_index"] = t
        self._remember(bench)
        if self.aligning(t):
            size, seed = self.options.sketch_size, self.manifest.seed
            centers = [self.published(bench, slot) for slot in range(self.slots)]
            facts["sketches"] = labels.pack(labels.sketch(centers, bench.scratch["reference"], size, seed)).hex()
        elif self.passing_on(t) and "sketches" in bench.arrays:
            facts["sketch_ids"] = bench.arrays["sketch_ids"].tolist()
            facts["sketches"] = labels.pack(bench.arrays["sketches"]).hex()
        return facts

    def idle(self, bench: Bench) -> Facts:
        """Sit this round out: select nothing."""
        self._remember(bench)
        facts = {key: value for key, value in bench.facts.items() if key not in PASSING}
        return {**facts, "trained": [], "selected": NOTHING, "round_index": bench.round_index}

    def _selected(self, bench: Bench, facts: Facts, phase: str) -> int:
        if phase == "hard" and "side" in facts:
            return int(facts["side"])
        if phase == "hard":
            return int(np.argmin([bench.learner.mean_loss(bench.models.model(slot)) for slot in range(self.slots)]))
        u_min, seed = self.options.u_min, self.manifest.seed
        return mixture.select_cluster(facts["mixture"], u_min, seed, bench.round_index, self.peer_id)

    def _remember(self, bench: Bench) -> None:
        if "reference" not in bench.scratch:
            common = self.options.initialization == "global"
            models = super().initial_models(bench.learner)[0] if common else []
            bench.scratch["reference"] = weighted_sum(models, [1 / self.slots] * self.slots) if common else None
        if self.inspects_arrivals:
            bench.scratch["centers"] = [bench.models.share(slot) for slot in range(self.slots)]

    @property
    def inspects_arrivals(self) -> bool:
        """Only with the label check on, and labels to confuse."""
        return bool(self.options.label_check) and self.slots > 1

    def screen_arrival(self, bench: Bench, header: ModelHeader, model: Vector) -> Rejection | None:
        """Drop a model that fits another own center, as of the round's start, clearly better than the one of its tag."""
        if self.phase(header.round_index) == "warm" or "centers" not in bench.scratch:
            return None
        centers, reference = bench.scratch["centers"], bench.scratch["reference"]
        return labels.conflict(model, header.slot, centers, reference, self.options.label_margin)

    def train(self, bench: Bench) -> dict[str, Any]:
        """Tau epochs on D_is of each trained center (all samples where they stay together), longer in the first round."""
        losses = []
        z, phase, privacy = bench.arrays["z"], self.phase(bench.round_index), self._privacy(bench)
        epochs = bench.manifest.local_epochs * (self.options.first_round_factor if bench.round_index == 0 else 1)
        for slot in bench.facts["trained"]:
            start = bench.models.model(slot)
            indices = None if phase in ("warm", "hard") else np.flatnonzero(z == slot)
            if indices is not None and not len(indices):
                continue  # an untouched center is sent
            model, stats = bench.fit(start, bench.seed("train", slot), indices=indices, epochs=epochs)
            losses.append(stats.loss)
            if bench.round_index == 0 and self.options.split == "updates":
                self._sketch_update(bench, model, start)
            if privacy is not None:
                sent = privacy.sent(start, model)
                bench.scratch.setdefault("sent", {})[slot] = sent
                model = sent if self.options.noisy_self else model
            bench.models.replace(slot, model)
        loss = {"train_loss": float(np.mean(losses))} if losses else {}
        return loss | {"selected_cluster": bench.facts["selected"]}

    def outgoing(self, bench: Bench, slot: int) -> Vector | None:
        """With privacy: the noisy model that `train` has made."""
        return self.published(bench, slot) if self.options.dp_epsilon else None

    def published(self, bench: Bench, slot: int) -> Vector:
        """Return what may leave this peer: its center; where only what is sent is noisy, the last noisy model."""
        if self.options.dp_epsilon is None or self.options.noisy_self:
            return super().published(bench, slot)
        sent: dict[int, Vector] = bench.scratch.setdefault("sent", {})
        if slot not in sent:  # nothing of it was sent in this life: the first model tells nothing
            sent[slot] = self.initial_models(bench.learner)[0][slot]
        return sent[slot]

    # ---- the close ------------------------------------------------------------------------------------------------------

    def close(self, bench: Bench) -> Facts:
        """Merge (Eq. 1), split after the last warm round, label all samples anew (Step 4), align labels."""
        self.merge(bench)
        facts = dict(bench.facts)
        t, warm = bench.round_index, self.options.warm_rounds
        if self.passing_on(t):
            self._join_sketches(bench)
        if t + 1 < warm:
            return facts
        if t + 1 == warm:
            self._split(bench)
            facts |= self._side(bench)
        facts |= self._cluster(bench)
        if self.aligning(t) and facts.get("sketches"):
            facts |= self._aligned(bench, facts)
        return facts

    def _sketch_update(self, bench: Bench, model: Vector, start: Vector) -> None:
        size, seed = self.options.sketch_size, self.manifest.seed
        bench.arrays["sketch_ids"] = np.array([self.peer_id], np.int64)
        bench.arrays["sketches"] = labels.sketch([model], start, size, seed)

    def _join_sketches(self, bench: Bench) -> None:
        for _, announced in sorted(bench.announced.items()):
            if announced.sketch and self.passing_on(announced.round_index):
                ids = np.array(announced.scalars, np.int64)
                rows = labels.unpack(announced.sketch, len(ids))
                known = bench.arrays.get("sketch_ids", ids[:0]), bench.arrays.get("sketches", rows[:0])
                bench.arrays["sketch_ids"], bench.arrays["sketches"] = sides.join(*known, ids, rows)

    def _side(self, bench: Bench) -> Facts:
        """Return the center on which this peer's samples stay together in the hard rounds, where it is known."""
        if "sketches" not in bench.arrays:
            return {}
        parts = sides.divide(bench.arrays["sketch_ids"], bench.arrays["sketches"], self.slots, self.manifest.seed)
        return {"side": parts[self.peer_id]} if self.peer_id in parts else {}

    def _cluster(self, bench: Bench) -> Facts:
        losses = np.stack([bench.learner.sample_losses(bench.models.model(slot)) for slot in range(self.slots)])
        classes = bench.learner.labels() if self.options.center_labels else None
        compared = losses if classes is None else mixture.beside_class(losses, classes)
        return self._relabeled(bench, mixture.nearest(compared, self._samples_min(bench.learner)))

    def _relabeled(self, bench: Bench, z: mixture.Labels) -> Facts:
        bench.arrays["z"] = z
        weights = mixture.mixture_weights(z, self.slots)
        return {"mixture": weights, "cluster_index": int(np.argmax(weights))}

    def _split(self, bench: Bench) -> None:
        """Copy the warm model over all centers and push each a little its own way, the same way at every peer (OURS)."""
        warm = bench.models.model(0)
        scale = np.float32(self.options.split_noise * np.linalg.norm(warm) / np.sqrt(warm.size))
        for slot in range(self.slots):
            noise = generator(self.manifest.seed, "split", slot).standard_normal(warm.size, np.float32)
            bench.models.replace(slot, warm + scale * noise)

    def _aligned(self, bench: Bench, facts: Facts) -> Facts:
        """Take over the labels of the neighbor with the smallest anchor: permute centers and samples to match its own."""
        own = labels.Anchor(*facts["anchor"])
        parent = labels.better_anchor(own, bench.announced, len(self.graph.nodes) - 1)
        if parent is None:
            return {}
        announced = bench.announced[parent]
        anchor = labels.anchor_of(announced)
        mine = labels.unpack(bytes.fromhex(facts["sketches"]), self.slots)
        order = labels.matching(mine, labels.unpack(announced.sketch, self.slots))
        permuted = {"anchor": [anchor.peer_id, anchor.hops + 1]}
        if order == list(range(self.slots)):
            return permuted
        centers = [bench.models.model(slot) for slot in order]
        for slot, center in enumerate(centers):
            bench.models.replace(slot, center.copy())  # a snapshot may still share the array
        sent = bench.scratch.get("sent", {})
        bench.scratch["sent"] = {slot: sent[old] for slot, old in enumerate(order) if old in sent}
        at = facts["selected_at"]
        return (
            permuted
            | {"selected_at": [at[s] for s in order]}
            | self._relabeled(bench, np.argsort(order)[bench.arrays["z"]])
        )

    def adopt(self, bench: Bench) -> Facts:
        """After catching up, label the samples by the adopted centers."""
        facts = dict(super().adopt(bench))
        return facts if bench.round_index < self.options.warm_rounds else facts | self._cluster(bench)

    # ---- the result -----------------------------------------------------------------------------------------------------

    def evaluation_model(self, bench: Bench) -> Vector:
        """Eq. 2: the centers, weighted by the mixture."""
        return weighted_sum([bench.models.model(slot) for slot in range(self.slots)], bench.facts["mixture"])

    def evaluate(self, bench: Bench) -> dict[str, Any]:
        """Evaluate the personalized model as it would be now, and show the mixture beside the truth."""
        learner, how = bench.learner, self._personalizes(bench)
        models = [bench.models.model(slot) for slot in range(self.slots)]
        if how == "average":
            result = learner.evaluate(self.evaluation_model(bench))
        elif how == "confident":
            result = learner.evaluate_predictions(confident_predictions(learner, models))
        else:
            result = learner.evaluate_predictions(mixed_predictions(learner, models, bench.facts["mixture"]))
        facts: dict[str, Any] = {"mixture": bench.facts["mixture"], "anchor": bench.facts["anchor"]}
        if bench.true_cluster is not None:
            facts["confusion"] = mixture.confusion(bench.true_cluster, bench.arrays["z"], self.slots)
        return {"accuracy": result.metric, "loss": result.loss, "facts": facts}

    def _personalizes(self, bench: Bench) -> str:
        return "average" if bench.round_index < self.options.warm_rounds else str(self.options.personalize)

    def final(self, bench: Bench) -> tuple[Vector, dict[str, Any]]:
        """Eq. 2 and the final phase; accuracy before and after it, which is the same where predictions are not this model's."""
        before, how = self.evaluate(bench), self._personalizes(bench)
        personalized = final_phase(
            bench, self.evaluation_model(bench), self.options.final_epochs, self.options.final_learning_rate
        )
        after = before | {"predictor": how}
        if how == "average":
            result = bench.learner.evaluate(personalized)
            after = before | {"accuracy": result.metric, "loss": result.loss, "predictor": "personalized_model"}
        numbers = {"accuracy_before_final": before["accuracy"], "accuracy_after_final": after["accuracy"]}
        return personalized, after | numbers
