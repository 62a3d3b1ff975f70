"""FedSPD's decisions: what a round does, who gets which model, and which messages cannot be right. Pure."""

from __future__ import annotations

from typing import Literal

from coordinator_free_bootstrap.errors import ConfigError, Refusal
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.base import Algorithm
from peer.algorithms.fedspd_options import FedSpdOptions
from peer.core.decisions import Facts, Offer, Rejection
from peer.core.effects import Target
from peer.core.messages import Announce, ModelHeader

NOTHING = -1  # is selected by a peer that sits out, and in a round in which all centers are exchanged
SKETCHES_BYTES_MAX = 1 << 20  # of one announcement, as the wire allows


class FedSpdDecisions(Algorithm):
    """What FedSPD answers to the engine; `peer.algorithms.fedspd` adds the work on tensors."""

    Options = FedSpdOptions

    def __init__(self, manifest: Manifest, peer_id: int, graph: Graph) -> None:
        super().__init__(manifest, peer_id, graph)
        stale = manifest.stale or ("drop" if manifest.pace == "lockstep" else "fold")
        self.stale_rounds_max = manifest.stale_rounds_max if stale == "fold" else 0
        if self.options.dp_epsilon is not None and not self.options.min_cluster_samples:
            raise ConfigError(
                "run.options.dp_epsilon needs run.options.min_cluster_samples of 1 or more: the noise is scaled by this "
                "public floor, so that no private count leaks; 10 is usual"
            )
        if self.options.split == "updates":
            self._check_split(len(graph.nodes))

    def _check_split(self, peers: int) -> None:
        if not self.options.hard_rounds:
            raise ConfigError(
                "run.options.split 'updates' acts in hard rounds: found run.options.hard_rounds 0; allowed: 1 or more, "
                "or split 'noise'"
            )
        size = 4 * peers * self.options.sketch_size
        if self.options.dp_epsilon is not None or size > SKETCHES_BYTES_MAX or not self.options.warm_rounds:
            raise ConfigError(
                "run.options.split 'updates' needs run.options.warm_rounds, no run.options.dp_epsilon, which does not cover "
                f"sketches, and at most {SKETCHES_BYTES_MAX} bytes for {peers} sketches, found {size}; lower "
                "run.options.sketch_size, or use split 'noise'"
            )

    # ---- which kind of round ----------------------------------------------------------------------------------------

    def phase(self, round_index: int) -> Literal["warm", "all", "hard", "soft"]:
        """Return what a round does: average one model, train all centers, keep a peer's samples together, or FedSPD."""
        options = self.options
        if round_index < options.warm_rounds:
            return "warm"
        if round_index < options.warm_rounds + options.hard_rounds:
            return "hard"
        return "all" if round_index == 0 and options.first_round == "all_clusters" else "soft"

    def selecting(self, round_index: int) -> bool:
        """Return whether peers announce one cluster in a round and exchange only that."""
        return self.phase(round_index) in ("hard", "soft") or self.passing_on(round_index)

    def passing_on(self, round_index: int) -> bool:
        """Return whether announcements pass on sketches of first updates: as many rounds as the graph is wide, and one."""
        warm = self.options.split == "updates" and self.phase(round_index) == "warm"
        return warm and 1 <= round_index <= self.graph.diameter_bound + 1

    def aligning(self, round_index: int) -> bool:
        """Return whether announcements carry sketches: after round 0, and every A rounds, of the centers as they are then."""
        every = self.options.align_every
        return bool(every) and self.slots > 1 and self.phase(round_index) == "soft" and round_index % every == 1 % every

    # ---- decisions --------------------------------------------------------------------------------------------------

    def selects(self, facts: Facts, round_index: int) -> Announce | None:
        """Announce the cluster that `assign` selected, with the sketches that are due and whose they are."""
        selected = facts["selected"]
        if selected == NOTHING:
            return None
        sketches = bytes.fromhex(facts.get("sketches", ""))
        scalars: tuple[float, ...] = ()
        if sketches:
            about = facts["sketch_ids"] if self.passing_on(round_index) else facts["anchor"]
            scalars = tuple(float(v) for v in about)
        return Announce(self.peer_id, 0, round_index, 0, -1, selected, scalars, sketches)

    def agrees(self, facts: Facts, round_index: int, announced: dict[int, Announce]) -> Facts:
        """Count the co-selecting neighbors: this peer's degree in the induced subgraph."""
        return {"co_selecting": sum(a.selected == facts["selected"] for a in announced.values())}

    def offers(
        self, facts: Facts, round_index: int, step: int, neighbor: int, announced: Announce | None
    ) -> tuple[Offer, ...]:
        """Offer the selected center to co-selectors (or all); where nothing was selected, every trained one to all."""
        count = facts["sample_count"]
        slot = facts["selected"]
        if slot == NOTHING:
            return tuple(Offer(trained, count) for trained in facts["trained"])
        if self.options.exchange == "same_cluster" and (announced is None or announced.selected != slot):
            return ()
        degree = (float(max(1, facts.get("co_selecting", 0))),) if self.mix == "metropolis" else ()
        return (Offer(slot, count, scalars=degree),)

    def expected(self, facts: Facts, round_index: int, step: int, announced: Announce) -> int | None:
        """One model comes from a neighbor that selected the same cluster; when broadcasting, from each."""
        return int(self.options.exchange == "broadcast" or announced.selected == facts["selected"])

    def rejects_announce(self, facts: Facts, announce: Announce) -> Rejection | None:
        """A pass is bare; a selection names its cluster, and brings anchor and sketches of the agreed size or neither."""
        bare = not announce.sketch and not announce.scalars
        if announce.total >= 0:
            fits = bare and announce.selected == NOTHING
            return None if fits else Rejection(Refusal.MALFORMED, "a pass carries no selection, scalars or sketch")
        if not self.selecting(announce.round_index) or announce.selected == NOTHING:
            return Rejection(
                Refusal.MALFORMED, f"round {announce.round_index}: selection {announce.selected} announced"
            )
        if bare:
            return None
        if self.passing_on(announce.round_index):
            return self._wrong_passed_on(announce)
        expected = 4 * self.options.sketch_size * self.slots if self.aligning(announce.round_index) else 0
        if len(announce.sketch) != expected or not expected:
            return Rejection(Refusal.WRONG_SIZE, f"sketches of {len(announce.sketch)} bytes, expected {expected}")
        known = announce.scalars[:1] and announce.scalars[0] in self.graph.ids
        if len(announce.scalars) != 2 or not known or announce.scalars[1] not in range(len(self.graph.nodes)):
            return Rejection(
                Refusal.MALFORMED, f"anchor and hops {announce.scalars}: no peer and distance of this graph"
            )
        return None

    def _wrong_passed_on(self, announce: Announce) -> Rejection | None:
        ids, expected = announce.scalars, 4 * self.options.sketch_size * len(announce.scalars)
        if len(announce.sketch) != expected:
            return Rejection(Refusal.WRONG_SIZE, f"sketches of {len(announce.sketch)} bytes, expected {expected}")
        if len(set(ids)) != len(ids) or not set(ids) <= set(self.graph.ids):
            return Rejection(Refusal.MALFORMED, "sketches of peers that this graph does not have, or twice of one")
        return None

    def rejects(self, facts: Facts, header: ModelHeader, announced: Announce | None) -> Rejection | None:
        """A model must be of the cluster that its sender announced for the round."""
        if not self.selecting(header.round_index):
            one = self.phase(header.round_index) == "warm"
            wrong = one and header.slot != 0
            return Rejection(Refusal.SLOT_OUT_OF_RANGE, f"slot {header.slot} in a warm round") if wrong else None
        if announced is None or announced.selected == NOTHING:
            return Rejection(Refusal.NOT_ANNOUNCED, f"no cluster announced for round {header.round_index}")
        if announced.selected != header.slot or header.total != 1:
            found = f"model {header.index} of {header.total} of cluster {header.slot}"
            return Rejection(Refusal.CONTRADICTS_ANNOUNCEMENT, f"{found}, announced was one of {announced.selected}")
        if self.mix == "metropolis":
            allowed = range(1, self.graph.degree(header.sender) + 1)
            if len(header.scalars) != 1 or header.scalars[0] not in allowed:
                return Rejection(Refusal.WEIGHT_OUT_OF_RANGE, f"degree {header.scalars}, 1 to {allowed[-1]} is allowed")
        return None

    def targets(self, facts: Facts, header: ModelHeader) -> tuple[Target, ...] | None:
        """Fold into the selected center (Eq. 1), or into one selected within the staleness limit; nothing else moves."""
        if not self.selecting(header.round_index):
            return super().targets(facts, header)
        recently = facts["selected_at"][header.slot] >= facts["round_index"] - self.stale_rounds_max
        if header.slot not in facts["trained"] and not (self.stale_rounds_max and recently):
            return None
        if self.mix == "uniform":
            return (Target(header.slot, 1.0),)
        return (Target(header.slot, 1.0 / (1.0 + max(float(facts.get("co_selecting", 0)), header.scalars[0]))),)
