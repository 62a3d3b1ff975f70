"""Addresses: as gRPC must be given them, and whether the one in the graph file is an address of this machine."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem
from coordinator_free_bootstrap.graph import split_address

# words before a colon that a gRPC server takes for one
SCHEMES = frozenset({"external", "unix", "unix-abstract", "vsock"})


def dialed(address: str) -> str:
    """Return gRPC's target of ``host:port``, which it reads as a URI.

    So the scope in ``[fe80::1%bat0]:7400`` is escaped, ``%ba`` is a byte in a URI, and the scheme is named: in ``unix:7400`` the
    host would be taken for one. The name of a unix socket, ``unix:PATH``, is a target already.
    """
    return address if address.startswith("unix:/") else f"dns:///{_escaped(address)}"


def listened(listen: str) -> str:
    """Return ``host:port`` as a gRPC server must be given it: it decodes it as a URI too, and knows no scheme for names.

    Raises:
        ValueError: the host is the name of a scheme.
    """
    host = listen.rpartition(":")[0]
    if host.lower() in SCHEMES:
        raise ValueError(f"another host than {host}, which gRPC reads as the kind of an address; give its IP address")
    return _escaped(listen)


def _escaped(address: str) -> str:
    """Return an address for a URI; gRPC takes digits after % for a number, so an interface of such a name gets its number."""
    before, _, scope = address.partition("%")
    name, _, port = scope.rpartition("]")
    if name.isdigit():
        with suppress(OSError):  # there is no such name
            address = f"{before}%{socket.if_nametoindex(name)}]{port}"
    return quote(address, safe="[]:")


def undialable(graph: Graph) -> Iterator[str]:
    """Yield a sentence for each link-local address without a scope: the kernel connects to none."""
    for node in graph.nodes:
        host, port = split_address(node.address) if node.address else ("", 0)
        if ":" not in host:
            continue
        found = ipaddress.IPv6Address(host)
        if found.is_link_local and found.scope_id in (None, "0"):
            plain = host.partition("%")[0]
            yield (
                f"peer {node.id}: the address {node.address} is link-local and names no interface, so no peer can dial it; write "
                f"[{plain}%eth0]:{port}, with the name or number of the interface at its neighbors"
            )


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
    where = f"graph file: address of peer {peer_id}"
    fix = (
        f"Write a host and port at which neighbors reach this peer, such as peer-{peer_id}:{listen.rpartition(':')[2]}."
    )
    if str(port) != listen.rpartition(":")[2]:
        raise ConfigError(
            ConfigProblem(where, f"port {listen.rpartition(':')[2]}, on which it listens", str(port), fix)
        )
    try:
        places = [info[4] for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError) as error:
        raise ConfigError(ConfigProblem(where, "a name that can be resolved", f"{host} ({error})", fix)) from error
    found = {str(place[0]) for place in places}
    if all(ipaddress.ip_address(ip.partition("%")[0]).is_loopback for ip in found):
        expected = "an address that other machines can reach"
        raise ConfigError(ConfigProblem(where, expected, f"the loopback address {address}", fix))
    if not any(map(_is_local, places)):
        other = f"{address} of another machine ({', '.join(sorted(found))})"
        raise ConfigError(ConfigProblem(where, "an address of this machine", other, fix))


def _is_local(place: tuple[Any, ...]) -> bool:
    """Return whether this machine has the address of a socket; that of IPv6 ends with flow and scope."""
    family = socket.AF_INET6 if ":" in str(place[0]) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((place[0], 0, *place[2:]))
        except OSError:
            return False
    return True
