"""The invariants S1 to S5 of runs that select a cluster before training (FedSPD), against records of all selections.

S1  what is sent in a round is the cluster that its sender has selected for it
S2  it goes only to neighbors that have selected the same cluster, unless all get everything (``exchange = broadcast``);
    in lockstep for the same round
S3  in lockstep the co-selectors are agreed on, and nothing is offered before, when every live neighbor that takes part has
    selected, or the deadline is over
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
from peer.core.lockstep import Lockstep
from peer.core.messages import ModelHeader, Outcome, PushReply, Select
from peer.core.stages import Stage

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
        if isinstance(event, ev.SelectReceived | ev.PassReceived):
            message, known = (
                event.select if isinstance(event, ev.SelectReceived) else event.message,
                self.known[process],
            )
            selected = message.selected if isinstance(message, Select) else NOTHING
            known.heard[message.sender, message.round_index].add(selected)
            known.offered = self._late_offers(process, message.sender)

    def _late_offers(self, process: Process, neighbor: int) -> int:
        return sum(neighbor in offers.offered_to for offers in process.engine.sender._open)

    def after(self, process: Process, event: ev.Event, effects: list[do.Effect]) -> None:
        """An event was taken."""
        engine, run, known = process.engine, process.engine.state, self.known[process]
        if isinstance(event, ev.SelectReceived) and self._late_offers(process, event.select.sender) > known.offered:
            self._mark("late selection answered")
        if engine.stage is Stage.OFFERING and not run.saving and run.round.agreed is None:
            self._mark("selection awaited")
        if run.round.agreed is not None and known.agreed != engine.round_index:
            known.agreed = engine.round_index
            self._all_have_selected(process, known)
        self._require(
            known.agreed == engine.round_index or engine.stage is not Stage.EXCHANGING,
            "S3",
            "offers are out before the agreement",
        )
        for effect in effects:
            if isinstance(effect, do.SendControl) and isinstance(effect.message, Select) and effect.message.numbers:
                self._mark("sketches sent")
            if isinstance(effect, do.Work) and effect.kind == "close":
                self._closes(process, known, effect)

    def _all_have_selected(self, process: Process, known: Known) -> None:
        run, pace, t = process.engine.state, process.engine.pace, process.engine.round_index
        nothing = known.selected.get(t, NOTHING) == NOTHING
        if not isinstance(pace, Lockstep) or not run.plan.trains or nothing or process.world.now >= run.round.deadline:
            return
        due = set(pace.counted_on()) & set(run.plan.senders)
        silent = sorted(n for n in due if not known.heard.get((n, t)))
        self._require(not silent, "S3", f"{process.peer_id} continues round {t}, {silent} have not selected")

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

    def folds(self, process: Process, effect: do.FoldArrival) -> None:
        """An arrival is about to be folded."""
        header, targets = effect.header, [target.slot for target in effect.targets]
        self._require(targets == [header.slot], "S4", f"{process.peer_id} folds {header.key} into {targets}")
        trained = self.known[process].trained.get(process.engine.round_index, [])
        run, pace = process.engine.state, process.engine.pace
        on_time = isinstance(pace, Lockstep) and header.round_index == run.round.index
        if on_time and run.plan.trains and not pace.stale_rounds_max:
            fits = header.slot in trained
            self._require(fits, "S4", f"{process.peer_id} folds {header.key} while it trains {trained}")

    def replies(self, process: Process, reply: PushReply, header: ModelHeader) -> None:
        """A push is answered."""
        selected = self.known[process].selected.get(header.round_index, NOTHING)
        if reply is Outcome.UNUSED and NOTHING != selected != header.slot:
            self._mark("model of another cluster unused")

    def merged(self, process: Process) -> None:
        """A close has merged, and will go on to divide the samples anew."""
        models = process.workspace.models
        self.known[process].merged = [models.model(slot).copy() for slot in range(len(models))]

    def worked(self, process: Process, effect: do.Work) -> None:
        """Work on tensors is done."""
        known, state, t = self.known[process], process.workspace.state, effect.round_index
        u = state.mixture
        self._require(min(u) >= 0 and abs(sum(u) - 1) <= 1e-6, "S5", f"the mixture of {process.peer_id} is {u}")
        if effect.kind == "assign":
            known.selected[t], known.trained[t] = state.selected, list(state.trained)
        if effect.kind == "close" and t + 1 != process.algorithm.options.warm_rounds:
            self._only_permuted(process, known)

    def _only_permuted(self, process: Process, known: Known) -> None:
        models = [process.workspace.models.model(slot) for slot in range(len(process.workspace.models))]
        before, after = (sorted(m.tobytes() for m in found) for found in (known.merged, models))
        self._require(before == after, "S5", f"the close of {process.peer_id} makes other centers")
        if any(not np.array_equal(b, a) for b, a in zip(known.merged, models, strict=True)):
            self._mark("labels permuted")
        if process.workspace.state.anchor[0] != process.peer_id:
            self._mark("labels taken over")
