"""Graphs of the usual kinds, drawn by networkx; always connected, the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from coordinator_free_bootstrap.errors import GraphError
from coordinator_free_bootstrap.graph import Graph, Node
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.seeds import generator

if TYPE_CHECKING:
    import networkx as nx

Kind = Literal["ring", "line", "torus", "complete", "star", "regular", "erdos-renyi", "barabasi-albert", "geometric"]
KINDS: tuple[Kind, ...] = get_args(Kind)
DRAWS_MAX = 1000  # redraws until a random graph is connected
PEERS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Shape:
    """The parameters of the random kinds; None where the kind has none. ``degree`` is the wanted average degree."""

    p: float | None = None
    m: int | None = None
    degree: float | None = None
    radius: float | None = None


_ALLOWED: dict[Kind, tuple[str, ...]] = {
    "regular": ("degree",),
    "erdos-renyi": ("p", "degree"),
    "barabasi-albert": ("m", "degree"),
    "geometric": ("radius", "degree"),
}


def make_graph(
    kind: Kind,
    peers: int,
    *,
    seed: int = 1,
    manifest: Manifest | None = None,
    base_port: int = 7400,
    address_template: str = "127.0.0.1:{port}",
    p: float | None = None,
    m: int | None = None,
    degree: float | None = None,
    radius: float | None = None,
) -> Graph:
    """Draw a connected graph; a disconnected draw is drawn again with seed + 1, up to 1000 times.

    Args:
        kind: one of `KINDS`.
        peers: number of peers, with ids from 0.
        seed: of the drawing only; the run's seed is a key of the manifest.
        manifest: the run; default: every key at its default.
        base_port: peer i gets port base_port + i wherever the template says ``{port}``.
        address_template: ``{id}`` and ``{port}`` are filled in, for example ``peer-{id}:7400``.
        p: erdos-renyi: probability of each edge.
        m: barabasi-albert: edges that each new peer brings.
        degree: average degree wanted, instead of p, m or radius; the exact degree for ``regular``.
        radius: geometric: peers lie in the unit square and are neighbors when closer than this.

    Raises:
        GraphError: a parameter is out of range or not one of this kind, or no draw is connected.
    """
    import networkx as nx

    if kind not in KINDS:
        raise GraphError(f"kind: found {kind!r}; allowed: {', '.join(KINDS)}")
    if not 2 <= peers <= PEERS_MAX:
        raise GraphError(f"peers: found {peers}; allowed: from 2 to {PEERS_MAX}")
    shape = Shape(p, m, degree, radius)
    _check_shape(kind, peers, shape)
    nodes = tuple(Node(i, _address(address_template, i, base_port)) for i in range(peers))
    draws = DRAWS_MAX if kind in _ALLOWED else 1
    for offset in range(draws):
        drawn = _DRAW[kind](peers, shape, seed + offset)
        if nx.is_connected(drawn):
            edges = tuple(tuple(edge) for edge in nx.convert_node_labels_to_integers(drawn, ordering="sorted").edges)
            settings = ", ".join(f"{name}={getattr(shape, name):g}" for name in _given(shape))
            drawing = f"{settings}, seed {seed + offset}" if settings else ""
            return Graph(
                nodes, edges, manifest or Manifest(), ", ".join(filter(None, [kind, f"{peers} peers", drawing]))
            )
    raise GraphError(
        f"{kind} with {peers} peers: found no connected graph in {draws} draws from seed {seed}; "
        f"allowed: a larger {' or '.join(_ALLOWED[kind])}"
    )


def _given(shape: Shape) -> list[str]:
    return [name for name in ("p", "m", "degree", "radius") if getattr(shape, name) is not None]


def _check_shape(kind: Kind, peers: int, shape: Shape) -> None:
    allowed, given = _ALLOWED.get(kind, ()), _given(shape)
    if not allowed and given:
        raise GraphError(f"{kind}: found {' and '.join(given)}; allowed: none, {kind} has no such parameter")
    if allowed and (len(given) != 1 or given[0] not in allowed):
        raise GraphError(f"{kind}: found {' and '.join(given) or 'no parameter'}; allowed: one of {', '.join(allowed)}")
    limits: dict[str, tuple[float | None, float, float]] = {
        "p": (shape.p, 0, 1),
        "m": (shape.m, 1, peers - 1),
        "degree": (shape.degree, 1, peers - 1),
        "radius": (shape.radius, 0, math.sqrt(2)),
    }
    for name, (value, low, high) in limits.items():
        if value is not None and not low <= value <= high:
            raise GraphError(f"{name}: found {value:g}; allowed: from {low:g} to {high:g} with {peers} peers")
    if kind == "regular" and (not float(shape.degree or 0).is_integer() or peers * int(shape.degree or 0) % 2):
        raise GraphError(
            f"degree: found {shape.degree:g}; allowed: a whole number, even if the number of peers ({peers}) is odd"
        )


def _address(template: str, peer_id: int, base_port: int) -> str:
    return template.replace("{id}", str(peer_id)).replace("{port}", str(base_port + peer_id))


def _torus(peers: int, _shape: Shape, _seed: int) -> nx.Graph:
    """Return the grid closest to a square, with both directions closed to rings."""
    import networkx as nx

    rows = next(rows for rows in range(math.isqrt(peers), 0, -1) if peers % rows == 0)
    if rows == 1:
        raise GraphError(f"torus: found {peers} peers; allowed: a number that is rows times columns, both at least 2")
    return nx.grid_2d_graph(rows, peers // rows, periodic=True)


def _regular(peers: int, shape: Shape, seed: int) -> nx.Graph:
    import networkx as nx

    return nx.random_regular_graph(int(shape.degree or 0), peers, seed=seed)


def _erdos_renyi(peers: int, shape: Shape, seed: int) -> nx.Graph:
    """Return G(N, p); an average degree x stands for p = x / (N - 1)."""
    import networkx as nx

    probability = shape.p if shape.degree is None else shape.degree / (peers - 1)
    return nx.gnp_random_graph(peers, probability, seed=seed)


def _barabasi_albert(peers: int, shape: Shape, seed: int) -> nx.Graph:
    """Return a preferential-attachment graph; an average degree x stands for m = x / 2."""
    import networkx as nx

    m = shape.m if shape.degree is None else max(1, round(shape.degree / 2))
    return nx.barabasi_albert_graph(peers, m, seed=seed)


def _geometric(peers: int, shape: Shape, seed: int) -> nx.Graph:
    """Return a random geometric graph; a wanted average degree is met by bisection of the radius."""
    import networkx as nx
    from scipy.spatial import KDTree

    positions = generator(seed, "positions").random((peers, 2))
    low, high = 0.0, math.sqrt(2)
    if shape.radius is not None:
        high = shape.radius
    else:
        tree, wanted = KDTree(positions), peers * (1 + (shape.degree or 0))
        for _ in range(50):  # the square's diagonal halved 50 times is below any distance of two float64 points
            middle = (low + high) / 2
            low, high = (low, middle) if tree.count_neighbors(tree, middle) >= wanted else (middle, high)
    return nx.random_geometric_graph(peers, high, pos=dict(enumerate(positions.tolist())))


def _plain(name: str) -> Callable[[int, Shape, int], nx.Graph]:
    """Return a draw of a kind that needs only the number of peers."""

    def draw(peers: int, _shape: Shape, _seed: int) -> nx.Graph:
        import networkx as nx

        return nx.star_graph(peers - 1) if name == "star" else getattr(nx, f"{name}_graph")(peers)

    return draw


_DRAW: dict[Kind, Callable[[int, Shape, int], nx.Graph]] = {
    "ring": _plain("cycle"),
    "line": _plain("path"),
    "complete": _plain("complete"),
    "star": _plain("star"),
    "torus": _torus,
    "regular": _regular,
    "erdos-renyi": _erdos_renyi,
    "barabasi-albert": _barabasi_albert,
    "geometric": _geometric,
}
