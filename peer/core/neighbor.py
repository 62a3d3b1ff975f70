"""All that a peer knows about one neighbor, in one record: incarnation, liveness, progress, outbox. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from peer.core.liveness import LIVE, Liveness
from peer.core.messages import ModelHeader, Numbers, Pass, Phase, Select
from peer.core.outbox import Outbox, RoundStep

SELECTIONS_MAX = 64  # kept of one neighbor; a faster one (async pace) may send more


@dataclass
class Neighbor:
    """One neighbor.

    Attributes:
        incarnation: the highest one seen, also before a restart of this peer; lower ones are over for good. 0: none.
        connected: the handshake with this incarnation is complete, since this peer started.
        round_index: the neighbor's round; it only grows within one incarnation.
        proven_round: the highest round of a model of this neighbor that passed screening.
        is_straggler: a round was closed at its deadline without the neighbor, and it has not delivered in time since.
        returns_until: it left before the end of its run, perhaps to restart: rounds wait for it until this time.
    """

    id: int
    liveness: Liveness
    outbox: Outbox
    incarnation: int = 0
    connected: bool = False
    round_index: int = 0
    proven_round: int = -1
    phase: Phase = Phase.STARTING
    is_straggler: bool = False
    returns_until: float | None = None
    stalls: int = 0  # transfers of its models in the present step that stopped or were too slow
    misses: float = 0.0  # rounds that waited for it in vain, less what it made good (`peer.core.patience`)
    waited_from: int = 0  # the first round that waits for it again
    unreachable: bool = False  # heard, but it has not answered since
    refusal: str = ""  # why one of us refused the other's last hello for good; "" if none did

    hello_at: float | None = 0.0  # when to send a hello; None: not needed, or in flight
    hello_sent_at: float = float("-inf")
    hello_failures: int = 0
    hello_in_flight: bool = False
    sent_at: float = float("-inf")  # when anything was last sent to this neighbor
    heartbeat_at: float = float("-inf")  # when a heartbeat was last sent to this neighbor
    heartbeat_in_flight: bool = False

    pull_at: float = 0.0  # no pull before this time; later after each failure
    pull_failures: int = 0

    selections: dict[int, Select] = field(default_factory=dict)  # by round
    passed: dict[RoundStep, Numbers] = field(default_factory=dict)  # the numbers of each pass
    totals: dict[RoundStep, int] = field(default_factory=dict)  # models that a step brings, as the first header says
    delivered: dict[RoundStep, set[int]] = field(default_factory=dict)  # indices that need not come (again)

    @property
    def is_reachable(self) -> bool:
        """Whether messages can be sent: it is live and the handshake is complete."""
        return self.connected and self.liveness.state in LIVE

    @property
    def was_lost(self) -> bool:
        """Whether it took part in the run, in this or an earlier incarnation of this peer, and is not live now."""
        return self.incarnation > 0 and not self.liveness.is_live

    def note_round(self, round_index: int) -> None:
        """Note the round of a message."""
        self.round_index = max(self.round_index, round_index)

    def note_restart(self, incarnation: int, round_index: int, round_step: RoundStep) -> None:
        """Begin a new incarnation, which sends step ``round_step`` again; what is folded of that step stays delivered."""
        self.incarnation, self.connected, self.round_index = incarnation, True, round_index
        done = self.delivered.get(round_step)
        self.delivered = {round_step: done} if done else {}
        self.totals = {round_step: total} if done and (total := self.totals.get(round_step)) is not None else {}
        self.selections, self.passed = {}, {}

    def note_model(self, round_index: int) -> None:
        """Note a model that passed screening."""
        self.proven_round = max(self.proven_round, round_index)

    def note_pull(self, complete: bool, now: float, pause_s: float) -> None:
        """Note the end of a pull; after failures in a row the next waits for ``pause_s``, doubled each time, up to 64 times."""
        self.pull_failures = 0 if complete else self.pull_failures + 1
        self.pull_at = now + pause_s * 2 ** min(self.pull_failures - 1, 6) if self.pull_failures else 0.0

    def note_select(self, select: Select) -> None:
        """Note a selection; the oldest one is dropped if there are too many."""
        self.selections[select.round_index] = select
        if len(self.selections) > SELECTIONS_MAX:
            del self.selections[min(self.selections)]

    def note_pass(self, message: Pass) -> None:
        """Note that a step brings no (more) models, and its numbers; an earlier incarnation may have begun to send some."""
        round_step = message.round_index, message.step
        self.totals.pop(round_step, None)
        self.passed[round_step] = message.numbers
        if len(self.passed) > SELECTIONS_MAX:
            del self.passed[min(self.passed)]

    def note_delivered(self, header: ModelHeader) -> None:
        """Note that a model need not come (again): it is folded, answered or refused for good."""
        round_step = (header.round_index, header.step)
        self.totals[round_step] = header.total
        self.delivered.setdefault(round_step, set()).add(header.index)

    def announced(self, round_step: RoundStep) -> bool:
        """Return whether the neighbor has said what a step brings, by a selection or a pass."""
        return round_step in self.passed or (round_step[1] == 0 and round_step[0] in self.selections)

    def forget_before(self, round_step: RoundStep, selections_from: int | None = None) -> None:
        """Drop what belongs to steps that are over; selections are kept from round ``selections_from`` on, where given."""
        for table in (self.totals, self.delivered):
            for key in [key for key in table if key < round_step]:
                del table[key]
        oldest = round_step if selections_from is None else min(round_step, (selections_from, 0))
        self.passed = {key: numbers for key, numbers in self.passed.items() if key >= oldest}
        self.selections = {r: s for r, s in self.selections.items() if (r, 0) >= oldest}

    def newest_selection(self, from_round: int = 0) -> Select | None:
        """Return the newest selection of a round from ``from_round`` on, one with numbers before one without."""
        known = [s for s in self.selections.values() if s.round_index >= from_round]
        return max(known, key=lambda s: (bool(s.numbers), s.round_index), default=None)

    def last_selection(self) -> Select | None:
        """Return the selection of the highest round."""
        return self.selections[max(self.selections)] if self.selections else None
