"""Generators of connected graphs by kind, with networkx; equal seeds give equal graphs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, get_args

from coordinator_free_bootstrap.errors import GraphError, Option, UsageError
from coordinator_free_bootstrap.graph import Graph, Node
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.mixing import spectral_gap
from coordinator_free_bootstrap.seeds import generator
from coordinator_free_bootstrap.templates import fill_template

if TYPE_CHECKING:
    import networkx as nx
    import numpy as np

Kind = Literal[
    "ring",
    "line",
    "torus",
    "complete",
    "star",
    "regular",
    "expander",
    "small-world",
    "erdos-renyi",
    "barabasi-albert",
    "geometric",
]
EdgePairs = tuple[tuple[int, int], ...]
KINDS: tuple[Kind, ...] = get_args(Kind)
DRAWS_MAX = 1000  # redraws until a random graph is connected
EXPANDER_DRAWS = 10  # connected regular graphs, of which an expander is the one with the largest spectral gap
PEERS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Shape:
    """Parameters of the random kinds; None where the kind has none. ``degree`` is the average degree to reach."""

    p: float | None = None
    m: int | None = None
    degree: float | None = None
    radius: float | None = None


_ALLOWED: dict[Kind, tuple[str, ...]] = {
    "regular": ("degree",),
    "expander": ("degree",),
    "small-world": ("degree",),
    "erdos-renyi": ("p", "degree"),
    "barabasi-albert": ("m", "degree"),
    "geometric": ("radius", "degree"),
}
KIND_KEYS: dict[str, type[int] | type[float]] = {"seed": int, "p": float, "m": int, "degree": float, "radius": float}
REWIRED = 0.1  # share of the edges of a small world that are rewired by default
BASE_PORT = 7400  # of peer 0
DEGREE = 4  # without a parameter: few messages, and a small set of peers is still connected


def make_graph(
    kind: Kind,
    peers: int,
    *,
    seed: int = 1,
    manifest: Manifest | None = None,
    base_port: int | None = None,
    address_template: str = "127.0.0.1:{port}",
    p: float | None = None,
    m: int | None = None,
    degree: float | None = None,
    radius: float | None = None,
) -> Graph:
    """Draw a connected graph; a disconnected draw is repeated with seed + 1, up to `DRAWS_MAX` times.

    An expander is the regular graph of the largest spectral gap among `EXPANDER_DRAWS` draws.

    Without p, m, degree or radius a kind that has one of them gets `default_degree`.

    Args:
        kind: one of `KINDS`.
        peers: number of peers, with ids from 0.
        seed: of the graph; the seed of the run is the manifest key ``seed``.
        manifest: settings of the run; default: every key at its default.
        base_port: ``{port}`` in the template becomes base_port + peer id. Default: `BASE_PORT`.
        address_template: address of a peer, such as ``peer-{id}:7400``; placeholders ``{id}``, ``{id+N}``, ``{id-N}`` with any
            whole number N, and the same with ``port``.
        p: erdos-renyi: probability of each edge; small-world: share of the ring's edges that are rewired (0.1).
        m: barabasi-albert: edges added with each peer.
        degree: average degree to reach, in place of p, m or radius; ``regular`` and ``expander``: the exact degree;
            small-world: the even degree of the ring whose edges are rewired.
        radius: geometric: peers are points in the unit square, and neighbors if their distance is at most this.

    Raises:
        GraphError: a parameter is out of range or unknown to this kind, or no draw is connected.
        UsageError: base_port has no effect, since the template does not use it.
    """
    if base_port is not None and "{port" not in address_template:
        raise UsageError(
            f"{Option('base_port')}: expected {{port}} in {Option('address_template')} with it, got {address_template!r}"
        )
    if kind not in KINDS:
        raise GraphError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    if not 2 <= peers <= PEERS_MAX:
        raise GraphError(f"peers: expected a number from 2 to {PEERS_MAX}, got {peers}")
    if kind in _ALLOWED and (p is None or kind == "small-world") and m is None and radius is None and degree is None:
        degree = default_degree(kind, peers)
    shape = Shape(p, m, degree, radius)
    _check_shape(kind, peers, shape)
    first_port = BASE_PORT if base_port is None else base_port
    nodes = tuple(
        Node(i, fill_template(address_template, "address template", id=i, port=first_port + i)) for i in range(peers)
    )
    draws = DRAWS_MAX if kind in _ALLOWED else 1
    wanted = EXPANDER_DRAWS if kind == "expander" else 1
    first = seed * wanted  # so that two seeds of an expander share no draw
    candidates = [
        Graph(nodes, edges, manifest or Manifest(), _drawing(kind, peers, shape, draw_seed))
        for draw_seed, edges in islice(_connected(kind, peers, shape, range(first, first + draws)), wanted)
    ]
    if len(candidates) < wanted:
        raise GraphError(
            f"{kind} with {peers} peers: expected a larger {' or '.join(_ALLOWED[kind])}, got no connected graph in "
            f"{draws} draws from seed {seed}"
        )
    return max(candidates, key=spectral_gap) if kind == "expander" else candidates[0]


def kind_named(text: str) -> dict[str, Any]:
    """Return the arguments of `make_graph` in ``KIND`` or ``KIND:KEY=VALUE,KEY=VALUE``, such as ``erdos-renyi:p=0.5,seed=2``.

    Raises:
        GraphError: a key is unknown or given twice, or its value is no number.
    """
    kind, colon, rest = text.partition(":")
    arguments: dict[str, Any] = {}
    for pair in rest.split(",") if colon else []:
        key, _, value = pair.partition("=")
        number = KIND_KEYS.get(key)
        if number is None or key in arguments:
            raise GraphError(
                f"kind: expected KIND:KEY=VALUE,... with keys {', '.join(KIND_KEYS)}, each once, got {text!r}."
            )
        try:
            arguments[key] = number(value)
        except ValueError:
            what = "a whole number" if number is int else "a number"
            raise GraphError(f"kind: expected {what} for {key}, got {value!r} in {text!r}.") from None
    return {"kind": kind, **arguments}


def default_degree(kind: Kind, peers: int) -> float:
    """Return the degree of a sparse graph of this kind: 4, or more if a random graph of degree 4 is seldom connected.

    A random graph is connected with probability exp(-N exp(-degree)) for large N (Paul Erdős and Alfréd Rényi, "On random
    graphs I", 1959): 0.69 at ln N + 1. A geometric graph needs about twice the degree, as peers at the border have fewer
    neighbors.
    """
    match kind:
        case "regular" | "expander":
            return min(DEGREE, peers - 1)
        case "small-world":
            return DEGREE if peers > DEGREE else 2
        case "geometric":
            return min(round(max(DEGREE, 2 * math.log(peers)), 1), peers - 1)
        case _:
            return min(round(max(DEGREE, math.log(peers) + 1), 1), peers - 1)


def _connected(kind: Kind, peers: int, shape: Shape, seeds: Iterable[int]) -> Iterator[tuple[int, EdgePairs]]:
    """Yield the seed and the edges of each draw that is connected."""
    import networkx as nx

    for seed in seeds:
        drawn = _draw(kind, peers, shape, seed)
        if nx.is_connected(drawn):
            yield seed, tuple(map(tuple, nx.convert_node_labels_to_integers(drawn, ordering="sorted").edges))


def _drawing(kind: Kind, peers: int, shape: Shape, seed: int) -> str:
    """Return the name of a drawn graph."""
    settings = ", ".join(f"{name}={getattr(shape, name):g}" for name in _given(shape))
    return ", ".join(filter(None, [kind, f"{peers} peers", f"{settings}, seed {seed}" if settings else ""]))


def _given(shape: Shape) -> list[str]:
    return [name for name in ("p", "m", "degree", "radius") if getattr(shape, name) is not None]


def _check_shape(kind: Kind, peers: int, shape: Shape) -> None:
    allowed, given = _ALLOWED.get(kind, ()), _given(shape)
    if not allowed and given:
        raise GraphError(f"{kind}: expected no parameter, got {' and '.join(given)}. Remove it.")
    if kind == "small-world":
        given = [name for name in given if name != "p"]
    if allowed and (len(given) != 1 or given[0] not in allowed):
        raise GraphError(f"{kind}: expected one of {', '.join(allowed)}, got {' and '.join(given) or 'no parameter'}")
    limits: dict[str, tuple[float | None, float, float]] = {
        "p": (shape.p, 0, 1),
        "m": (shape.m, 1, peers - 1),
        "degree": (shape.degree, 1, peers - 1),
        "radius": (shape.radius, 0, math.sqrt(2)),
    }
    for name, (value, low, high) in limits.items():
        if value is not None and not low <= value <= high:
            raise GraphError(f"{name}: expected a number from {low:g} to {high:g} with {peers} peers, got {value:g}")
    if kind in ("regular", "expander") and (
        not float(shape.degree or 0).is_integer() or peers * int(shape.degree or 0) % 2
    ):
        raise GraphError(f"degree: expected a whole number, even with {peers} peers, got {shape.degree:g}")
    if kind == "small-world" and float(shape.degree or 0) % 2:
        raise GraphError(f"degree: expected an even whole number, got {shape.degree:g}")


def _draw(kind: Kind, peers: int, shape: Shape, seed: int) -> nx.Graph:
    """Return one draw; it may be disconnected.

    An average degree x gives p = x / (N - 1) for erdos-renyi and m = x / 2, rounded, at least 1, for barabasi-albert.
    """
    import networkx as nx

    match kind:
        case "ring":
            return nx.cycle_graph(peers)
        case "line":
            return nx.path_graph(peers)
        case "complete":
            return nx.complete_graph(peers)
        case "star":
            return nx.star_graph(peers - 1)
        case "torus":  # the grid closest to a square, periodic in both directions
            rows = next(rows for rows in range(math.isqrt(peers), 0, -1) if peers % rows == 0)
            if rows == 1:
                raise GraphError(f"torus: expected rows times columns, both at least 2, got {peers} peers")
            return nx.grid_2d_graph(rows, peers // rows, periodic=True)
        case "regular" | "expander":
            return nx.random_regular_graph(int(shape.degree or 0), peers, seed=seed)
        case "small-world":  # Duncan Watts and Steven Strogatz, "Collective dynamics of small-world networks", 1998
            rewired = REWIRED if shape.p is None else shape.p
            return nx.watts_strogatz_graph(peers, int(shape.degree or 0), rewired, seed=seed)
        case "erdos-renyi":
            probability = shape.p if shape.degree is None else shape.degree / (peers - 1)
            return nx.gnp_random_graph(peers, probability, seed=seed)
        case "barabasi-albert":
            m = shape.m if shape.degree is None else max(1, round(shape.degree / 2))
            return nx.barabasi_albert_graph(peers, m, seed=seed)
        case "geometric":
            positions = generator(seed, "positions").random((peers, 2))
            radius = _radius(positions, shape.degree or 0) if shape.radius is None else shape.radius
            return nx.random_geometric_graph(peers, radius, pos=dict(enumerate(positions.tolist())))


def _radius(positions: np.ndarray[tuple[int, int], np.dtype[np.float64]], degree: float) -> float:
    """Return the radius with the given average degree, by bisection."""
    from scipy.spatial import KDTree

    tree, wanted = KDTree(positions), len(positions) * (1 + degree)
    low, high = 0.0, math.sqrt(2)
    for _ in range(50):  # the diagonal halved 50 times is below any distance of two float64 points
        middle = (low + high) / 2
        low, high = (low, middle) if tree.count_neighbors(tree, middle) >= wanted else (middle, high)
    return high
