"""What the engine remembers of a run, and the questions that its parts ask of it: who is expected, what is complete. Pure."""

from __future__ import annotations

import copy
from collections import Counter
from enum import StrEnum
from typing import Any

from coordinator_free_bootstrap.errors import Refusal
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.membership import Membership, NeighborState
from coordinator_free_bootstrap.schedule import edge_is_up, is_active
from peer.core import effects as do
from peer.core.decisions import Decisions, Rejection
from peer.core.inbox import Inbox
from peer.core.messages import Outcome, Phase
from peer.core.neighbors import NeighborView
from peer.core.outbox import Outbox
from peer.core.tempo import Tempo

Effects = list[do.Effect]


class Stage(StrEnum):
    """Where a peer is in its run."""

    JOINING = "joining"
    CATCHING_UP = "catching_up"
    ASSIGNING = "assigning"
    TRAINING = "training"
    EXCHANGING = "exchanging"
    ENDING_STEP = "ending_step"
    CLOSING = "closing"
    FINISHING = "finishing"
    LINGERING = "lingering"
    LEAVING = "leaving"
    STOPPED = "stopped"


NOW = 0.0  # a time that has always passed: do it at once

LONG_WAIT = 4  # suspicion times: a death costs one; who waits for longer says what for, and asks again

NEAR_ROUNDS = 8  # a live neighbor that is so many rounds behind is waited for; one that is further behind skips them

OPEN_STAGES = (Stage.TRAINING, Stage.EXCHANGING)
WORKING_STAGES = (Stage.ASSIGNING, Stage.ENDING_STEP, Stage.CLOSING, Stage.FINISHING)  # the models do not stand still


class PeerState:
    """The protocol state of one peer; mutated only by the parts of the engine that inherit from it.

    Args:
        peer_id: this peer.
        graph: who its neighbors are, and the manifest.
        algorithm: answers what to offer and where arrivals go.
        incarnation: of this life, persisted already.
        model_bytes: encoded size of one model.
        facts: the algorithm's first facts, or those of a checkpoint.
        resume: `state` of the last checkpoint.
    """

    def __init__(
        self,
        peer_id: int,
        graph: Graph,
        algorithm: Decisions,
        incarnation: int,
        *,
        model_bytes: int = 0,
        facts: dict[str, Any] | None = None,
        resume: dict[str, Any] | None = None,
    ) -> None:
        self.peer_id = peer_id
        self.graph = graph
        self.manifest = graph.manifest
        self.algorithm = algorithm
        self.incarnation = incarnation
        self.model_bytes = model_bytes
        self.neighbors = graph.neighbors(peer_id)
        self.lockstep = self.manifest.pace == "lockstep"
        order = self.manifest.fold_order or ("neighbor_id" if self.lockstep else "arrival")
        self.ordered = self.lockstep and order == "neighbor_id"
        stale = self.manifest.stale or ("drop" if self.lockstep else "fold")
        self.stale_rounds_max = self.manifest.stale_rounds_max if stale == "fold" else 0

        self.stage = Stage.JOINING
        self.round_index = 0
        self.step_index = 0
        self.active = True
        self.facts: dict[str, Any] = facts or {}
        self.returned = resume is not None  # an earlier life took part in the run: our disk or a neighbor says so
        self.persisted_round = 0
        self.persisting: int | None = None
        self.leaving = False
        self.started_at: float | None = None
        self.round_began_at = 0.0
        self.exchange_began_at = 0.0
        self.wait_told_s = 0.0  # how long a wait in this exchange becomes worth a line (again)
        self.tempo = Tempo()
        self.paced = False  # whether rounds are drawn out, as long as this peer is cut off
        self.bereft = False  # whether a neighbor died in this round, which says nothing about the tempo then
        self.missed: list[int] = []  # who was missing in the last round: told when it changes
        self.posted = False  # whether this step's offers are in the outbox
        self.agreed: dict[str, Any] | None = None  # what the round's announcements add to the facts, once all are known
        self.present: set[int] = set()
        self.pulls: dict[int, bool | None] = {}
        self.totals: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.storage_error = ""

        self.views = {n: NeighborView(n) for n in self.neighbors}
        self.membership = Membership(self.neighbors, self.manifest.timeouts)
        self.inbox = Inbox()
        self.outbox = Outbox(self.neighbors, peer_id)
        self._record: dict[str, Any] = {}
        self._before: Counter[str] = Counter()
        if resume is not None:
            self._restore(resume)

    # ---- state on disk ------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, as JSON values; taken between two rounds it resumes bit for bit."""
        return {
            "incarnation": self.incarnation,
            "round_index": self.round_index,
            "facts": copy.deepcopy(self.facts),
            "marks": self.inbox.as_rows(),
            "incarnations": [[n, view.last_incarnation] for n, view in self.views.items()],
            "totals": dict(self.totals),
            "refusals": dict(self.refusals),
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self.round_index = self.persisted_round = int(state["round_index"])
        self.facts = dict(state["facts"])
        self.inbox.restore(state["marks"])
        for neighbor, incarnation in state.get("incarnations", ()):
            if neighbor in self.views:
                self.views[neighbor].last_incarnation = int(incarnation)
        self.totals.update(state.get("totals", {}))
        self.refusals.update(state.get("refusals", {}))
        self._before = Counter(self.totals)

    # ---- questions the shell asks at once -----------------------------------------------------------------------

    def phase(self) -> Phase:
        """Return what this peer tells others about itself."""
        if self.leaving:
            return Phase.LEAVING
        if self.stage is Stage.JOINING:
            return Phase.STARTING
        return Phase.FINISHED if self.stage in (Stage.LINGERING, Stage.STOPPED) else Phase.RUNNING

    def admits(self, sender: int, incarnation: int) -> Rejection | None:
        """Return why a message cannot be heard: not a neighbor, an old life, or no handshake with this life yet."""
        view = self.views.get(sender)
        if view is None:
            return Rejection(
                Refusal.NOT_A_NEIGHBOR, f"peer {sender} has no edge to peer {self.peer_id} in the graph file"
            )
        if incarnation < view.last_incarnation:
            return Rejection(
                Refusal.OLD_INCARNATION,
                f"incarnation {incarnation} of peer {sender} is over; {view.last_incarnation} is known",
            )
        if incarnation > view.incarnation:
            return Rejection(Refusal.NO_HANDSHAKE, f"incarnation {incarnation} of peer {sender} has not said hello")
        return None

    def answer_to_beat(self, neighbor: int) -> Refusal | None:
        """Return what a beat that was heard is answered: one that is not alive to us is to say hello.

        If it cannot be reached it learns our round that way, and so does not wait for models that cannot come.
        """
        return Refusal.NO_HANDSHAKE if self.membership.must_answer(neighbor) else None

    def _edge_up(self, neighbor: int, round_index: int) -> bool:
        m = self.manifest
        return not m.dynamic_edges or edge_is_up(m.seed, round_index, self.peer_id, neighbor, m.dynamic_edges)

    def _active(self, peer_id: int, round_index: int) -> bool:
        m = self.manifest
        return m.participation == 1 or is_active(m.seed, round_index, peer_id, m.participation)

    def scheduled(self, round_index: int) -> list[int]:
        """Return the neighbors whose edge is up and who train in a round, by the shared seed: those that offer models."""
        return [n for n in self.neighbors if self._edge_up(n, round_index) and self._active(n, round_index)]

    def expected(self) -> list[int]:
        """Return whom the current step waits for: alive, at most one round ahead and few behind (late ones: one); ascending.

        Neighbors that sit out or whose edge is down are among them: they pass, and so nobody runs away from them.
        """
        if self.algorithm.steps(self.round_index) == 0:
            return []
        return [
            n
            for n, view in self.views.items()
            if view.incarnation and self.membership.is_live(n) and self._is_near(view)
        ]

    def _is_near(self, view: NeighborView) -> bool:
        behind = self.round_index - view.round_index
        return -1 <= behind <= (1 if view.late else NEAR_ROUNDS)

    def _cut_off(self) -> bool:
        """Return whether half of the neighbors or more are dead or far behind: then this is likely the small side of a cut."""
        absent = [n for n, view in self.views.items() if self._is_absent(view)]
        return bool(absent) and 2 * len(absent) >= len(self.neighbors)

    def _is_absent(self, view: NeighborView) -> bool:
        """Return whether a neighbor is dead or far behind; from one that is ahead nobody can run away."""
        if self.membership.is_live(view.neighbor):
            return self.round_index - view.round_index > NEAR_ROUNDS and not view.late
        return self.membership.state(view.neighbor) is NeighborState.DEAD

    def _offers_to(self, neighbor: int) -> bool:
        """Return whether models go to a neighbor in this round; both ends derive the same answer."""
        takes = self._idle_folds() or self._active(neighbor, self.round_index)
        return self.active and takes and self._edge_up(neighbor, self.round_index)

    def _idle_folds(self) -> bool:
        return bool(getattr(getattr(self.algorithm, "options", None), "idle_folds", True))

    def _complete(self, neighbor: int) -> bool:
        """Return whether a neighbor has delivered, in this step, all that it announced."""
        view, place = self.views[neighbor], (self.round_index, self.step_index)
        total = view.totals.get(place)
        if total is None:
            announced = view.announced.get(place)
            if announced is None:
                return False
            total = announced.total
            if total < 0:
                found = self.algorithm.expected(self.facts, self.round_index, self.step_index, announced)
                if found is None:
                    return False
                total = found
        return len(view.delivered.get(place, ())) >= total

    def waiting_for(self) -> list[int]:
        """Return the neighbors that the current step still waits for."""
        if self.stage is Stage.EXCHANGING and self.lockstep:
            return [n for n in self.expected() if not self._complete(n)]
        return []

    def owed_to(self) -> list[int]:
        """Return the neighbors that have not yet taken what this peer has for them in the current step."""
        if self.stage is Stage.EXCHANGING and self.lockstep:
            return [n for n in self.expected() if self.outbox.owes(n, (self.round_index, self.step_index))]
        return []

    def _reply(self, stream: int, outcome: Outcome, out: Effects) -> None:
        self.inbox.forget(stream)
        out.append(do.Reply(stream, outcome))

    def _try_again(self, stream: int, out: Effects) -> None:
        """Let go of a stream whose sender, if it is still there, has to say hello and send again."""
        self.inbox.forget(stream)
        out.append(do.Reply(stream, Outcome.REFUSED, Refusal.NO_HANDSHAKE, "taken for dead or for an older life"))
