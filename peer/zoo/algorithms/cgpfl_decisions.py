"""The decisions of CGPFL: the schedule of exchange steps, what is sent in each, and the checks of messages. Pure.

Round 0: step 0 exchanges models; with ``clusters = "auto"``, G steps then carry cost curves; D steps align labels, D the graph's
diameter, G = 3 D. In later rounds step 0 exchanges models, and every ``align_every`` rounds one more step aligns labels. Only
step 0 carries models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from coordinator_free_bootstrap.errors import ConfigError, Refusal, RefusalCode
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.options import EffectiveWhen
from peer.algorithms.labels import Anchor
from peer.algorithms.saved_state import array
from peer.algorithms.sketches import Sketches, refuse_rows, rows
from peer.core.decisions import AlgorithmState, Offer
from peer.core.effects import Target
from peer.core.messages import NO_NUMBERS, NUMBERS_MAX, ModelHeader, Numbers, Pass, Select
from peer.zoo.algorithms.centers import OwnNearCenters
from peer.zoo.algorithms.cluster_count import wrong_curve
from peer.zoo.algorithms.local_rounds import OF_EPOCHS, LocalRoundsOptions, check_local_rounds

GOSSIP_STEPS_PER_EDGE = 3  # gossip steps for each edge of the graph's diameter
Kind = Literal["models", "costs", "align"]
OF_AUTO = EffectiveWhen(lambda r: r.options.clusters == "auto", "run.options.clusters is not auto")
OF_SEVERAL = EffectiveWhen(
    lambda r: (r.options.clusters_max if r.options.clusters == "auto" else r.run.clusters) > 1,
    "there is one center",
    by_run=True,
)


class CgpflOptions(LocalRoundsOptions):
    """``run.options`` of algorithm ``cgpfl``."""

    alpha: float = Field(
        1.0, gt=0, le=1, description="share of its members' mean in a center; 1 replaces the center by it"
    )
    clusters: Literal["auto"] | None = Field(
        None, description="auto: the network chooses K in round 0 (CGPFL-Heur); default: K is run.clusters"
    )
    clusters_max: Annotated[int, OF_AUTO] = Field(
        8, ge=1, description="auto: the largest K; a peer holds this many centers"
    )
    mu_scale: Annotated[float, OF_AUTO] = Field(
        1.0, ge=0, description="auto: weight of the cost of k-means against the number of clusters"
    )
    align_every: Annotated[int, OF_SEVERAL] = Field(
        10, ge=0, description="rounds between alignments of labels after round 0; 0: none"
    )
    sketch_size: Annotated[int, OF_SEVERAL] = Field(
        256, ge=1, le=4096, description="numbers in the sketch of a center, to align labels"
    )


@dataclass(frozen=True)
class CgpflState(AlgorithmState):
    """State of CGPFL.

    Attributes:
        label: the center that w is near; None: not chosen yet.
        clusters: K, once this peer knows it.
        has_trained: before the first training, theta starts at w.
        averaging: the present step exchanges models, and w takes part in its center.
        round_index: the round that this is of.
        anchor: where this peer's labels come from; None: it has none.
        costs: of this round: what each number of clusters costs (`peer.zoo.algorithms.cluster_count`).
        sketches: of this round: of the K centers, float32 [K, q].
    """

    label: int | None = None
    clusters: int | None = None
    has_trained: bool = False
    averaging: bool = False
    round_index: int = 0
    anchor: Anchor | None = None
    costs: tuple[float, ...] = ()
    sketches: Sketches | None = array(np.float32, 2, optional=True)


class CgpflDecisions(OwnNearCenters[CgpflOptions, CgpflState]):
    """The decisions of CGPFL; `peer.zoo.algorithms.cgpfl` adds the work on tensors."""

    Options = CgpflOptions
    State = CgpflState
    needs_one_graph = True
    keys: ClassVar = {
        **OF_EPOCHS,
        "clusters": EffectiveWhen(lambda r: r.options.clusters != "auto", "run.options.clusters is auto"),
    }

    def __init__(self, manifest: Manifest, peer_id: int, graph: Graph) -> None:
        super().__init__(manifest, peer_id, graph)
        check_local_rounds("cgpfl", manifest, self.options)
        if manifest.pace != "lockstep":
            raise ConfigError(
                f"run.pace: expected 'lockstep', got {manifest.pace!r} with algorithm 'cgpfl', whose peers cluster "
                "the models of one round"
            )
        numbers = 3 + self.clusters * self.options.sketch_size
        if self.clusters > 1 and numbers > NUMBERS_MAX:
            raise ConfigError(
                f"run.options.sketch_size: expected up to {NUMBERS_MAX}, so sketch_size up to "
                f"{(NUMBERS_MAX - 3) // self.clusters}, got {self.options.sketch_size} with {self.clusters} clusters, "
                f"{numbers} numbers in one message"
            )

    @classmethod
    @override
    def slot_count(cls, manifest: Manifest) -> int:
        """Return the number of centers, with ``auto`` the largest K, and 1 for the own model w."""
        options = cls.parse_options(manifest)
        return 1 + (options.clusters_max if options.clusters == "auto" else manifest.clusters)

    @classmethod
    @override
    def private_count(cls, manifest: Manifest) -> int:
        """Return 1: theta, the personal model."""
        return 1

    @property
    def personal(self) -> int:
        """The slot of theta."""
        return self.slots

    @property
    def auto(self) -> bool:
        """Whether the network chooses K."""
        return self.options.clusters == "auto"

    @property
    def count_max(self) -> int:
        """With ``auto``, the largest K that any peer can judge: half of the models of the largest closed neighborhood."""
        largest = max(self.graph.degrees) + 1
        return max(1, min(self.clusters, largest // 2))

    @override
    def kept_models(self) -> int:
        """Return the number of neighbors: in round 0, their models are kept until they are clustered."""
        return self.degree

    # ---- the schedule -----------------------------------------------------------------------------------------------

    def _cost_steps(self, round_index: int) -> int:
        return (
            GOSSIP_STEPS_PER_EDGE * self.graph.diameter_bound
            if self.auto and self.clusters > 1 and round_index == 0
            else 0
        )

    @override
    def steps(self, round_index: int) -> int:
        """Return 1, and the steps that carry numbers without models."""
        if self.clusters == 1:
            return 1
        every, aligning = self.options.align_every, self.graph.diameter_bound
        if round_index > 0:
            aligning = int(bool(every) and round_index % every == 0)
        return 1 + self._cost_steps(round_index) + aligning

    def kind(self, round_index: int, step: int) -> Kind:
        """Return what a step exchanges."""
        if step == 0:
            return "models"
        return "costs" if step <= self._cost_steps(round_index) else "align"

    def aligns_next(self, round_index: int, step: int) -> bool:
        """Return whether the step after this one aligns labels."""
        return step + 1 < self.steps(round_index) and self.kind(round_index, step + 1) == "align"

    def chooses(self, round_index: int, step: int) -> bool:
        """Return whether the models are clustered at the end of this step."""
        return round_index == 0 and step == self._cost_steps(0)

    # ---- decisions --------------------------------------------------------------------------------------------------

    def count(self, state: CgpflState) -> int:
        """Return K; the number of centers that are held, where it is not known yet."""
        return self.clusters if state.clusters is None else state.clusters

    def knows_count(self, state: CgpflState) -> bool:
        """Return whether K is known: from the manifest, from round 0, or from a neighbor."""
        return not self.auto or state.clusters is not None

    @override
    def offers(
        self, state: CgpflState, round_index: int, step: int, neighbor: int, select: Select | None
    ) -> tuple[Offer, ...]:
        """Offer w, after round 0 with its label and K."""
        if step > 0 or not state.trained:
            return ()
        if round_index == 0:
            return (Offer(self.own, state.sample_count),)
        if not self.knows_count(state) or state.label is None:
            return ()
        return (Offer(self.own, state.sample_count, numbers=Numbers.of(state.label, self.count(state))),)

    @override
    def wrong_numbers(self, header: ModelHeader) -> str:
        """Return what is wrong with a label and a number of clusters."""
        numbers = header.numbers
        if header.round_index == 0:
            return f"label and K: expected none in round 0, got {numbers}" if numbers else ""
        counts = range(1, self.clusters + 1) if self.auto else range(self.clusters, self.clusters + 1)
        if len(numbers) != 2 or numbers[1] not in counts or numbers[0] not in range(int(numbers[1])):
            return f"expected a label from 0 to K - 1, and K from {counts[0]} to {counts[-1]}, got {numbers}"
        return ""

    @override
    def targets(self, state: CgpflState, header: ModelHeader) -> tuple[Target, ...] | None:
        """Fold w into the center that it names. Keep it in round 0, and where this peer does not know K yet."""
        if header.round_index == 0:
            return () if state.round_index == 0 else None
        if not self.knows_count(state):
            return ()
        if header.numbers[1] != self.count(state):
            return None
        return (Target(int(header.numbers[0]), self.mixing_weight(header.sender)),)

    @property
    def first_label(self) -> int | None:
        """The label of a peer that has chosen none: 0 where there is one center alone."""
        return 0 if self.clusters == 1 else None

    @override
    def own_share(self, state: CgpflState, cluster: int, folded: float) -> float:
        """Return the weight of w in the center of its label, in the step that exchanges models."""
        has_model = state.has_trained or self.clusters == 1
        if not state.averaging or not has_model or state.label != cluster or not self.knows_count(state):
            return 0.0
        return self.own_weight(folded)

    @override
    def tells(self, state: CgpflState, round_index: int, step: int) -> Numbers:
        """Return the cost curve, or anchor, hops, K and the sketches of the K centers; nothing without centers."""
        if self.kind(round_index, step) == "costs":
            return Numbers.of(state.costs)
        if self.kind(round_index, step) != "align" or state.anchor is None or state.sketches is None:
            return NO_NUMBERS
        return Numbers.of(state.anchor, self.count(state), state.sketches)

    @override
    def rejects_pass(self, state: CgpflState, message: Pass) -> Refusal | None:
        """Refuse numbers in a step without them, cost curves out of range, and anchors or sketches that cannot be."""
        numbers, kind = message.numbers, self.kind(message.round_index, message.step)
        if not numbers or kind == "models":
            return super().rejects_pass(state, message)
        if kind == "costs":
            problem = wrong_curve(tuple(numbers), self.count_max)
            return Refusal(RefusalCode.MALFORMED, problem) if problem else None
        known = len(numbers) > 2 and numbers[0] in self.graph and numbers[1] in range(len(self.graph.nodes))
        if not known:
            sentence = f"anchor and hops: expected those of this graph, got {tuple(numbers)[:2]}"
            return Refusal(RefusalCode.MALFORMED, sentence)
        counts = range(1, self.clusters + 1) if self.auto else range(self.clusters, self.clusters + 1)
        if numbers[2] not in counts:
            return Refusal(RefusalCode.WRONG_SIZE, f"K: expected {counts[0]} to {counts[-1]}, got {numbers[2]:g}")
        return refuse_rows(numbers.array[3:], int(numbers[2]), self.options.sketch_size)


def anchor_in(numbers: Numbers) -> Anchor:
    """Return the anchor in the numbers of an alignment."""
    return Anchor(int(numbers[0]), int(numbers[1]))


def count_in(numbers: Numbers) -> int:
    """Return K in the numbers of an alignment."""
    return int(numbers[2])


def sketches_in(numbers: Numbers) -> Sketches:
    """Return the sketches in the numbers of an alignment, float32 [K, q]."""
    return rows(numbers.array[3:], count_in(numbers))
