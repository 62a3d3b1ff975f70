"""One peer without its surroundings: engine, algorithm and models in `PeerHost`; what it asks of a `World`."""

from peer.host.host import InitialModels, PeerHost, Probe, ReceivedModel
from peer.host.world import Checkpoint, World, execute

__all__ = ["Checkpoint", "InitialModels", "PeerHost", "Probe", "ReceivedModel", "World", "execute"]
