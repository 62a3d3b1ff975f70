"""The graph: peers, edges, observers and the manifest of the run.

The constructor of `Graph` checks every rule, so each `Graph` is valid. `graph_file` reads and writes it. Pure.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from coordinator_free_bootstrap.coloring import matchings
from coordinator_free_bootstrap.errors import ConfigProblem, GraphError, Option
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.manifest import digest as manifest_digest
from coordinator_free_bootstrap.strict_json import shown

if TYPE_CHECKING:
    import networkx as nx

ID_MAX = (1 << 31) - 1  # fits every integer type of the wire and of JSON readers
PINS_MAX = 4  # a key rotation needs two
CERTIFICATE_CHARS_MAX = (
    8192  # base64; a certificate of `peer keygen` has about 700, one of a CA with RSA-4096 keys 3,000
)
OBSERVERS_MAX = 256
SUMMED = (3, 500)  # neighbors of a peer whose models can be summed; the messages of a sum of more are too long
REVISIONS_MAX = 1000  # a device that was off for longer starts anew
REMOVED_MAX = 64  # a former peer that knocks after as many others have left finds no answer
RATE_MIN = 2_000  # bytes/s, 16 kbit/s; at it a frame of 4 KiB to one neighbor takes half of the default suspicion time

_DIGEST = re.compile(r"[0-9a-f]{64}")
_PIN = re.compile(r"sha256:[0-9a-f]{64}")
_CERTIFICATE = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_OBSERVER = re.compile(r"[a-z][a-z0-9-]{0,31}")
_NETWORK = re.compile(r"[a-z0-9-]{1,63}")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_SCOPE = re.compile(r"[^\s/%\[\]]{1,15}")  # as long as Linux lets the name of an interface be
# resolvers read 0x7f.1 as 127.0.0.1
_NUMBERS = re.compile(r"(0[xX][0-9a-fA-F]*|[0-9]+)(\.(0[xX][0-9a-fA-F]*|[0-9]+)?)*")


def run_digest(graph_digest: str, manifest_digest: str) -> str:
    """Return `Graph.run_digest` of a graph with these digests; a checkpoint names both."""
    return hashlib.sha256(f"{graph_digest} {manifest_digest}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Relay:
    """What a peer carries for pairs of its neighbors that cannot dial each other."""

    bytes_per_second: int  # of all connections together
    connections: int  # open at the same time


@dataclass(frozen=True, slots=True)
class Node:
    """One peer: id, listen address (``host:port``) and credentials.

    ``pins`` are the fingerprints of the allowed keys. ``certificates`` are base64 of DER, for the TLS handshake.
    ``dials_only``: no other peer can dial it, except those of the same ``network``; without one the address may be "".
    ``relay``: it agrees to relay, within these limits.
    ``upload_limit``, ``download_limit``: bytes per second of its transfers with all neighbors together; None: no limit.
    """

    id: int
    address: str
    pins: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()
    dials_only: bool = False
    relay: Relay | None = None
    upload_limit: int | None = None
    download_limit: int | None = None
    network: str = ""

    def can_dial(self, other: Node) -> bool:
        """Return whether this peer can dial another one."""
        return not other.dials_only or (bool(self.network) and self.network == other.network)


@dataclass(frozen=True, slots=True)
class Observer:
    """A client that may read the status of every peer and nothing else."""

    name: str
    pins: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Removed:
    """A former peer. Its former neighbors know it by its credentials, and answer that it was removed."""

    id: int
    pins: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()


@dataclass(frozen=True)
class Graph:
    """Peers, the edges between them, and the run's manifest. Immutable, valid, and in canonical order.

    Args:
        nodes: in any order; kept sorted by id.
        edges: pairs of ids in any order; kept as sorted (smaller, larger) pairs.
        manifest: the settings that all peers share.
        name: free text.
        observers: clients that may read status.
        via: the edges that run through a relay, as (smaller id, larger id, relay); see `routes`.
        continues: `run_digest` of the graph files before this one, the last first: their models and rounds stay (`revision`).
        from_round: a running peer that takes this file changes at the beginning of this round, or of a later one.
        removed: the peers that have left for good, the last ones last.
        owners: certificates, base64 of DER, of those who may sign the next file beside the present owner.
        signature: of the owner, base64; see `peer.identity.signing`.

    Raises:
        GraphError: the graph breaks a rule; one line per problem, without a file name.
    """

    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]
    manifest: Manifest = field(default_factory=Manifest)
    name: str = ""
    observers: tuple[Observer, ...] = ()
    via: tuple[tuple[int, int, int], ...] = ()
    continues: tuple[str, ...] = ()
    from_round: int = 0
    removed: tuple[Removed, ...] = ()
    owners: tuple[str, ...] = ()
    signature: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(sorted(self.nodes, key=lambda node: node.id)))
        object.__setattr__(self, "edges", tuple(sorted((min(edge), max(edge)) for edge in self.edges)))
        object.__setattr__(self, "via", tuple(sorted((min(a, b), max(a, b), relay) for a, b, relay in self.via)))
        problems = [*_node_problems(self.nodes), *_edge_problems(self.nodes, self.edges)]
        problems = problems or _route_problems(self.nodes, self.edges, self.via)
        problems += _observer_problems(self.observers)
        problems += self._revision_problems()
        if not problems and self.manifest.algorithm != "local" and len(self.components) > 1:
            parts = " and ".join(_ids(part) for part in self.components[:3])
            more = f" and {len(self.components) - 3} more parts" if len(self.components) > 3 else ""
            problems.append(
                f"edges: expected a connected graph, got no path between {parts}{more}. "
                "Add an edge, or make a graph file of each part; only algorithm local needs no path."
            )
        if not problems and self.manifest.secure_sum is not None:
            problems += self._sum_problems()
        if problems:
            raise GraphError("\n".join(problems))

    def _sum_problems(self) -> list[str]:
        """Return what secure sums cannot do with: of two models each neighbor sees the other's in the sum."""
        few, many = SUMMED
        counts = {peer_id: self.degree(peer_id) for peer_id in self.ids}
        return [
            f"edges: expected {few} to {many} neighbors of each peer with run.secure_sum, got {count} of peer {peer_id}. "
            f"{'Add edges' if count < few else 'Drop edges'}, or set run.secure_sum to null."
            for peer_id, count in counts.items()
            if not few <= count <= many
        ]

    def _revision_problems(self) -> list[str]:
        problems = [
            f"continues: expected the SHA-256 of an earlier graph file, as peer graph next writes it, got {shown(each)}"
            for each in self.continues
            if not _DIGEST.fullmatch(each)
        ]
        if len(self.continues) > REVISIONS_MAX:
            problems.append(f"continues: expected at most {REVISIONS_MAX} files, got {len(self.continues)}")
        rounds = self.manifest.rounds
        if not 0 <= self.from_round < rounds:
            problems.append(f"from_round: expected a round of the run, 0 to {rounds - 1}, got {shown(self.from_round)}")
        if len(self.removed) > REMOVED_MAX:
            problems.append(f"removed: expected at most {REMOVED_MAX} peers, got {len(self.removed)}")
        if len(self.owners) > PINS_MAX:
            problems.append(f"owners: expected at most {PINS_MAX}, got {len(self.owners)}")
        problems += [
            f"{name}: expected base64 of up to {CERTIFICATE_CHARS_MAX} characters, as peer graph sign writes, got {shown(text)}"
            for name, texts in (("owners", self.owners), ("signature", (self.signature,) if self.signature else ()))
            for text in texts
            if not (len(text) <= CERTIFICATE_CHARS_MAX and len(text) % 4 == 0 and _CERTIFICATE.fullmatch(text))
        ]
        present = {node.id for node in self.nodes}
        for peer_id, count in Counter(each.id for each in self.removed).items():
            if peer_id in present or count > 1:
                got = "a node has this id" if peer_id in present else f"it is there {count} times"
                problems.append(f"removed: expected peers that are no nodes, each once, got {shown(peer_id)}: {got}")
        for each in self.removed:
            problems += _credential_problems(f"removed: peer {shown(each.id)}", each)
        return problems

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """All peer ids, ascending."""
        return tuple(node.id for node in self.nodes)

    def node(self, peer_id: int) -> Node:
        """Return one peer's node.

        Raises:
            GraphError: no peer has this id.
        """
        try:
            return self._by_id[peer_id]
        except KeyError:
            raise GraphError(ConfigProblem(Option("peer_id"), f"one of {_ids(self.ids)}", repr(peer_id))) from None

    def neighbors(self, peer_id: int) -> tuple[int, ...]:
        """Return the ids one edge away, ascending.

        Raises:
            GraphError: no peer has this id.
        """
        return self._adjacency[self.node(peer_id).id]

    def degree(self, peer_id: int) -> int:
        """Return the number of neighbors of a peer."""
        return len(self.neighbors(peer_id))

    def metropolis(self, i: int, j: int) -> float:
        """Return the Metropolis weight of an edge, w_ij = 1 / (1 + max(deg i, deg j)).

        Source: Lin Xiao, Stephen Boyd and Seung-Jean Kim, "Distributed average consensus with least-mean-square deviation", 2007.
        """
        return 1.0 / (1 + max(self.degree(i), self.degree(j)))

    def __contains__(self, peer_id: object) -> bool:
        """Return whether a peer has this id, in constant time."""
        return peer_id in self._by_id

    @cached_property
    def degrees(self) -> frozenset[int]:
        """The numbers of neighbors that occur; computed once, not by each peer of a process."""
        return frozenset(map(len, self._adjacency.values()))

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of ids and edges; neighbors compare it in the handshake, checkpoints name it.

        Addresses are left out: behind NAT or inside containers, two peers may reach a third peer under different
        addresses. Its key proves its identity, not its address. Pins are left out so that keys can be rotated peer by
        peer and checkpoints stay valid: a peer accepts only the pins of its own graph file.
        """
        text = json.dumps([self.ids, self.edges], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def run_digest(self) -> str:
        """SHA-256 (hex) of `digest` and the manifest, by which the next graph file names this one."""
        return run_digest(self.digest, manifest_digest(self.manifest))

    @cached_property
    def components(self) -> tuple[tuple[int, ...], ...]:
        """The connected parts, the largest first; one part in a connected graph."""
        parts, left = [], set(self.ids)
        while left:
            part = self._distances(min(left)).keys()
            left -= part
            parts.append(tuple(sorted(part)))
        return tuple(sorted(parts, key=lambda part: (-len(part), part)))

    @cached_property
    def diameter_bound(self) -> int:
        """Upper bound of the diameter, in edges; the largest over the connected parts.

        Exact up to 256 peers. Above, twice the smallest known eccentricity of a part, which is never below the diameter.
        """
        if len(self.nodes) <= 256:
            return max(self._eccentricity(peer_id) for peer_id in self.ids)
        return max(self._bound_of(part[0]) for part in self.components)

    def _bound_of(self, start: int) -> int:
        """Twice the smaller eccentricity of a peer and of the middle of its longest shortest path."""
        lengths = self._distances(start)
        middle, length = next(reversed(lengths.items()))
        longest = length
        while 2 * length > longest:  # walk back, along a shortest path
            length -= 1
            middle = next(peer for peer in self.neighbors(middle) if lengths[peer] == length)
        return 2 * min(longest, self._eccentricity(middle))

    def _eccentricity(self, peer_id: int) -> int:
        """Return the distance to the farthest peer of its part."""
        return next(reversed(self._distances(peer_id).values()))

    def _distances(self, start: int) -> dict[int, int]:
        """Return the edges between a peer and each peer of its part, in ascending order; breadth-first search."""
        lengths, queue = {start: 0}, deque((start,))
        while queue:
            peer_id = queue.popleft()
            for neighbor in self.neighbors(peer_id):
                if neighbor not in lengths:
                    lengths[neighbor] = lengths[peer_id] + 1
                    queue.append(neighbor)
        return lengths

    def to_networkx(self) -> nx.Graph:
        """Return a new networkx graph; nodes and edges have the keys of the graph file that are not empty."""
        import networkx as nx

        graph = nx.Graph()
        for node in self.nodes:
            graph.add_node(node.id, **facts_of(node))
        graph.add_edges_from(self.edges)
        graph.add_edges_from((a, b, {"via": relay}) for a, b, relay in self.via)
        return graph

    @cached_property
    def matchings(self) -> tuple[Mapping[int, int], ...]:
        """The edges in classes in which a peer has one partner at most, each from a peer to its partner (`coloring`)."""
        return matchings(self.edges)

    @cached_property
    def _by_id(self) -> dict[int, Node]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def _adjacency(self) -> dict[int, tuple[int, ...]]:
        neighbors: dict[int, list[int]] = {node.id: [] for node in self.nodes}
        for a, b in self.edges:
            neighbors[a].append(b)
            neighbors[b].append(a)
        return {peer_id: tuple(sorted(ids)) for peer_id, ids in neighbors.items()}


def own_address(text: str) -> tuple[str, int]:
    """Return host and port of ``host:port``; port 0 is any free one, to listen on.

    Raises:
        ValueError: another form; the text says what is allowed.
    """
    host, port = split_address(f"{text[:-1]}1" if text.endswith(":0") else text)
    return host, 0 if text.endswith(":0") else port


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, ``1.2.3.4:port`` or ``[v6]:port``; a link-local one has a scope, ``[fe80::1%eth0]``.

    Raises:
        ValueError: another form; the text says what is allowed.
    """
    host, _, port = address.rpartition(":")
    if not (_PORT.fullmatch(port) and int(port) <= 65535):
        raise ValueError("host:port with a port from 1 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            scope = ipaddress.IPv6Address(host).scope_id
        except ValueError:
            raise ValueError("an IPv6 address between the brackets") from None
        if scope is not None and not _SCOPE.fullmatch(scope):
            raise ValueError("after % the name or number of an interface, of at most 15 characters")
    elif not _HOST.fullmatch(host):
        raise ValueError("host:port with a host name, an IPv4 address, or an IPv6 address in brackets" + _hint(host))
    elif ".." in host:
        raise ValueError("a host name without empty parts between its dots")
    elif _NUMBERS.fullmatch(host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise ValueError("an IPv4 address of four numbers from 0 to 255") from None
    return host, int(port)


def _hint(host: str) -> str:
    """Return what to write in place of some hosts that are nearly right, "" for others."""
    if host.endswith(".") and _HOST.fullmatch(host[:-1]):
        return f"; write {host[:-1]}, without the last dot"
    try:
        ascii_name = host.encode("idna").decode()
    except UnicodeError:
        return ""
    return f"; write {ascii_name}, its form in ASCII" if ascii_name != host and _HOST.fullmatch(ascii_name) else ""


def _canonical(address: str) -> str:
    """Return one spelling of an address: lower case, IPv6 in its shortest form; other text unchanged but for its case."""
    try:
        host, port = split_address(address)
    except ValueError:
        return address.lower()
    return f"[{ipaddress.IPv6Address(host).compressed}]:{port}" if ":" in host else f"{host.lower()}:{port}"


def _node_problems(nodes: tuple[Node, ...]) -> list[str]:
    problems = [] if nodes else ["nodes: expected at least one node, got none"]
    for peer_id, count in Counter(node.id for node in nodes).items():
        if not 0 <= peer_id <= ID_MAX:
            problems.append(f"nodes: expected ids from 0 to {ID_MAX}, got {shown(peer_id)}")
        if count > 1:
            problems.append(f"nodes: expected each id once, got id {shown(peer_id)} {count} times")
    seen: dict[str, int] = {}
    for node in nodes:
        where = f"node {shown(node.id)}"
        problems += _relay_problems(where, node)
        problems += [
            f"{where}: {key}: expected bytes per second, {RATE_MIN} or more, got {shown(value)}"
            for key, value in (("upload_limit", node.upload_limit), ("download_limit", node.download_limit))
            if value is not None and value < RATE_MIN
        ]
        problems += _credential_problems(where, node)
        if node.network and not _NETWORK.fullmatch(node.network):
            problems.append(f"{where}: network: expected lower-case letters, digits and -, got {shown(node.network)}")
        if node.dials_only and not node.address and not node.network:
            continue
        try:
            split_address(node.address)
        except ValueError as error:
            problems.append(f"{where}: address: expected {error}, got {shown(node.address)}")
        first = seen.setdefault(_canonical(node.address), node.id)
        if first != node.id:
            problems.append(
                f"{where}: address: expected each address once, got {shown(node.address)}, the address of node "
                f"{shown(first)} too"
            )
    return problems


def _relay_problems(where: str, node: Node) -> list[str]:
    if node.relay is None:
        return []
    problems = [
        f"{where}: relay.{key}: expected 1 or more, got {shown(value)}"
        for key, value in asdict(node.relay).items()
        if value < 1
    ]
    if node.dials_only:
        problems.append(
            f"{where}: relay: expected limits only at a peer that others can dial, got them at a peer that only dials"
        )
    return problems


def facts_of(node: Node) -> dict[str, object]:
    """Return how a peer is reached, and its credentials, as in the graph file."""
    fields = {"address": node.address, "dials_only": node.dials_only, "network": node.network}
    fields |= {"relay": node.relay and asdict(node.relay)}
    fields |= {"upload_limit": node.upload_limit, "download_limit": node.download_limit}
    return {key: value for key, value in fields.items() if value} | credentials_of(node)


def credentials_of(subject: Node | Observer | Removed) -> dict[str, list[str]]:
    """Return the non-empty credentials of a peer, former peer or observer, as in the graph file."""
    fields = {"pins": list(subject.pins), "certificates": list(subject.certificates)}
    return {key: values for key, values in fields.items() if values}


def _credential_problems(where: str, subject: Node | Observer | Removed) -> list[str]:
    problems = [
        f"{where}: pins: expected sha256: and 64 lower-case hexadecimal digits, got {shown(pin)}"
        for pin in subject.pins
        if not _PIN.fullmatch(pin)
    ]
    problems += [
        f"{where}: certificates: expected base64 of a DER certificate, up to {CERTIFICATE_CHARS_MAX} characters, got "
        f"{shown(text)}. Write it with `peer graph pin`."
        for text in subject.certificates
        if not (len(text) <= CERTIFICATE_CHARS_MAX and _CERTIFICATE.fullmatch(text))
    ]
    for key, values in credentials_of(subject).items():
        if len(values) > PINS_MAX:
            problems.append(f"{where}: {key}: expected at most {PINS_MAX}, got {len(values)}")
    return problems


def _observer_problems(observers: tuple[Observer, ...]) -> list[str]:
    problems = []
    if len(observers) > OBSERVERS_MAX:
        problems.append(f"observers: expected at most {OBSERVERS_MAX}, got {len(observers)}")
    for name, count in Counter(observer.name for observer in observers).items():
        if not _OBSERVER.fullmatch(name):
            problems.append(f"observers: expected a name of lower-case letters, digits and -, got {shown(name)}")
        if count > 1:
            problems.append(f"observers: expected each name once, got {shown(name)} {count} times")
    for observer in observers:
        problems += _credential_problems(f"observer {shown(observer.name)}", observer)
    return problems


def _edge_problems(nodes: tuple[Node, ...], edges: tuple[tuple[int, int], ...]) -> list[str]:
    known = {node.id for node in nodes}
    listed = _ids(sorted(known))
    problems = []
    for (a, b), count in Counter(edges).items():
        if a != b and count == 1 and a in known and b in known:
            continue
        where = f"edge {shown(a)}-{shown(b)}"
        if a == b:
            problems.append(f"{where}: expected an edge between two peers, got a self-loop")
        if count > 1:
            problems.append(f"{where}: expected each edge once, in one direction, got it {count} times")
        problems += [
            f"{where}: expected one of {listed}, got {shown(end)}, which is not the id of a node"
            for end in {a, b}
            if end not in known
        ]
    return problems


def _route_problems(
    nodes: tuple[Node, ...], edges: tuple[tuple[int, int], ...], via: tuple[tuple[int, int, int], ...]
) -> list[str]:
    """Check that one end of each edge can dial the other, or that a common neighbor has agreed to relay."""
    of = {node.id: node for node in nodes}
    around: dict[int, set[int]] = {node.id: set() for node in nodes}
    for a, b in edges:
        around[a].add(b)
        around[b].add(a)
    relayed = {(a, b): relay for a, b, relay in via}
    problems = [] if len(relayed) == len(via) else ["edges: expected one via for each edge, got two"]
    problems += [
        f"edge {shown(a)}-{shown(b)}: via: expected a relay of an edge, got one of no edge"
        for a, b in relayed.keys() - {*edges}
    ]
    dialed = {(a, b) for a, b in edges if of[a].can_dial(of[b]) or of[b].can_dial(of[a])}
    for a, b in (edge for edge in edges if edge in relayed or edge not in dialed):
        common = (n for n in around[a] & around[b] if of[a].can_dial(of[n]) and of[b].can_dial(of[n]))
        able = sorted(n for n in common if not {(min(end, n), max(end, n)) for end in (a, b)} & relayed.keys())
        relay = relayed.get((a, b))
        if relay is None:
            fix = (
                f'"via" with {" or ".join(map(str, able[:8]))}'
                if able
                else "no peer that both can dial is their neighbor"
            )
            problems.append(
                f'edge {a}-{b}: expected one end that the other can dial, the same "network" at both, or a relay '
                f"({fix}), got two peers that only dial"
            )
        elif relay not in able:
            one = f"one of {_ids(able)}" if able else "none, since no peer that both can dial is their neighbor"
            problems.append(f"edge {a}-{b}: via: expected {one}, got {shown(relay)}")
        elif of[relay].relay is None:
            problems.append(
                f'edge {a}-{b}: via: expected a node with "relay": {{"bytes_per_second": ..., "connections": ...}}, '
                f"got peer {relay}, which has not agreed to relay"
            )
    return problems


def _ids(ids: tuple[int, ...] | list[int]) -> str:
    """Return at most eight ids as text for a message."""
    text = ", ".join(map(str, ids[:8]))
    return f"{text}, ... ({len(ids)} peers)" if len(ids) > 8 else text
