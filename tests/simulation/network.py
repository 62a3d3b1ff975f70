"""The faulty network: unary calls and model streams between processes, over directed links that delay, lose, break and lie.

It behaves as gRPC over TCP does: what is lost breaks the call, and each side notices by itself, at its own time; a link that is
down swallows everything until a keepalive breaks the streams across it. Beyond that it may replay what was said before,
also by earlier lives, and corrupt a model under way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from coordinator_free_bootstrap.routes import offered_at
from peer.core.messages import ModelHeader, PushReply
from peer.wire.limits import WireLimits

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

LIMITS = WireLimits()
REMEMBERED = 40  # messages kept for replays
WRITE_S = 0.001  # a push begins to wait for its answer when it is written


@dataclass
class Weather:
    """How bad the network is; zeros are a perfect one. Probabilities are for each message or transfer."""

    delay_s: float = 0.002  # mean of the exponential part
    delay_min_s: float = 0.0005
    loss: float = 0.0
    cut: float = 0.0
    replay: float = 0.0
    corrupt: float = 0.0
    forgotten: float = 0.0  # pushes and answers that vanish without an error at either end
    bytes_per_s: float = 1e6


@dataclass
class Link:
    """One direction between two peers."""

    down_since: float | None = None
    clogged_until: float = 0.0
    refused: bool = False  # connections in this direction: its source cannot call, but answers and is sent answers
    holder: int | None = None  # who holds the offer over which the source calls; None: it dials
    offer_at: float = 0.0  # no connection before: the tunnel, or the connection that carries it, comes up then
    ends: tuple[object, ...] = ()  # the processes of that offer; a new process has to make a new one


@dataclass(eq=False)
class Push:
    """One model stream; each end knows only what it was told."""

    sender: Process | None  # None: a replay that nobody waits for
    source: int
    target: int
    header: ModelHeader
    payload: NDArray[np.uint8]
    receiver: Process | None = None
    stream: int = 0
    sent_at: float = 0.0  # virtual time
    quiet_since: float | None = 0.0  # since then it waits for the answer; None: bytes are on their way
    sender_done: bool = False
    receiver_done: bool = False


class Network:
    """Everything that is under way."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.world, self.weather = world, weather
        self._rng = world.random("network")
        self._fate = world.random("forgotten")
        self.links: dict[tuple[int, int], Link] = {}
        self._tunnels = world.random("tunnels")
        self.connect(world.graph)
        self.pushes: list[Push] = []
        self._said: list[Callable[[], None]] = []

    def connect(self, graph: Graph) -> None:
        """Make the links of a graph file that are not there yet; those of earlier files stay."""
        for a, b in graph.edges:
            for edge in ((a, b), (b, a)):
                self.links.setdefault(edge, Link(holder=offered_at(graph, *edge)))

    # ---- links ----------------------------------------------------------------------------------------------------

    def take_down(self, edges: list[tuple[int, int]]) -> None:
        """Let these directed links swallow everything; keepalives notice after a while."""
        now = self.world.now
        for edge in edges:
            link = self.links[edge]
            if link.down_since is None:
                link.down_since = now
                self.world.after(self._keepalive_s(), self._keepalive, edge, now)

    def bring_up(self, edges: list[tuple[int, int]]) -> None:
        """Let these directed links carry messages again."""
        for edge in edges:
            self.links[edge].down_since = None

    def lose_tunnel(self, edge: tuple[int, int]) -> None:
        """Cut both directions of an edge until its dialing end is back: a tunnel runs in the connection of that end."""
        again = self.world.now + self._tunnels.uniform(0.1, 2.0) * self.world.manifest.timeouts.suspicion_s
        for direction in (edge, edge[::-1]):
            self.links[direction].offer_at = again
        for push in [p for p in self.pushes if {p.source, p.target} == set(edge)]:
            self._break(push, at_once=True)

    def _has_offer(self, source: int, target: int) -> bool:
        """Return whether a connection can be made: by dialing, or over an offer of the process that runs now."""
        link, now = self.links[source, target], self.world.now
        if link.holder is not None:
            ends = tuple(self.world.running(peer_id) for peer_id in (source, target, link.holder))
            if ends != link.ends:
                link.ends = ends
                link.offer_at = max(link.offer_at, now + self._tunnels.uniform(0.0, 0.5))
        return now >= link.offer_at

    def heal(self) -> None:
        """Be perfect from now on."""
        self.weather = Weather()
        self._said.clear()
        for link in self.links.values():
            link.down_since, link.clogged_until, link.refused, link.offer_at = None, 0.0, False, 0.0

    def _keepalive_s(self) -> float:
        return self._rng.uniform(0.5, 1.5) * self.world.manifest.timeouts.suspicion_s

    def _keepalive(self, edge: tuple[int, int], since: float) -> None:
        if self.links[edge].down_since == since:
            for push in [p for p in self.pushes if {p.source, p.target} == set(edge)]:
                self.world.fired["keepalive"] += 1
                self._break(push, at_once=True)

    def travel_s(self, source: int, target: int) -> float | None:
        """Return how long a message takes, or None if it is lost."""
        link, weather = self.links[source, target], self.weather
        if link.down_since is not None:
            self.world.fired["swallowed"] += 1
            return None
        if weather.loss and self._rng.random() < weather.loss:
            self.world.fired["loss"] += 1
            return None
        delay = weather.delay_min_s + self._rng.expovariate(1 / weather.delay_s)
        if weather.delay_s > 0.01:
            self.world.fired["delay"] += 1
        return max(delay, link.clogged_until - self.world.now + delay)

    def _connection_s(self, source: int, target: int) -> float | None:
        """Return how long the first message of a call takes, or None if it is lost or no connection can be made."""
        if self.links[source, target].refused:
            self.world.fired["connection_refused"] += 1
            return None
        if not self._has_offer(source, target):
            self.world.fired["no_tunnel"] += 1
            return None
        return self.travel_s(source, target)

    def _noticed_s(self, source: int, target: int) -> float:
        """Return after how long a side notices that its call is broken."""
        down = self.links[source, target].down_since is not None or self.links[target, source].down_since is not None
        return self._keepalive_s() if down else self._rng.uniform(0.01, 0.5)

    def _may_replay(self, again: Callable[[], None]) -> None:
        if not self.weather.replay:
            return
        self._said.append(again)
        if len(self._said) > REMEMBERED:
            self._said.pop(self._rng.randrange(len(self._said)))
        if self._rng.random() < self.weather.replay:
            self.world.fired["replay"] += 1
            self.world.after(self._rng.uniform(0, 2), self._rng.choice(self._said))

    # ---- unary calls ----------------------------------------------------------------------------------------------

    def call(self, caller: Process, target: int, ask: Callable[[Process], Any], done: Callable[[Any], None]) -> None:
        """Ask a neighbor; ``done`` gets the answer, or None if none came within the suspicion time."""
        pending = [True]

        def finish(answer: Any) -> None:
            if pending.pop() if pending else False:
                done(answer)

        def arrive() -> None:
            process = self.world.running(target)
            if process is None:
                back = self.travel_s(target, caller.peer_id)
                if back is not None:
                    caller.later(back, finish, None)  # connection refused
                return
            process.soon(answer, process)

        def answer(process: Process) -> None:
            said = ask(process)
            back = self.travel_s(target, caller.peer_id)
            if back is None:
                caller.later(self._noticed_s(caller.peer_id, target), finish, None)
            else:
                caller.later(back, finish, said)

        def again() -> None:
            process = self.world.running(target)
            if process is not None:
                process.soon(ask, process)

        caller.later(self.world.manifest.timeouts.suspicion_s, finish, None)
        delay = self._connection_s(caller.peer_id, target)
        if delay is None:
            caller.later(self._noticed_s(caller.peer_id, target), finish, None)
        else:
            self.world.after(delay, arrive)
            self._may_replay(again)

    # ---- model streams --------------------------------------------------------------------------------------------

    def push(self, sender: Process, target: int, header: ModelHeader, payload: NDArray[np.uint8]) -> Push:
        """Open a stream to a neighbor and return the handle that `cancel` takes."""
        now = self.world.now
        push = Push(sender, sender.peer_id, target, header, payload, sent_at=now, quiet_since=now + WRITE_S)
        if self._forgets():
            return push
        self.pushes.append(push)
        delay = self._connection_s(push.source, target)
        if delay is None:
            sender.later(self._noticed_s(push.source, target), self._fail, push)
        else:
            self.world.after(delay, self._open, push)
            self._may_replay(lambda: self._ghost(push))
        return push

    def _forgets(self) -> bool:
        forgotten = bool(self.weather.forgotten) and self._fate.random() < self.weather.forgotten
        self.world.fired["forgotten"] += forgotten
        return forgotten

    def _ghost(self, push: Push) -> None:
        copy = Push(None, push.source, push.target, push.header, push.payload, sender_done=True)
        self.pushes.append(copy)
        self._open(copy)

    def _open(self, push: Push) -> None:
        process = self.world.running(push.target)
        if push.sender_done and push.sender is not None:
            self._forget(push)
        elif process is None:
            self._back(push, self._fail, push)
            push.receiver_done = True
        else:
            push.receiver = process
            process.soon(process.offered, push)

    def transfer(self, push: Push) -> None:
        """The receiver reads: bytes flow, or break off somewhere in the middle."""
        push.quiet_since = None
        duration = self._rng.uniform(0.5, 1.5) * push.header.size_bytes / self.weather.bytes_per_s
        if self.weather.cut and self._rng.random() < self.weather.cut:
            self.world.fired["cut"] += 1
            self.world.after(duration * self._rng.random(), self._break, push)
            return
        self.world.after(duration, self._flow, push)

    def _flow(self, push: Push) -> None:
        if push.receiver_done or push.receiver is None:
            return
        if push.sender_done and push.sender is not None:
            return  # the sender is gone; what tells the receiver is under way
        if self.links[push.source, push.target].down_since is not None:
            self.world.after(0.1, self._flow, push)  # retransmitted until the link is up or a keepalive ends it
            return
        payload = push.payload
        if self.weather.corrupt and self._rng.random() < self.weather.corrupt:
            self.world.fired["corrupt"] += 1
            push.receiver.soon(push.receiver.refused_bytes, push, Refusal(RefusalCode.DIGEST_MISMATCH))
            return
        push.receiver.soon(push.receiver.complete, push, payload)

    def reply(self, push: Push, reply: PushReply) -> None:
        """The receiver answers, once."""
        push.quiet_since = self.world.now
        if not push.receiver_done:
            push.receiver_done = True
            if not self._forgets():
                self._back(push, self._answered, push, reply)

    def _back(self, push: Push, action: Callable[..., None], *arguments: Any) -> None:
        delay = self.travel_s(push.target, push.source)
        if delay is None:
            delay, action, arguments = self._noticed_s(push.source, push.target), self._fail, (push,)
        if push.sender is not None:
            push.sender.later(delay, action, *arguments)
        else:
            self._forget(push)

    def _answered(self, push: Push, reply: PushReply) -> None:
        if not push.sender_done and push.sender is not None:
            push.sender_done = True
            self._forget(push)
            push.sender.answered(push, reply)

    def _fail(self, push: Push) -> None:
        if not push.sender_done and push.sender is not None:
            push.sender_done = True
            self._tell_receiver(push)
            push.sender.answered(push, None)

    def cancel(self, push: Push) -> None:
        """The sender gives up, or its process ends."""
        if not push.sender_done:
            push.sender_done = True
            self._tell_receiver(push)

    def _tell_receiver(self, push: Push) -> None:
        if push.receiver is None or push.receiver_done:
            self._forget(push)
            return
        delay = self.travel_s(push.source, push.target)
        if delay is None:
            delay = self._noticed_s(push.source, push.target)
        push.receiver.later(delay, self._cut, push)

    def _cut(self, push: Push) -> None:
        self._forget(push)
        if not push.receiver_done and push.receiver is not None:
            push.receiver_done = True
            push.receiver.cut(push)

    def _break(self, push: Push, at_once: bool = False) -> None:
        """The connection is gone: both ends notice, each for itself."""
        for process, action in ((push.sender, self._fail), (push.receiver, self._cut)):
            if process is not None:
                process.later(0.0 if at_once else self._noticed_s(push.source, push.target), action, push)

    def ended(self, process: Process) -> None:
        """A process is gone: its sockets are reset, if anybody can hear that."""
        for push in list(self.pushes):
            if push.sender is process:
                self.cancel(push)
            elif push.receiver is process:
                push.receiver_done = True
                self._back(push, self._fail, push)

    def _forget(self, push: Push) -> None:
        if push in self.pushes:
            self.pushes.remove(push)
