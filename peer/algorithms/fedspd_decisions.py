"""The decisions of FedSPD: the phase of a round, the offers to each neighbor, and the checks of messages. Pure.

Source: FedSPD (arXiv 2410.18862), Algorithm 1. The phases "warm" and "hard" and all sketches are additions of this project.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from coordinator_free_bootstrap.errors import ConfigError, Refusal, RefusalCode
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.base import Algorithm
from peer.algorithms.fedspd_options import FedSpdOptions
from peer.algorithms.labels import Anchor
from peer.algorithms.mixture import Labels
from peer.algorithms.saved_state import array
from peer.algorithms.sketches import Ids, Sketches, refuse_rows
from peer.core.constants import DEFAULTS
from peer.core.decisions import AlgorithmState, Offer
from peer.core.effects import Target
from peer.core.messages import NO_NUMBERS, NUMBERS_MAX, ModelHeader, Numbers, Select

NOTHING = -1  # the selection of a peer that sits out, and of a round in which all centers are exchanged
NOWHERE = Anchor(0, 0)  # before the start


@dataclass(frozen=True)
class FedSpdState(AlgorithmState):
    """State of FedSPD.

    Attributes:
        selected: s_i of this round, or `NOTHING`.
        selected_at: the last round in which each center trained, or `NOTHING`.
        round_index: the round that ``selected`` is of.
        anchor: where this peer's labels come from.
        hard_cluster: the center of the hard rounds, where sketches of the first updates give one.
        co_selecting: of this round: neighbors that selected the same cluster, once it is agreed on.
        z: the cluster of each training sample, int64 [n].
        sketches: that the selection of this round carries, float32 [rows, q].
        sketch_ids: the peers that they are of, int64 [rows]; None: they are of the own centers.
        updates: sketches of first updates that this peer knows, float32 [rows, q].
        update_ids: the peers that they are of, int64 [rows].
    """

    selected: int = NOTHING
    selected_at: tuple[int, ...] = ()
    round_index: int = 0
    anchor: Anchor = NOWHERE
    hard_cluster: int | None = None
    co_selecting: int = 0
    z: Labels = array(np.int64, 1)
    sketches: Sketches | None = array(np.float32, 2, optional=True)
    sketch_ids: Ids | None = array(np.int64, 1, optional=True)
    updates: Sketches | None = array(np.float32, 2, optional=True)
    update_ids: Ids | None = array(np.int64, 1, optional=True)


class FedSpdDecisions(Algorithm[FedSpdOptions, FedSpdState]):
    """The decisions of FedSPD; `peer.algorithms.fedspd` adds the work on tensors."""

    Options = FedSpdOptions
    State = FedSpdState

    def __init__(self, manifest: Manifest, peer_id: int, graph: Graph) -> None:
        super().__init__(manifest, peer_id, graph)
        self.stale_rounds_max = DEFAULTS.stale_rounds if manifest.rho else 0
        if self.options.dp_epsilon is not None and manifest.start_from == "own":
            raise ConfigError(
                "run.start_from: expected a file that all peers have with run.options.dp_epsilon, got 'own', whose models "
                "contain data of one peer, and are sent without noise. Give the SHA-256 of a file, or leave dp_epsilon out."
            )
        if self.options.dp_epsilon is not None and not self.options.min_cluster_samples:
            raise ConfigError(
                "run.options.min_cluster_samples: expected 1 or more (10 is usual) with run.options.dp_epsilon, got "
                f"{self.options.min_cluster_samples}. The noise is scaled by this public number, so that no private count leaks."
            )
        if self.options.split == "updates":
            self._check_split(len(graph.nodes))

    def _check_split(self, peers: int) -> None:
        size = peers * (1 + self.options.sketch_size)
        if self.options.dp_epsilon is not None or size > NUMBERS_MAX:
            raise ConfigError(
                "run.options.split 'updates': expected no run.options.dp_epsilon (it does not cover sketches) and at most "
                f"{NUMBERS_MAX} numbers of sketches, got {self.options.dp_epsilon} and {size} numbers for {peers} peers. "
                "Change these (run.options.sketch_size for the numbers), or set split 'noise'."
            )

    @property
    @override
    def common_start(self) -> bool:
        """Whether ``initialization`` is ``global``."""
        return self.options.initialization == "global"

    # ---- phases -----------------------------------------------------------------------------------------------------

    def phase(self, round_index: int) -> Literal["warm", "all", "hard", "soft"]:
        """Return the phase of a round.

        "warm": average one center. "all": train and exchange all centers. "hard": a peer's samples all train one center.
        "soft": the rounds of the paper.
        """
        options = self.options
        if round_index < options.warm_rounds:
            return "warm"
        if round_index < options.warm_rounds + options.hard_rounds:
            return "hard"
        return "all" if round_index == 0 and options.first_round == "all_clusters" else "soft"

    def selecting(self, round_index: int) -> bool:
        """Return whether peers select one cluster in a round and exchange only its center."""
        return self.phase(round_index) in ("hard", "soft") or self.relaying(round_index)

    def relaying(self, round_index: int) -> bool:
        """Return whether selections relay sketches of first updates: for one round more than the graph's diameter."""
        warm = self.options.split == "updates" and self.phase(round_index) == "warm"
        return warm and 1 <= round_index <= self.graph.diameter_bound + 1

    def aligning(self, round_index: int) -> bool:
        """Return whether selections carry sketches of all centers, to align labels: in round 1, and every A rounds from there."""
        every = self.options.align_every
        return bool(every) and self.slots > 1 and self.phase(round_index) == "soft" and round_index % every == 1 % every

    # ---- decisions --------------------------------------------------------------------------------------------------

    @override
    def selects(self, state: FedSpdState, round_index: int) -> Select | None:
        """Return the cluster that `assign` selected, with the sketches of this round.

        The numbers are the anchor and then a sketch of each own center, or, of each peer whose update is relayed, its id and then
        the sketch.
        """
        if state.selected == NOTHING:
            return None
        if state.sketches is None:
            numbers = NO_NUMBERS
        elif state.sketch_ids is None:
            numbers = Numbers.of(state.anchor, state.sketches)
        else:
            numbers = Numbers.of(np.column_stack([state.sketch_ids, state.sketches]))
        return Select(self.peer_id, 0, round_index, state.selected, numbers)

    def relayed(self, numbers: Numbers) -> npt.NDArray[np.float64]:
        """Return the relayed sketches in a selection, float64 [n, 1 + q]: a peer id, then its sketch."""
        return numbers.array.reshape(-1, 1 + self.options.sketch_size)

    @override
    def agrees(self, state: FedSpdState, round_index: int, selections: dict[int, Select]) -> FedSpdState:
        """Return the state with the number of co-selecting neighbors: the degree among the peers of its cluster."""
        return replace(state, co_selecting=sum(select.selected == state.selected for select in selections.values()))

    @override
    def offers(
        self, state: FedSpdState, round_index: int, step: int, neighbor: int, select: Select | None
    ) -> tuple[Offer, ...]:
        """Offer the selected center to co-selecting neighbors (or all); without a selection, every trained center to all."""
        count = state.sample_count
        slot = state.selected
        if slot == NOTHING:
            return tuple(Offer(trained, count) for trained in state.trained)
        if self.options.exchange == "same_cluster" and (select is None or select.selected != slot):
            return ()
        degree = Numbers.of(max(1, state.co_selecting)) if self.mix == "metropolis" else NO_NUMBERS
        return (Offer(slot, count, numbers=degree),)

    @override
    def expected(self, state: FedSpdState, select: Select) -> int | None:
        """Return 1 for a neighbor that selected the same cluster, else 0; when broadcasting, 1 for each."""
        return int(self.options.exchange == "broadcast" or select.selected == state.selected)

    @override
    def rejects_select(self, state: FedSpdState, select: Select) -> Refusal | None:
        """Refuse a selection without cluster, in a round without selections, or with malformed sketches or anchor."""
        if not self.selecting(select.round_index) or select.selected == NOTHING:
            got = f"{select.selected} in round {select.round_index}, phase {self.phase(select.round_index)}"
            sentence = f"selection: expected a cluster, in a round that selects, got {got}"
            return Refusal(RefusalCode.MALFORMED, sentence)
        numbers = select.numbers
        if not numbers:
            return None
        if self.relaying(select.round_index):
            return self._rejects_relayed(numbers)
        if not self.aligning(select.round_index):
            sentence = f"selection of round {select.round_index}: expected no numbers, got {len(numbers)}"
            return Refusal(RefusalCode.WRONG_SIZE, sentence)
        if rejection := refuse_rows(numbers.array[2:], self.slots, self.options.sketch_size):
            return rejection
        if numbers[0] not in self.graph or numbers[1] not in range(len(self.graph.nodes)):
            sentence = f"anchor and hops: expected those of this graph, got {tuple(numbers)[:2]}"
            return Refusal(RefusalCode.MALFORMED, sentence)
        return None

    def _rejects_relayed(self, numbers: Numbers) -> Refusal | None:
        size = 1 + self.options.sketch_size
        if rejection := refuse_rows(numbers.array, max(1, len(numbers) // size), size):
            return rejection
        ids = self.relayed(numbers)[:, 0].tolist()
        if len(set(ids)) != len(ids) or not all(peer in self.graph for peer in ids):
            return Refusal(
                RefusalCode.MALFORMED, "sketches: expected one for each of some peers of the graph, got other ids"
            )
        return None

    @override
    def rejects(self, state: FedSpdState, header: ModelHeader, select: Select | None) -> Refusal | None:
        """Refuse a model that is not of the cluster that its sender selected for the round."""
        if not self.selecting(header.round_index):
            one = self.phase(header.round_index) == "warm"
            wrong = one and header.slot != 0
            return (
                Refusal(RefusalCode.SLOT_OUT_OF_RANGE, f"slot: expected 0 in a warm round, got {header.slot}")
                if wrong
                else None
            )
        if select is None or select.selected == NOTHING:
            return Refusal(
                RefusalCode.NOT_SELECTED,
                f"expected a selection for round {header.round_index} before a model, got none",
            )
        if select.selected != header.slot or header.total != 1:
            got = f"model {header.index} of {header.total} of cluster {header.slot}"
            expected = f"one model of the selected cluster {select.selected}"
            return Refusal(RefusalCode.CONTRADICTS_SELECTION, f"expected {expected}, got {got}")
        if self.mix == "metropolis":
            allowed = range(1, self.graph.degree(header.sender) + 1)
            if len(header.numbers) != 1 or header.numbers[0] not in allowed:
                return Refusal(
                    RefusalCode.WEIGHT_OUT_OF_RANGE, f"degree: expected 1 to {allowed[-1]}, got {header.numbers}"
                )
        return None

    @override
    def targets(self, state: FedSpdState, header: ModelHeader) -> tuple[Target, ...] | None:
        """Fold into the selected center (Eq. 1), or a late model into a center selected within the staleness limit."""
        if not self.selecting(header.round_index):
            return super().targets(state, header)
        recently = state.selected_at[header.slot] >= state.round_index - self.stale_rounds_max
        if header.slot not in state.trained and not (self.stale_rounds_max and recently):
            return None
        if self.mix == "uniform":
            return (Target(header.slot, 1.0),)
        return (Target(header.slot, 1.0 / (1.0 + max(float(state.co_selecting), header.numbers[0]))),)
