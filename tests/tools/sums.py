"""The parts of all peers in one secure sum, message by message, without engine and wire; and a second opinion of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from peer.core.averaging import Vector
from peer.core.messages import Opening, SumMessage
from peer.secure_sum.keys import Unsigned
from peer.secure_sum.sums import SecureSums

RECEIVER = 0
BOUND = 16.0


def counted(seed: object) -> Callable[[int], bytes]:
    """Return a source of bytes that look random and are the same in each test."""
    state = hashlib.sha256(repr(seed).encode())

    def random(size: int) -> bytes:
        state.update(b"next")
        return hashlib.shake_256(state.digest()).digest(size)

    return random


def complete(neighbors: int, **run: object) -> Graph:
    """Return a complete graph in which each peer has so many neighbors."""
    made = make_graph("complete", neighbors + 1, seed=1)
    return Graph(made.nodes, made.edges, Manifest.model_validate({"algorithm": "dfedavg", "secure_sum": BOUND, **run}))


def oracle(models: Iterable[tuple[Vector, float]], weights: Mapping[int, float], bound: float) -> Vector:
    """Return the mean of models with weights as a sum of Python's whole numbers gives it, float32 [d].

    Args:
        models: those in the sum, float32 [d], each with its weight.
        weights: of all neighbors of the receiver.
        bound: ``run.secure_sum``.
    """
    models, all_weights = list(models), sum(weights.values())
    factor = (2**31 - len(weights)) / bound
    sums = [0] * models[0][0].size
    for model, weight in models:
        scale = factor * weight / all_weights
        for at, value in enumerate(model.tolist()):
            sums[at] += round(value * scale)  # half to even, as the product does
    back = factor * (sum(weight for _, weight in models) / all_weights)
    return np.array([value / back for value in sums], np.float32)


@dataclass
class Parties:
    """The receiver and its neighbors; a test delivers the messages, and may change or drop them.

    Attributes:
        outbox: what is under way, (sender, receiver, kind, data).
        log: every message that was sent.
    """

    graph: Graph
    round_index: int = 3
    size: int = 5
    seed: int = 1
    outbox: list[tuple[int, int, Opening, bytes]] = field(default_factory=list)
    log: list[tuple[int, int, Opening, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.peers = {i: self.new(i) for i in self.graph.ids}
        self.neighbors = self.graph.neighbors(RECEIVER)
        self.weights = dict.fromkeys(self.neighbors, 1.0)
        draw = np.random.Generator(np.random.Philox(self.seed))
        self.models = {n: draw.normal(size=self.size).astype(np.float32) for n in self.neighbors}
        self.total = np.zeros(self.size, np.uint32)
        self.sent: dict[int, np.ndarray] = {}

    def new(self, peer: int, life: int = 1) -> SecureSums:
        """Return the parts of a peer that has just started."""
        return SecureSums(peer, self.graph, Unsigned(), counted((self.seed, peer, life)))

    @property
    def receiver(self) -> SecureSums:
        """Whose sum it is."""
        return self.peers[RECEIVER]

    def begin(self, there: Iterable[int] | None = None) -> bytes:
        """Let the receiver announce its sum, and return the roster; all neighbors are there, or these."""
        there = self.neighbors if there is None else tuple(there)
        for n in there:
            assert self.receiver.meets(n, 1, self.peers[n].announcement(1)) is None
        self.roster = self.receiver.begin(self.round_index, [(n, 1) for n in there])
        return self.roster

    def join(self, n: int, incarnation: int = 1) -> str:
        """Let a neighbor take part; return why not."""
        assert self.peers[n].rejects_roster(RECEIVER, self.round_index, self.roster) is None
        return self.peers[n].join(RECEIVER, self.round_index, self.roster, incarnation)

    def deliver(self, n: int) -> None:
        """Let a neighbor's masked model arrive."""
        sums = self.peers[n]
        shares = sums.shares(RECEIVER, self.round_index)
        assert self.receiver.fits(n, self.round_index, shares)
        data = sums.masked(RECEIVER, self.round_index, self.weights, self.models[n])[:]
        self.sent[n] = np.frombuffer(data, np.uint32)
        self.total += self.sent[n]
        self.receiver.delivered(n, shares)

    def fix(self) -> None:
        """Let the receiver fix the members."""
        self._post(RECEIVER, self.receiver.fix())

    def _post(self, sender: int, messages: list[tuple[int, Opening, bytes]]) -> None:
        for to, kind, data in messages:
            self.outbox.append((sender, to, kind, data))
            self.log.append((sender, to, kind, data))

    def take(self, sender: int, to: int, kind: Opening, data: bytes) -> str:
        """Deliver a message; return why it is refused, "" if it is not."""
        message = SumMessage(sender, 1, self.round_index, kind, data)
        if (refusal := self.peers[to].rejects(message)) is not None:
            return refusal.reason
        self._post(to, self.peers[to].take(message))
        return ""

    def settle(self, dead: Iterable[int] = ()) -> None:
        """Deliver all that is under way, but to and from dead peers."""
        gone = {*dead}
        while self.outbox:
            sender, to, kind, data = self.outbox.pop(0)
            if not {sender, to} & gone:
                assert self.take(sender, to, kind, data) == ""

    def opened(self) -> Vector:
        """Return the mean that the receiver reads."""
        assert self.receiver.is_open, self.receiver.problem
        return self.receiver.opened(self.total.copy(), self.weights)

    def expected(self, members: Iterable[int]) -> Vector:
        """Return the mean of the members' models by the second opinion."""
        return oracle([(self.models[n], self.weights[n]) for n in members], self.weights, BOUND)


def summed(parties: Parties, members: Iterable[int] | None = None) -> Parties:
    """Play a sum up to its members: all neighbors deliver, or these."""
    parties.begin()
    for n in parties.neighbors:
        assert parties.join(n) == ""
    for n in parties.neighbors if members is None else members:
        parties.deliver(n)
    return parties
