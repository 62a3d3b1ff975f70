"""Whether the address that the graph file gives a peer leads to this machine, where neighbors will look for it."""

from __future__ import annotations

import ipaddress
import socket

from coordinator_free_bootstrap.errors import ConfigError
from coordinator_free_bootstrap.graph import split_address


def require_own_address(peer_id: int, address: str, listen: str) -> None:
    """Refuse an address under which no other machine or container would find this peer.

    Not for peers behind address translation, whose own address rightly leads elsewhere.

    Args:
        peer_id: for the sentence.
        address: ``host:port`` of this peer in the graph file.
        listen: ``host:port`` that this peer binds.

    Raises:
        ConfigError: the port is another one, or the host is unknown, loopback, or another machine.
    """
    host, port = split_address(address)
    where = f"graph file: peer {peer_id} has the address {address}"
    fix = f"write the name under which neighbors reach this peer, such as peer-{peer_id}:{listen.rpartition(':')[2]}"
    if str(port) != listen.rpartition(":")[2]:
        raise ConfigError(f"{where}, but it listens on {listen}; {fix}")
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise ConfigError(f"{where}, and nobody knows the name {host} ({error}); {fix}") from error
    if all(ipaddress.ip_address(ip.partition("%")[0]).is_loopback for ip in found):
        raise ConfigError(f"{where}, where every peer finds only itself; {fix}")
    if not any(_is_local(ip) for ip in found):
        raise ConfigError(f"{where}, which is another machine ({', '.join(sorted(found))}); {fix}")


def _is_local(ip: str) -> bool:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return False
    return True
