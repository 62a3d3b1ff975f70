"""Which neighbor gets a receive buffer: one each, in rotation, never all for slow neighbors."""

import pytest

from coordinator_free_bootstrap import make_graph
from coordinator_free_bootstrap.errors import RefusalCode
from peer.algorithms.dfca import Dfca
from peer.core import effects as do
from peer.core.arrivals import GIVEN_UP, PAUSE, Arrival, Buffers
from peer.core.constants import Constants
from peer.core.messages import ModelHeader
from peer.core.state import State
from tests.simulation.options import manifest

HEARTBEAT_S = 0.5


class Driven:
    """The buffers of peer 0 of a complete graph; times are seconds."""

    def __init__(self, buffers=2, peers=5):
        graph = make_graph("complete", peers, manifest=manifest(timeouts={"suspicion_s": 5 * HEARTBEAT_S}))
        constants = Constants(concurrent_receives=buffers)
        self.run = State(0, graph, Dfca(graph.manifest, 0, graph), 1, model_bytes=24, constants=constants)
        self.buffers = Buffers(self.run.arrivals, buffers, self.run.manifest.timeouts, self.run.answer)
        self.now, self.streams = 0.0, 0

    def offer(self, sender, round_index=0):
        self.streams += 1
        header = ModelHeader(sender, 1, round_index, 0, 0, 0, 1, 4, 1.0, 24, "float32")
        self.run.arrivals.offered[self.streams] = Arrival(header, stream=self.streams)
        return self.streams

    def room(self, sender):
        return self.buffers.has_room(sender, None, self.now, in_turn=True)

    def read(self, stream):
        arrival = self.run.arrivals.reading[stream] = self.run.arrivals.offered.pop(stream)
        self.buffers.begin(arrival, self.now)

    def end(self, stream, after, complete=True):
        """End a transfer, and the fold of its model."""
        self.now += after
        arrival = self.run.arrivals.reading.pop(stream)
        if complete:
            self.run.arrivals.complete[stream] = arrival
        self.buffers.note(self.now)
        self.run.arrivals.complete.clear()

    def transfer(self, sender, seconds, complete=True):
        stream = self.offer(sender)
        self.read(stream)
        self.end(stream, seconds, complete)


@pytest.mark.parametrize("buffers", [2, 4])
def test_neighbor_has_one_model_read_at_a_time(buffers):
    driven = Driven(buffers)
    driven.read(driven.offer(1))
    driven.offer(1)
    assert not driven.room(1) and driven.room(2)


def test_neighbors_are_read_in_rotation_whatever_rounds_they_claim():
    driven = Driven()
    for sender in (3, 1, 2):
        driven.transfer(sender, 0.1)
    offered = {sender: driven.offer(sender, round_index) for sender, round_index in ((1, 0), (2, 1), (3, 5))}
    assert [arrival.stream for arrival in driven.buffers.in_order(by_round=False)] == [
        offered[3],
        offered[1],
        offered[2],
    ]
    assert [arrival.stream for arrival in driven.buffers.in_order(by_round=True)] == [
        offered[1],
        offered[2],
        offered[3],
    ]


@pytest.mark.parametrize(
    ("seconds", "complete", "slow"),
    [(0.3, True, False), (0.3, False, True), (HEARTBEAT_S, True, False), (HEARTBEAT_S + 0.1, True, True)],
)
def test_one_buffer_is_for_neighbors_that_are_not_slow(seconds, complete, slow):
    """Four times the usual 0.1 s are less than a heartbeat interval, which is never slow; a failure counts four times."""
    driven = Driven(peers=6)
    for sender in (2, 3, 4):
        driven.transfer(sender, 0.1)
    for sender in (1, 5):
        driven.transfer(sender, seconds, complete)
    driven.read(driven.offer(2))
    assert driven.room(1), "one slow neighbor beside prompt ones, however many of these wait"
    driven.end(driven.streams, 0.1)
    driven.read(driven.offer(5))
    assert driven.room(1) != slow and driven.room(3)


def test_where_all_neighbors_are_slow_none_is():
    driven = Driven()
    for sender in (1, 2, 3, 4):
        driven.transfer(sender, 60.0 + sender)
    driven.read(driven.offer(1))
    assert all(driven.room(sender) for sender in (2, 3, 4))


def test_slow_transfers_that_hold_all_buffers_give_one_up_to_a_waiting_neighbor():
    driven = Driven()
    for sender in (3, 4):
        driven.transfer(sender, 0.1)
    first = driven.offer(1)
    driven.read(first)
    driven.now += 0.1
    driven.read(driven.offer(2))
    driven.offer(3)
    began, driven.now = driven.now, driven.now + HEARTBEAT_S / 2
    driven.buffers.give_up_slow(driven.now)
    assert not driven.run.effects
    (due,) = driven.buffers.next_time(driven.now)
    assert due == began + HEARTBEAT_S
    driven.now = due
    driven.buffers.give_up_slow(driven.now)
    (answer,) = [effect for effect in driven.run.effects if isinstance(effect, do.AnswerArrival)]
    assert (answer.arrival.stream, answer.reply.code) == (first, RefusalCode.TOO_SLOW)
    assert driven.room(3)
    driven.offer(1)
    driven.now += 0.1
    assert not driven.room(1), "it is slow, as neighbor 2 is, whose model is being read"
    for _ in range(20):
        driven.transfer(1, 0.1)
    assert driven.room(1), f"forgotten after prompt transfers, though {GIVEN_UP:g} times what is slow was counted"


def test_slow_neighbor_has_a_single_buffer_for_a_small_share_of_the_time():
    driven = Driven(buffers=1)
    for sender in (2, 3):
        driven.transfer(sender, 0.1)
    driven.transfer(1, 2.0, complete=False)
    driven.offer(1)
    assert not driven.room(1)
    driven.now += PAUSE * 2 * 2.0
    assert driven.room(1)
    driven.offer(2)
    assert not driven.room(1), "a prompt neighbor waits"
