"""A neighbor with a true key that uses up what it can of its victims, on the virtual clock. It has no engine and trains nothing.

It says hello and claims the victim's round, so that the victim counts on it; each attack below is what it does beside that.
None of its models is ever folded.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from peer.core.messages import Heartbeat, Hello, HelloReply, ModelHeader, Outcome, Pass, Phase, PushReply, Select
from peer.core.messages import PullRequest as Pull
from tests.simulation.network import LIMITS, Network, Push
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.world import Machine, World

EVERY_S = 0.25  # between two turns of an attack
CLAIM_AHEAD = 1000

DRY, DRIP, INVALID = "offers without bytes", "drips", "models that fail screening"
ATTACKS = (
    DRY,
    DRIP,
    INVALID,
    "one stream, without bytes",
    "restarts with offers",
    "claims ahead",
    "claims behind",
    "never answers",
    "answers late",
    "floods of messages",
    "wrong sizes",
    "goodbyes",
)


class AttackedNetwork(Network):
    """A network on which the attacker decides how the bytes of its own models flow."""

    def transfer(self, push: Push) -> None:
        """Let bytes flow, or not."""
        if isinstance(push.sender, Attacker):
            push.quiet_since = None
            push.sender.is_read(push)
        else:
            super().transfer(push)


class Attacker(Process):
    """The attacking neighbor of several victims."""

    def __init__(self, world: World, machine: Machine, attack: str) -> None:
        super().__init__(world, machine)
        self.attack = attack
        self.active = True
        self.incarnation = self.host.state.incarnation
        self.host.answer_heartbeat = lambda _heartbeat: None  # type: ignore[method-assign]

    # ---- what it does by itself -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self.world.checker.begins(self)
        self._turn()

    def stop_attack(self) -> None:
        """Be gone: all its connections are reset."""
        self.active = False
        for push in [push for push in self.network.pushes if push.sender is self]:
            self.network.cancel(push)
        self.end("crashed")

    def _turn(self) -> None:
        if not self.active:
            return
        for victim in self.world.graph.neighbors(self.peer_id):
            process = self.world.running(victim)
            if process is not None:
                self._attack(victim, process)
        self.later(EVERY_S, self._turn)

    def _attack(self, victim: int, process: Process) -> None:
        self.world.fired[self.attack] += 1
        t, known = process.engine.round_index, process.engine.state.neighbors[self.peer_id]
        if "restarts" in self.attack:
            self.incarnation += 1
        if not known.connected or known.incarnation < self.incarnation or not known.liveness.is_live:
            self._ask(victim, lambda other: other.hello(self._hello(other, t)))
            if not known.connected:
                return
        claim = t + CLAIM_AHEAD if "ahead" in self.attack else 0 if "behind" in self.attack else t
        phase = Phase.LEAVING if "goodbyes" in self.attack else Phase.RUNNING
        beat = Heartbeat(self.peer_id, self.incarnation, claim, phase)
        self._ask(victim, lambda other: (other.host.answer_heartbeat(beat),))
        if "floods" in self.attack:
            self._flood(victim, t)
        else:
            self._offer(victim, process, t)

    def _offer(self, victim: int, process: Process, t: int) -> None:
        open_now = sum(push.source == self.peer_id and push.target == victim for push in self.network.pushes)
        most = 1 if "one stream" in self.attack else LIMITS.streams_per_neighbor
        earliest = max(0, t - 1) if process.world.manifest.pace == "async" else t
        slots = process.host.algorithm.slots
        for number in range(open_now, most):
            self._push(victim, process, earliest + number % 2, number % slots)

    def _push(self, victim: int, process: Process, round_index: int, slot: int) -> None:
        size = process.host.format.model_bytes
        claimed = size * 1000 if "sizes" in self.attack else size
        header = ModelHeader(
            **{"sender": self.peer_id, "incarnation": self.incarnation, "round_index": round_index, "step": 0},
            **{"slot": slot, "index": 0, "total": 1, "sample_count": 10, "mass": 1.0},
            **{"size_bytes": claimed, "encoding": "float32"},
        )
        payload = np.full(size // 4, np.nan, np.float32).view(np.uint8)
        self.network.push(self, victim, header, payload)

    def _flood(self, victim: int, t: int) -> None:
        for number in range(10):
            passed = Pass(self.peer_id, self.incarnation, t + number % 3, 0)
            select = Select(self.peer_id, self.incarnation, t, number - 1)
            self._ask(victim, lambda other, said=passed: other.control(said))
            self._ask(victim, lambda other, said=select: other.control(said))
            self._ask(victim, lambda other: other.answer_pull(Pull(self.peer_id, self.incarnation, 0)))
            self._ask(victim, lambda other: other.hello(self._hello(other, t)))

    def _ask(self, victim: int, ask: Any) -> None:
        self.network.call(self, victim, ask, lambda _answer: None)

    def _hello(self, victim: Process, t: int) -> Hello:
        mine = self.host.hello_to(victim.peer_id)
        return replace(mine, incarnation=self.incarnation, round_index=t, phase=Phase.RUNNING)

    # ---- what it answers --------------------------------------------------------------------------------------------------

    def is_read(self, push: Push) -> None:
        """A victim reads a model of this peer."""
        timeouts = self.world.manifest.timeouts
        receiver = push.receiver
        if receiver is None:
            return
        if self.attack == INVALID:
            self.world.after(0.01, receiver.soon, receiver.complete, push, push.payload)
        else:
            # What the wire does with a transfer that stops, or that is too slow.
            limit_s = timeouts.idle_transfer_s * (4 if self.attack == DRIP else 1)
            self.world.after(limit_s, receiver.soon, receiver.refused_bytes, push, Refusal(RefusalCode.TOO_SLOW))

    def answered(self, push: Push, reply: PushReply | None) -> None:
        """A push is answered or broken: the next turn opens another one."""

    def hello(self, hello: Hello) -> HelloReply:
        """Answer a handshake as an honest peer would."""
        process = self.world.running(hello.sender)
        assert process is not None
        return HelloReply(self._hello(process, hello.round_index))

    def control(self, message: Any) -> tuple[Refusal | None]:
        """Take a selection or a pass."""
        return (None,)

    def offered(self, push: Push) -> None:
        """Take a model unread; or let its sender wait."""
        if "never" in self.attack:
            return
        late_s = 5.0 if "late" in self.attack else 0.0
        self.later(late_s, partial(self.network.reply, push, Outcome.FOLDED))

    def answer_pull(self, request: Pull) -> Refusal:
        """Give nothing."""
        return Refusal(RefusalCode.RATE_LIMITED)
