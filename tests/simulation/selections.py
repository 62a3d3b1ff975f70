"""The invariants S1 to S5 of runs that announce a cluster before training (FedSPD), against records of who said what when.

S1  what is sent in a round is the cluster that its sender has selected for it
S2  it goes only to neighbors that have announced the same cluster, unless all hear everything (``exchange = broadcast``);
    in lockstep for the same round
S3  in lockstep who co-selects is agreed, and nothing offered before, when every live neighbor that takes part has announced,
    or the deadline is over
S4  an arrival is folded into the cluster that it is of, and in lockstep only if that is trained in the round
S5  mixture weights are those of a distribution; the alignment of labels permutes the centers and changes no bit of them
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from peer.algorithms.fedspd_decisions import NOTHING
from peer.core import effects as do
from peer.core import events as ev
from peer.core.averaging import Vector
from peer.core.engine import Stage
from peer.core.messages import ModelHeader, Outcome

if TYPE_CHECKING:
    from tests.simulation.invariants import Checker
    from tests.simulation.process import Process


@dataclass
class Known:
    """What one process has selected and heard."""

    selected: dict[int, int] = field(default_factory=dict)  # by round
    trained: dict[int, list[int]] = field(default_factory=dict)
    heard: dict[tuple[int, int], set[int]] = field(default_factory=lambda: defaultdict(set))  # by neighbor and round
    agreed: int = -1  # the newest round in which this process has seen who co-selects
    offered: int = 0  # steps whose model the neighbor that speaks has been offered, before its word is taken
    merged: list[Vector] = field(default_factory=list)


class Selections:
    """Watches the processes of a world whose algorithm selects."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker
        self.known: dict[Process, Known] = defaultdict(Known)
        self._require, self._mark = checker.require, checker.mark

    def before(self, process: Process, event: ev.Event) -> None:
        """An event is about to be given to an engine."""
        if isinstance(event, ev.Announced):
            said, known = event.announce, self.known[process]
            known.heard[said.sender, said.round_index].add(said.selected)
            known.offered = self._late_offers(process, said.sender)

    def _late_offers(self, process: Process, neighbor: int) -> int:
        return sum(neighbor in late.offered for late in process.engine.late)

    def after(self, process: Process, event: ev.Event, effects: list[do.Effect]) -> None:
        """An event was taken."""
        engine, known = process.engine, self.known[process]
        if isinstance(event, ev.Announced) and self._late_offers(process, event.announce.sender) > known.offered:
            self._mark("late announcement answered")
        if engine.stage is Stage.EXCHANGING and engine.persisting is None and engine.agreed is None:
            self._mark("announcement awaited")
        if engine.agreed is not None and known.agreed != engine.round_index:
            known.agreed = engine.round_index
            self._everybody_has_announced(process, known)
        self._require(
            known.agreed == engine.round_index or not engine.posted, "S3", "offers are out before the agreement"
        )
        for effect in effects:
            if isinstance(effect, do.SendAnnounce) and effect.announce.sketch:
                self._mark("sketches announced")
            if isinstance(effect, do.Work) and effect.kind == "close":
                self._closes(process, known, effect)

    def _everybody_has_announced(self, process: Process, known: Known) -> None:
        engine, t = process.engine, process.engine.round_index
        over = process.world.now >= engine.round_began_at + engine.manifest.timeouts.round_deadline_s
        if not engine.lockstep or not engine.active or known.selected.get(t, NOTHING) == NOTHING or over:
            return
        due = set(engine.expected()) & set(engine.scheduled(t))
        silent = sorted(n for n in due if not known.heard.get((n, t)))
        self._require(not silent, "S3", f"{process.peer_id} goes on in round {t}, {silent} have not announced")

    def _closes(self, process: Process, known: Known, effect: do.Work) -> None:
        mine = known.selected.get(effect.round_index, NOTHING)
        others = set[int]().union(*(known.heard.get((n, effect.round_index), ()) for n in effect.present)) - {NOTHING}
        if mine in others and others - {mine}:
            self._mark("exchanged with co-selectors only")

    def sends(self, process: Process, neighbor: int, header: ModelHeader) -> None:
        """A model is about to be sent."""
        algorithm, known, t = process.algorithm, self.known[process], header.round_index
        if not algorithm.selecting(t):
            if header.total > 1:
                self._mark("all centers sent")
            return
        mine = known.selected.get(t)
        self._require(header.slot == mine, "S1", f"{process.peer_id} sends {header.key}, selected was {mine}")
        if algorithm.options.exchange == "broadcast":
            return
        heard = {s for (n, at), said in known.heard.items() if n == neighbor for s in said if at == t or self._drifts}
        self._require(
            header.slot in heard, "S2", f"{process.peer_id} sends {header.key} to {neighbor}, which selected {heard}"
        )

    @property
    def _drifts(self) -> bool:
        return self.checker.world.manifest.pace == "async"

    def folds(self, process: Process, effect: do.Fold) -> None:
        """An arrival is about to be folded."""
        header, targets = effect.header, [target.slot for target in effect.targets]
        self._require(targets == [header.slot], "S4", f"{process.peer_id} folds {header.key} into {targets}")
        trained = self.known[process].trained.get(process.engine.round_index, [])
        on_time = process.engine.lockstep and header.round_index == process.engine.round_index
        if on_time and process.engine.active and not process.engine.stale_rounds_max:
            fits = header.slot in trained
            self._require(fits, "S4", f"{process.peer_id} folds {header.key} while it trains {trained}")

    def replies(self, process: Process, effect: do.Reply, header: ModelHeader) -> None:
        """A push is answered."""
        selected = self.known[process].selected.get(header.round_index, NOTHING)
        if effect.outcome is Outcome.UNUSED and NOTHING != selected != header.slot:
            self._mark("model of another cluster unused")

    def merged(self, process: Process) -> None:
        """A close has merged, and will go on to divide the samples anew."""
        models = process.bench.models
        self.known[process].merged = [models.model(slot).copy() for slot in range(len(models))]

    def worked(self, process: Process, effect: do.Work) -> None:
        """Work on tensors is done."""
        known, facts, t = self.known[process], process.bench.facts, effect.round_index
        u = facts["mixture"]
        self._require(min(u) >= 0 and abs(sum(u) - 1) <= 1e-6, "S5", f"the mixture of {process.peer_id} is {u}")
        if effect.kind == "assign":
            known.selected[t], known.trained[t] = facts["selected"], list(facts["trained"])
        if effect.kind == "close" and t + 1 != process.algorithm.options.warm_rounds:
            self._only_permuted(process, known)

    def _only_permuted(self, process: Process, known: Known) -> None:
        models = [process.bench.models.model(slot) for slot in range(len(process.bench.models))]
        before, after = (sorted(m.tobytes() for m in found) for found in (known.merged, models))
        self._require(before == after, "S5", f"the close of {process.peer_id} makes other centers")
        if any(not np.array_equal(b, a) for b, a in zip(known.merged, models, strict=True)):
            self._mark("labels permuted")
        if process.bench.facts["anchor"][0] != process.peer_id:
            self._mark("labels taken over")
