"""The protocol engine: `step(event, now)` returns effects. It holds no tensors and knows no clock, socket or thread.

Theory of operation. A peer goes through the stages of `peer.core.stages`:

    joining -> [catching_up] -> [adopting]
            -> ([paying] -> assigning -> training -> offering -> exchanging -> [ending_step -> offering -> exchanging]* -> closing
                -> [adopting])*
            -> [paying] -> finishing -> lingering -> stopped

- joining: handshakes until the start rule is met, and with shared scaling until the numbers of all sites are known.
- catching_up: at its start most neighbors are ahead. This peer waits for the models of the first that answers a pull. Later, when
  it falls behind, its own round continues meanwhile.
- adopting: it takes the average of pulled models and continues in their round. One neighbor alone is believed only if it delivers
  a model.
- paying: a private round waits for a checkpoint with its charge on the budget; it is not trained without.
- offering: a step's models are ready and wait for the last checkpoint, and for selections where the algorithm selects.
- leaving: asked to stop, in any stage. Work under way is ended, a checkpoint written, the neighbors notified, as the guards of
  the table say.
- In every stage neighbors send hellos, heartbeats, selections and offers; an offer that comes too early waits unread.
- Only in training, offering and exchanging are arrivals read and folded, so that no other work reads the tensors meanwhile.
- The pace (`peer.core.pace`) decides which neighbors a step counts on, the plan (`peer.core.plan`) what the round consists of.

Everything a neighbor claims is checked here before it is believed; the bytes of models are checked by the wire and the host.

The parts: `Contacts` (handshakes, heartbeats, failures), `Agreement` (numbers of all sites), `Receiver` (arrivals), `Sender`
(offers), `Summing` (secure sums), `CatchUp` (skipping rounds), `Isolation` (rounds alone), `Start`, `RoundCycle`, `Ending`, and
`Waits` (what a step waits for). They share one `State` with one `Neighbor` record per neighbor,
and ask one `Pace` and one algorithm.
"""

from __future__ import annotations

from typing import ClassVar, assert_never

from coordinator_free_bootstrap.errors import LocalProtocolError, Refusal
from coordinator_free_bootstrap.handshake import Compared
from peer.core import effects as do
from peer.core import events as ev
from peer.core.agreement import Agreement
from peer.core.asynchronous import Async
from peer.core.catch_up import CatchUp
from peer.core.contacts import Contacts
from peer.core.counters import RecordCounts
from peer.core.ending import Ending
from peer.core.invariants import Moment, check
from peer.core.lockstep import Lockstep
from peer.core.messages import Control, Hello, Phase, Statistics, SumMessage
from peer.core.pace import Pace
from peer.core.receiver import Receiver
from peer.core.rounds import RoundCycle
from peer.core.sender import Sender
from peer.core.stages import EXCHANGE, OPEN, Stage, Trigger
from peer.core.state import State
from peer.core.sums import Summing
from peer.core.waiting import Isolation, Start, Waits


class Engine:
    """One peer's protocol: drive it with `step`, a `Tick` first.

    Args:
        state: of a peer at the start of an incarnation; the engine changes it from now on.

    Attributes:
        validate: every step ends with the invariants of its stage; tests set it for all engines, production never does.
    """

    validate: ClassVar[bool] = False

    def __init__(self, state: State) -> None:
        self.state = state
        self.pace: Pace = Lockstep(state) if state.manifest.pace == "lockstep" else Async(state)
        self.contacts = Contacts(state, self.pace)
        self.sums = Summing(state)
        self.receiver = Receiver(state, self.pace, self.contacts, self.sums)
        self.agreement = Agreement(state)
        self.sender = Sender(state, self.pace, self.contacts, self.agreement, self.sums)
        self.catch_up = CatchUp(state, self.pace, self.contacts, self.sender)
        self.isolation = Isolation(state, self.pace)
        self.start = Start(state, self.isolation)
        counted = RecordCounts(state.totals)
        self.rounds = RoundCycle(
            state,
            self.pace,
            self.contacts,
            self.receiver,
            self.sender,
            self.catch_up,
            self.isolation,
            counted,
            self.sums,
        )
        self.ending = Ending(state, self.contacts, self.sender, self.isolation, self.rounds, counted)
        self.waits = Waits(state, self.pace, self.isolation, self.start)
        self.rejects_sender = self.receiver.rejects_sender

    @property
    def stage(self) -> Stage:
        """Where this peer is in its run."""
        return self.state.stage

    @property
    def round_index(self) -> int:
        """The present round; the number of rounds when all are done."""
        return self.state.round.index

    def phase(self) -> Phase:
        """Return the phase that is sent to neighbors and observers."""
        return self.contacts.phase()

    def must_answer(self, neighbor: int) -> bool:
        """Return whether a neighbor that was heard counts as alive only once it answers a call."""
        return self.state.neighbors[neighbor].liveness.must_answer

    def step(self, event: ev.Event, now: float) -> list[do.Effect]:
        """Take one event at monotonic time ``now`` (seconds) and return what is to be done, in order.

        Raises:
            LocalProtocolError: the event cannot come in this stage: a bug of ours.
        """
        state = self.state
        if state.stage is Stage.STOPPED:
            return []
        state.effects = []
        self.start.begin(now)
        self.agreement.begin(now)
        self._take(event, now)
        self.ending.change()
        self.ending.exclude(now)
        self.ending.leave(now)
        self.contacts.check(now)
        self.isolation.note(now)
        self._advance(now)
        if state.stage is Stage.JOINING:
            self.start.log_wait(now)
        self.waits.log(now)
        self.sender.send_due(now)
        if self.stage is not Stage.STOPPED and (times := self._next_times(now)):
            state.emit(do.SetTimer(min(times)))
        if self.validate:
            check(self.moment())
        return state.effects

    def rejects_control(self, message: Control) -> Refusal | None:
        """Return why a selection, a pass, the numbers of sites or a message of a sum cannot be believed."""
        match message:
            case Statistics():
                return self.rejects_sender(message.sender, message.incarnation) or self.agreement.rejects(message)
            case SumMessage():
                return self.rejects_sender(message.sender, message.incarnation) or self.sums.rejects(message)
        return self.receiver.rejects_control(message)

    def moment(self) -> Moment:
        """Return what the invariants judge."""
        return Moment(self.state, self.pace, frozenset(self.catch_up.pulling), self.state.effects)

    def goodbye(self, now: float) -> list[do.Effect]:
        """Return the heartbeats that tell the neighbors that this peer leaves at once, in the middle of a round."""
        self.state.effects = []
        self.ending.ask("left")
        self.contacts.send_heartbeats(now)
        return self.state.effects

    def _take(self, event: ev.Event, now: float) -> None:  # noqa: PLR0912, PLR0915 - one case per event
        match event:
            case ev.Tick():
                pass
            case ev.HandshakeDone():
                self.contacts.handshake_done(event, now)
            case ev.HandshakeFailed():
                self.contacts.handshake_failed(event, now)
            case ev.HelloRefused():
                self.contacts.hello_refused(event)
            case ev.IncarnationRaised():
                self.contacts.incarnation_raised(event)
            case ev.HeartbeatReceived():
                self.contacts.heartbeat_received(event, now)
            case ev.HeartbeatAnswered():
                self.contacts.heartbeat_answered(event, now)
            case ev.SelectReceived():
                self.receiver.select_received(event, now)
                self.sender.offer_after_selection(self.state.neighbors[event.select.sender])
            case ev.PassReceived():
                self.receiver.pass_received(event, now)
            case ev.StatisticsReceived():
                neighbor = self.state.neighbors[event.message.sender]
                self.contacts.heard(neighbor, neighbor.round_index, now)
                self.agreement.take(event.message)
            case ev.SumReceived():
                neighbor = self.state.neighbors[event.message.sender]
                self.contacts.heard(neighbor, neighbor.round_index, now)
                self.sums.received(event)
            case ev.ArrivalOffered():
                self.receiver.offered(event, now)
            case ev.ArrivalComplete():
                self.receiver.complete(event, now)
            case ev.ArrivalLost():
                self.receiver.lost(event)
            case ev.ArrivalFolded():
                self.receiver.folded(event)
            case ev.SendAnswered():
                self.sender.answered(event, now)
            case ev.SendFailed():
                self.sender.failed(event, now)
            case ev.SendStalled():
                self.sender.stalled(event)
            case ev.WorkDone():
                self._work_done(event, now)
            case ev.PullDone():
                self.catch_up.pull_done(event, now)
            case ev.CheckpointWritten():
                self.ending.checkpoint_written(event)
            case ev.LeaveRequested():
                self.ending.ask("left")
            case ev.ChangeRequested():
                self.ending.ask_for_change(event)
            case _:
                assert_never(event)

    def _work_done(self, event: ev.WorkDone, now: float) -> None:
        if self.rounds.work_done(event, now) is Trigger.FINAL_DONE:
            self.ending.begin_linger(now)

    def _advance(self, now: float) -> None:
        """Go on as far as the present state allows."""
        state = self.state
        while True:
            before = (state.stage, state.round.current)
            joining = state.stage is Stage.JOINING
            if joining and (status := self.start.fails(now) or self.agreement.given_up(now)):
                self.ending.stop(status, now)
            elif state.stage in (Stage.JOINING, *EXCHANGE) and self.ending.gives_up(now):
                pass
            elif state.stage is Stage.JOINING and self.agreement.may_begin(now) and self.start.may_begin(now):
                self.sender.post_passes(state.round.index - 1)
                self.rounds.go_on(now)
            elif state.stage is Stage.CATCHING_UP:
                self.rounds.catch_up_at_start(now)
            elif state.stage is Stage.PAYING:
                self.rounds.pay(now)
            elif state.stage in EXCHANGE:
                self.rounds.exchange(now)
            answered = self.receiver.advance(now)
            if state.stage is Stage.LINGERING:
                self.ending.linger(now)
            if not answered and (state.stage, state.round.current) == before:
                return

    def _next_times(self, now: float) -> list[float]:
        """Return the times at which something is due by itself."""
        state, times = self.state, self.contacts.next_time(now)
        if state.stage in (Stage.JOINING, *EXCHANGE) and (until := self.isolation.waits_until()) is not None:
            times.append(max(now, until))
        if state.stage is Stage.JOINING:
            waits = not self.agreement.may_begin(now)  # then the deadline of the start may have passed
            times.extend(at for at in self.start.next_time(now) if at > now or not waits)
            times.extend(self.agreement.next_time(now))
        elif state.stage is Stage.LINGERING:
            times.extend(self.ending.next_time(now))
        elif state.stage in EXCHANGE:
            times.extend(self.pace.next_time(now))
            times.extend(self.sums.next_time())
        if state.stage in OPEN:
            times.extend(self.receiver.next_time(now))
        return times


def make_hello(engine: Engine, mine: Compared, neighbor: int) -> Hello:
    """Return this peer's hello to a neighbor, as of now."""
    state = engine.state
    if neighbor not in state.neighbors:
        raise LocalProtocolError(f"peer {neighbor} is no neighbor of peer {state.peer_id}")
    return Hello(
        sender=state.peer_id,
        incarnation=state.incarnation,
        wire_version=mine.wire_version,
        manifest_digest=mine.manifest_digest,
        graph_digest=mine.graph_digest,
        schema_digest=mine.schema_digest,
        frozen_digest=mine.frozen_digest,
        initial_models_digest=mine.initial_models_digest,
        manifest=mine.manifest,
        meaning=mine.meaning,
        continues=mine.continues,
        round_index=state.round.index,
        phase=engine.phase(),
        seen_incarnation=state.neighbors[neighbor].incarnation,
        sum_key=b"" if state.sums is None else state.sums.announcement(state.incarnation),
    )
