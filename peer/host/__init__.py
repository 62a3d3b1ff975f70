"""One peer without its surroundings: engine, algorithm and models in `PeerHost`; what it asks of a `World`."""

from peer.host.build import InitialModels, build_host
from peer.host.host import PeerHost, Probe
from peer.host.world import World

__all__ = ["InitialModels", "PeerHost", "Probe", "World", "build_host"]
