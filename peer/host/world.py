"""What a host asks of its surroundings.

Three worlds implement `World`: asyncio and gRPC (`peer.runtime`), the virtual network of `peer experiment`, and the faulty
virtual world of the fault simulation (`tests/simulation`).
"""

from __future__ import annotations

from typing import Any, Protocol

from peer.core import effects as do
from peer.core.arrivals import Arrival
from peer.core.checkpoint import Checkpoint
from peer.core.messages import Control, Heartbeat, ModelHeader, PushReply


class World(Protocol):
    """The surroundings of one peer. No method waits: each answers later with the event that `peer.core.effects` names."""

    def now(self) -> float:
        """Return monotonic seconds."""

    def send_hello(self, neighbor: int) -> None:
        """Send `PeerHost.hello_to`; give the reply to `PeerHost.hello_answered`, or post `HandshakeFailed`."""

    def send_heartbeat(self, neighbor: int, heartbeat: Heartbeat) -> None:
        """Send a heartbeat."""

    def send_control(self, neighbor: int, message: Control) -> None:
        """Send a selection or a pass."""

    def push(self, neighbor: int, header: ModelHeader) -> None:
        """Send the model of `Sending.message_to`."""

    def cancel_send(self, neighbor: int) -> None:
        """Give up the control message or push in flight."""

    def retry_if_stalled(self, neighbor: int, quiet_s: float) -> None:
        """Give up the push in flight if no byte of it has moved for ``quiet_s`` seconds."""

    def pull(self, neighbor: int) -> None:
        """Ask for all slots; post the event of `Receiving.pulled`."""

    def read_arrival(self, arrival: Arrival) -> None:
        """Read a model into the buffer that `Receiving.reserve` gives it, and screen it."""

    def answer_arrival(self, arrival: Arrival, reply: PushReply) -> None:
        """Answer a push."""

    def take_snapshot(self, effect: do.TakeSnapshot) -> None:
        """Call `Sending.take_snapshot`."""

    def fold_arrival(self, effect: do.FoldArrival) -> None:
        """Call `Receiving.fold`: one arrival at a time, and not beside work other than training."""

    def work(self, effect: do.Work) -> None:
        """Call `PeerHost.work`."""

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint."""

    def raise_incarnation(self, above: int) -> int | None:
        """Persist and return an incarnation higher than ``above``; None if that is not possible now."""

    def record(self, kind: str, fields: dict[str, Any]) -> None:
        """Append a line to the history."""

    def log(self, line: do.Log) -> None:
        """Write a log line."""

    def set_timer(self, at: float) -> None:
        """Post a `Tick` at or after a time; replaces an earlier request."""

    def stop(self, status: str) -> None:
        """End the peer."""
