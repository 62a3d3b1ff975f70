"""Skipping rounds: pull the models of neighbors that are ahead, adopt their average, continue in their round.

Pulls run beside the own round. A claim of being ahead counts only with a second neighbor's, or with models delivered
(`CatchUp.ahead`), so a lying neighbor delays nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from coordinator_free_bootstrap.errors import LocalProtocolError
from peer.core import effects as do
from peer.core import events as ev
from peer.core.contacts import Contacts
from peer.core.neighbor import Neighbor
from peer.core.pace import Pace
from peer.core.sender import Sender
from peer.core.stages import Trigger
from peer.core.state import State

SKIPS_AT_LEAST = 2  # rounds; a neighbor one round ahead is normal


class CatchUp:
    """The part of the engine that catches up with neighbors ahead."""

    def __init__(self, state: State, pace: Pace, contacts: Contacts, sender: Sender) -> None:
        self._state = state
        self._pace = pace
        self._contacts = contacts
        self._sender = sender
        self._pulled: dict[int, int] = {}  # neighbor -> round of its pulled models, since this round began
        self.pulling: set[int] = set()  # neighbors whose answer is pending
        self._may_be_behind = False  # it began before it knew the round of the others, or had their models

    # ---- which neighbors are ahead --------------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Return whether a peer that is behind skips rounds now: in lockstep between any two rounds, in async at its start.

        In async also later, once, if it began without any neighbor, with new ones only, or with no answer to a pull.
        """
        return self._pace.waits or not self._state.has_begun or self._may_be_behind

    def ahead(self) -> list[int]:
        """Return the live neighbors that are ahead, if most are, or if some are far ahead.

        A few that are a little ahead wait for us: if we skipped rounds to join them, our other neighbors would follow. Not so
        at the start of an incarnation: neighbors that restarted too can no longer send what we have lost.
        """
        return self._ahead_by(self._credible_round)

    def claims_ahead(self) -> list[int]:
        """Return the live neighbors that `ahead` would name if every claim were believed."""
        return self._ahead_by(lambda neighbor: neighbor.round_index)

    def _credible_round(self, neighbor: Neighbor) -> int:
        """Return the round of a neighbor as far as it is believed: what another neighbor or its own models confirm.

        One neighbor alone must not make a peer skip rounds by a claim. A peer with one neighbor has no other to ask.
        """
        if len(self._state.neighbors) == 1:
            return neighbor.round_index
        others = [other.round_index for other in self._state.live() if other is not neighbor]
        return min(neighbor.round_index, max([neighbor.proven_round, *others]))

    def _ahead_by(self, round_of: Callable[[Neighbor], int]) -> list[int]:
        state = self._state
        if state.plan.steps == 0:
            return []
        live = state.live()
        rounds = {neighbor.id: round_of(neighbor) for neighbor in live}
        ahead = [n for n, reached in rounds.items() if reached >= state.round.index + SKIPS_AT_LEAST]
        far = any(rounds[n] > state.round.index + state.constants.wait_rounds_behind for n in ahead)
        over = not state.has_begun or far or 2 * len(ahead) >= len(live)
        return ahead if over else []

    # ---- pulls ----------------------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Forget what was pulled before this round."""
        self._pulled = {}

    def begin(self) -> None:
        """Note, before the first round of this incarnation, whether it may be behind those of the others."""
        state = self._state
        if not state.has_begun:
            only_new = bool(state.graph.continues) and not state.run_has_begun
            self._may_be_behind = only_new or not state.live() or bool(self.claims_ahead())

    def pull(self, now: float) -> None:
        """Ask the neighbors that are ahead, or claim to be, for their models; the own round continues meanwhile."""
        state = self._state
        asked = [n for n in self.claims_ahead() if n not in self.pulling and now >= state.neighbors[n].pull_at]
        for n in asked:
            self.pulling.add(n)
            state.emit(do.Pull(n))
        if asked:
            state.log("info", f"behind in round {state.round.index}: pulling the models of neighbors {asked}")

    def pull_done(self, event: ev.PullDone, now: float) -> None:
        """Note the answer to a pull.

        Raises:
            LocalProtocolError: no pull from this neighbor is pending.
        """
        state = self._state
        if event.neighbor not in self.pulling:
            raise LocalProtocolError(f"a pull from peer {event.neighbor} is done that was not asked for")
        self.pulling.remove(event.neighbor)
        neighbor = state.neighbors[event.neighbor]
        useful = event.complete and event.round_index >= state.round.index + SKIPS_AT_LEAST
        neighbor.note_pull(useful, now, state.manifest.timeouts.suspicion_s)
        if useful:
            neighbor.note_round(event.round_index)
            neighbor.note_model(event.round_index)
            self._pulled[event.neighbor] = event.round_index

    def sources(self) -> list[int]:
        """Return the neighbors whose pulled models are of a round to skip to.

        At the start none while only finished ones have answered, and another may: its round is not the last one.
        """
        state, ahead, first = self._state, self.ahead(), self._state.round.index + SKIPS_AT_LEAST
        sources = [n for n, round_index in self._pulled.items() if n in ahead and round_index >= first]
        goes_on = {n for n in ahead if not state.has_finished(state.neighbors[n])}
        waits = not state.has_begun and goes_on & self.pulling and not goes_on & {*sources}
        return [] if waits else sources

    def adopt(self, sources: list[int], now: float) -> None:
        """Skip to the earliest round of the sources' models, with their average."""
        state, skipped = self._state, self._state.round.index
        self._may_be_behind = False
        state.totals["models_adopted"] += len(sources)
        state.take(Trigger.ADOPT)
        state.enter_round(min([*(self._pulled[n] for n in sources), state.manifest.rounds]))
        state.emit(do.Work("adopt", skipped, present=tuple(sources)))
        state.log(
            "info",
            f"caught up from round {skipped} to round {state.round.index} with the models of neighbors {sources}",
        )
        state.emit(do.Record("caught_up", {"from_round": skipped, "to_round": state.round.index}))
        self._sender.post_passes(state.round.index - 1)
        self._contacts.send_heartbeats(now)
