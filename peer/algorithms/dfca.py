"""DFCA: every peer holds k cluster models, trains the one that fits its data, and averages what neighbors trained.

Round (Alg. 1): assign c(i) = argmin_j mean loss of model j on the own training set (Eq. 4); tau epochs on that model (Eq. 5, 9);
send it to all neighbors; for every cluster j, average the own model with the neighbors' models of j, in sequence (Eq. 8) or as
a batch (Eq. 7): `run.aggregation`.

Beyond the paper, as options: a relay warm-up (specification 1.9) that lets the first rounds of a sparse graph look like a
complete one, so that regions of the graph do not settle on opposite meanings of a cluster index; and the splitting of a
cluster for one that nobody trains.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from coordinator_free_bootstrap.errors import Refusal
from coordinator_free_bootstrap.seeds import derive_seed
from peer.algorithms.base import Algorithm, Bench, Learner, refuse_slot
from peer.core.averaging import Vector
from peer.core.decisions import Facts, Offer, Rejection
from peer.core.effects import Target
from peer.core.messages import Announce, ModelHeader

LOSS_MAX = 1e30  # of relayed losses: what a diverged model or a liar says, times a mass, must stay a number


class DfcaOptions(BaseModel):
    """``run.options`` of algorithm ``dfca``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    initialization: Literal["global", "local"] = Field("global", description="k models equal on all peers (GI), or LI")
    warmup_rounds: int = Field(0, ge=0, description="W: rounds with relaying; 0 is the paper's algorithm")
    relay_steps: int = Field(3, ge=1, le=64, description="g: mixing steps in each warm-up round")
    split_empty: bool = Field(False, description="warm-up: give a cluster that nobody trains half of the largest one")
    idle_folds: bool = Field(True, description="a peer that does not take part in a round still folds arrivals")


class Dfca(Algorithm):
    """DFCA with global or local initialization, sequential or batch aggregation, and the optional relay warm-up."""

    name = "dfca"
    Options: ClassVar[type[BaseModel]] = DfcaOptions

    # ---- decisions ----------------------------------------------------------------------------------------------

    def warming_up(self, round_index: int) -> bool:
        """Return whether a round relays."""
        return round_index < int(self.options.warmup_rounds)

    def steps(self, round_index: int) -> int:
        """G mixing steps in a warm-up round, else one exchange."""
        return int(self.options.relay_steps) if self.warming_up(round_index) else 1

    def offers(
        self, facts: Facts, round_index: int, step: int, neighbor: int, announced: Announce | None
    ) -> tuple[Offer, ...]:
        """Offer the trained cluster; when relaying, every cluster that has a mass worth the bytes."""
        if not self.warming_up(round_index):
            return super().offers(facts, round_index, step, neighbor, announced)
        masses, losses = facts["masses"], facts["relayed_losses"]
        return tuple(
            Offer(slot, facts["sample_count"], masses[slot], (losses[slot],))
            for slot in range(self.slots)
            if masses[slot] >= self.manifest.limits.weight_min
        )

    def rejects(self, facts: Facts, header: ModelHeader, announced: Announce | None) -> Rejection | None:
        """A slot must exist; a mass is at most the number of peers; a relayed loss is a number that stays one."""
        rejection = refuse_slot(header, self.slots)
        if rejection is None and self.warming_up(header.round_index):
            if not 0 < header.mass <= len(self.graph.nodes):
                return Rejection(Refusal.WEIGHT_OUT_OF_RANGE, f"mass {header.mass}, allowed up to the number of peers")
            if len(header.scalars) != 1 or not abs(header.scalars[0]) <= LOSS_MAX:
                found = f"a relayed model carries one loss of at most {LOSS_MAX:g}, found {header.scalars}"
                return Rejection(Refusal.MALFORMED, found)
        return rejection

    def targets(self, facts: Facts, header: ModelHeader) -> tuple[Target, ...] | None:
        """Fold into the announced cluster with weight 1; when relaying, with Metropolis weight times mass."""
        if self.warming_up(header.round_index):
            return (Target(header.slot, self.metropolis(header.sender) * header.mass),)
        return super().targets(facts, header)

    # ---- work ---------------------------------------------------------------------------------------------------

    def initial_models(self, learner: Learner) -> tuple[list[Vector], bool]:
        """GI: the same k models everywhere; LI: each peer draws its own, and cluster indices mean nothing yet."""
        if self.options.initialization == "global":
            return super().initial_models(learner)
        seeds = [derive_seed(self.manifest.seed, "initial", slot, self.peer_id) for slot in range(self.slots)]
        return [learner.initial_model(seed) for seed in seeds], False

    def begin(self, bench: Bench) -> Facts:
        """Not assigned yet."""
        return {"trained": [], "sample_count": bench.learner.count()}

    def assign(self, bench: Bench) -> Facts:
        """Choose the cluster of lowest loss (Eq. 4); after the first round `close` has already done so."""
        facts = dict(bench.facts)
        if "cluster_index" not in facts:
            facts.update(self._nearest(bench))
        if self.options.split_empty and self.warming_up(bench.round_index):
            facts.update(self._split(bench, facts))
        cluster = facts["cluster_index"]
        facts["trained"] = [cluster]
        if self.warming_up(bench.round_index):
            facts["masses"] = [1.0 if slot == cluster else 0.0 for slot in range(self.slots)]
            own = float(np.nan_to_num(facts["losses"][cluster], nan=LOSS_MAX).clip(-LOSS_MAX, LOSS_MAX))
            facts["relayed_losses"] = [own if slot == cluster else 0.0 for slot in range(self.slots)]
        return facts

    def idle(self, bench: Bench) -> Facts:
        """Sit this round out; when relaying, without a mass, but still as a neighbor that is present."""
        facts = super().idle(bench)
        if self.warming_up(bench.round_index):
            facts.update(masses=[0.0] * self.slots, relayed_losses=[0.0] * self.slots)
        return facts

    def aside(self, facts: Facts, round_index: int) -> frozenset[int]:
        """When relaying, every cluster is mixed by masses, so none may fold in place."""
        return frozenset(range(self.slots)) if self.warming_up(round_index) else super().aside(facts, round_index)

    def end_step(self, bench: Bench) -> Facts:
        """One mixing step of a ratio of gossiped sums: masses m <- sum w m, models <- (sum w m theta) / m."""
        facts = dict(bench.facts)
        own_share = 1.0 - sum(self.metropolis(neighbor) for neighbor in bench.present)
        masses, losses = list(facts["masses"]), list(facts["relayed_losses"])
        for slot in range(self.slots):
            own = own_share * masses[slot]
            total = own + bench.models.folded_weight(slot)
            relayed = [
                (self.metropolis(arrival.header.sender) * arrival.header.mass, arrival.header.scalars[0])
                for arrival in bench.arrivals
                if arrival.header.slot == slot and arrival.header.scalars  # in async pace some are beyond the warm-up
            ]
            weight = own + sum(share for share, _ in relayed)
            if weight > 0:
                losses[slot] = (own * losses[slot] + sum(share * loss for share, loss in relayed)) / weight
            bench.models.merge(slot, own)
            masses[slot] = total
        facts.update(masses=masses, relayed_losses=losses)
        return facts

    def close(self, bench: Bench) -> Facts:
        """Merge, then choose the cluster again, from training data, for the evaluation and for the next round."""
        if self.warming_up(bench.round_index) and "masses" in bench.facts:
            facts = self.end_step(bench)
        else:
            self.merge(bench)
            facts = dict(bench.facts)
        facts.update(self._nearest(bench))
        return facts

    def adopt(self, bench: Bench) -> Facts:
        """After catching up, choose the cluster again."""
        facts = dict(super().adopt(bench))
        facts.pop("cluster_index", None)
        return facts

    def _nearest(self, bench: Bench) -> dict[str, Any]:
        losses = [bench.learner.mean_loss(bench.models.model(slot)) for slot in range(self.slots)]
        return {"cluster_index": int(np.argmin(losses)), "losses": losses}

    def _split(self, bench: Bench, facts: Facts) -> dict[str, Any]:
        """In rounds 2, 4, ...: copy the heaviest cluster over one without mass; its peers of high loss move there."""
        masses = facts.get("masses")
        if masses is None or bench.round_index < 2 or bench.round_index % 2 or min(masses) > 0:
            return {}
        empty, heaviest = int(np.argmin(masses)), int(np.argmax(masses))
        bench.models.replace(empty, bench.models.model(heaviest).copy())
        losses = list(facts["losses"])
        losses[empty] = losses[heaviest]
        moves = facts["cluster_index"] == heaviest and losses[heaviest] > facts["relayed_losses"][heaviest]
        return {"losses": losses, "cluster_index": empty if moves else facts["cluster_index"]}
