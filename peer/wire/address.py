"""Check that a peer's address in the graph file is an address of this machine."""

from __future__ import annotations

import ipaddress
import socket

from coordinator_free_bootstrap.errors import ConfigError
from coordinator_free_bootstrap.graph import split_address


def require_own_address(peer_id: int, address: str, listen: str) -> None:
    """Refuse an address at which other machines or containers do not reach this peer.

    Do not call it for peers behind address translation: their address is that of the translator.

    Args:
        peer_id: for the error message.
        address: ``host:port`` of this peer in the graph file.
        listen: ``host:port`` that this peer binds.

    Raises:
        ConfigError: the ports differ, or the host is unknown, loopback, or another machine.
    """
    host, port = split_address(address)
    where = f"graph file: peer {peer_id} has the address {address}"
    fix = (
        f"write a host and port at which neighbors reach this peer, such as peer-{peer_id}:{listen.rpartition(':')[2]}"
    )
    if str(port) != listen.rpartition(":")[2]:
        raise ConfigError(f"{where}, but it listens on {listen}; {fix}")
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise ConfigError(f"{where}, but the name {host} cannot be resolved ({error}); {fix}") from error
    if all(ipaddress.ip_address(ip.partition("%")[0]).is_loopback for ip in found):
        raise ConfigError(f"{where}, a loopback address, which other machines cannot reach; {fix}")
    if not any(_is_local(ip) for ip in found):
        raise ConfigError(f"{where}, an address of another machine ({', '.join(sorted(found))}); {fix}")


def _is_local(ip: str) -> bool:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return False
    return True
