"""Generators of connected graphs by kind, with networkx; equal seeds give equal graphs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Unpack, get_args

from pydantic import Field

from coordinator_free_bootstrap.base_k import base_k_edges
from coordinator_free_bootstrap.errors import ConfigProblem, GraphError, Option, UsageError
from coordinator_free_bootstrap.graph import Graph, Node, split_address
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.mixing import spectral_gap
from coordinator_free_bootstrap.options import Shown, model_of, parsed
from coordinator_free_bootstrap.seeds import generator
from coordinator_free_bootstrap.templates import fill_template
from coordinator_free_bootstrap.validation import counted

if TYPE_CHECKING:
    import networkx as nx
    import numpy as np

Kind = Literal[
    "ring",
    "line",
    "torus",
    "complete",
    "hypercube",
    "base-k",
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
KIND: Kind = "erdos-renyi"
PEERS = 8
BASE_PORT = 7400  # of peer 0


@dataclass(frozen=True, slots=True)
class Shape:
    """Parameters of a kind; None where it has none. ``degree`` is the average degree to reach."""

    k: int | None = None
    p: float | None = None
    m: int | None = None
    degree: float | None = None
    radius: float | None = None


_ALLOWED: dict[Kind, tuple[str, ...]] = {
    "base-k": ("k",),
    "regular": ("degree",),
    "expander": ("degree",),
    "small-world": ("degree",),
    "erdos-renyi": ("p", "degree"),
    "barabasi-albert": ("m", "degree"),
    "geometric": ("radius", "degree"),
}
KIND_KEYS: dict[str, type[int] | type[float]] = {
    "seed": int,
    "k": int,
    "p": float,
    "m": int,
    "degree": float,
    "radius": float,
}
_PARAMETERS = ("k", "p", "m", "degree", "radius")
REWIRED = 0.1  # share of the edges of a small world that are rewired by default
DEGREE = 4  # without a parameter: few messages, and a small set of peers is still connected


class DrawOptions(TypedDict, total=False):
    """How a graph is drawn: keyword arguments of `peer.Graph.make` and `make_graph`, beside kind and number of peers."""

    seed: Annotated[int, Field(1, description="Seed of the graph; run.seed is that of the run.")]
    k: Annotated[int | None, Field(None, description="base-k: partners of a peer in one of its rounds. Default: 1.")]
    p: Annotated[
        float | None,
        Field(None, description="erdos-renyi: probability of an edge; small-world: share of edges rewired."),
    ]
    m: Annotated[int | None, Field(None, description="barabasi-albert: edges per new peer.")]
    degree: Annotated[
        float | None,
        Field(None, description="Average degree, in place of p, m or radius; of a regular graph the exact one."),
    ]
    radius: Annotated[
        float | None, Field(None, description="geometric: distance of neighbors at most, in the unit square.")
    ]
    base_port: Annotated[
        int | None, Field(None, ge=1, le=65535, description=f"Peer i listens on this port + i. Default: {BASE_PORT}.")
    ]
    address_template: Annotated[
        str,
        Field(
            "127.0.0.1:{port}",
            description="Address of peer i, such as peer-{id}:7400 or node:{id+30400}. {id}: 0, 1, ...; {id+N}, {id-N}: from any "
            "whole number on; {port}: --base-port + i.",
        ),
    ]


class GraphOptions(DrawOptions, total=False):
    """All options of `peer graph make` and `make_graph`; the command has those of a kind in ``--kind``."""

    kind: Annotated[
        str,
        Field(
            KIND,
            description=f"Kind of graph: {', '.join(KINDS)}. Keys: seed (1); degree, the average degree (4, or more if needed "
            "for a connected graph). base-k:k=1, partners in one of its rounds (arXiv 2305.11420). In place of degree: "
            "erdos-renyi:p=0.5, probability of an edge; barabasi-albert:m=2, edges per new peer; geometric:radius=0.3, in the "
            "unit square. small-world:p=0.1, share of edges rewired. --set run.seed=N is the seed of the run.",
        ),
        Shown(metavar="KIND[:KEY=VALUE,...]"),
    ]
    peers: Annotated[int, Field(PEERS, ge=2, le=PEERS_MAX, description="Number of peers, 2 or more; ids start at 0.")]


def make_graph(
    kind: Kind = KIND, peers: int = PEERS, *, manifest: Manifest | None = None, **options: Unpack[DrawOptions]
) -> Graph:
    """Draw a connected graph; a disconnected draw is repeated with seed + 1, up to `DRAWS_MAX` times.

    An expander is the regular graph of the largest spectral gap among `EXPANDER_DRAWS` draws.

    Without p, m, degree or radius a kind that has one of them gets `default_degree`; base-k gets k = 1.

    Args:
        kind: one of `KINDS`.
        peers: number of peers, with ids from 0.
        manifest: settings of the run; default: every key at its default.
        options: see `DrawOptions`. The degree is the average to reach; ``regular`` and ``expander``: the exact degree;
            small-world: the even degree of the ring whose edges are rewired.

    Raises:
        GraphError: a parameter is out of range or unknown to this kind, or no draw is connected.
        UsageError: base_port has no effect, since the template does not use it.
    """
    chosen = parsed(
        model_of(GraphOptions), {"kind": kind, "peers": peers, **options}, error=GraphError, owner="Graph.make"
    )
    given: GraphOptions = {name: getattr(chosen, name) for name in type(chosen).model_fields}  # type: ignore[assignment]
    return _made(kind, peers, manifest or Manifest(), given)


def _made(kind: Kind, peers: int, manifest: Manifest, options: GraphOptions) -> Graph:
    base_port, address_template, seed = options["base_port"], options["address_template"], options["seed"]
    k, p, m, degree, radius = options["k"], options["p"], options["m"], options["degree"], options["radius"]
    if base_port is not None and "{port" not in address_template:
        why = f"{Option('address_template')} has no {{port}}"
        raise UsageError(ConfigProblem.without_effect(Option("base_port"), base_port, why))
    if kind not in KINDS:
        raise GraphError(ConfigProblem(Option("kind"), f"one of {', '.join(KINDS)}", repr(kind)))
    if kind == "base-k":
        k = 1 if k is None else k
    elif kind in _ALLOWED and (p is None or kind == "small-world") and m is None and radius is None and degree is None:
        degree = default_degree(kind, peers)
    shape = Shape(k, p, m, degree, radius)
    _check_shape(kind, peers, shape)
    first_port = BASE_PORT if base_port is None else base_port
    _check_addresses(address_template, base_port, peers)
    nodes = tuple(
        Node(i, fill_template(address_template, Option("address_template"), id=i, port=first_port + i))
        for i in range(peers)
    )
    draws = DRAWS_MAX if kind in _ALLOWED else 1
    wanted = EXPANDER_DRAWS if kind == "expander" else 1
    first = seed * wanted  # so that two seeds of an expander share no draw
    candidates = [
        Graph(nodes, edges, manifest, _drawing(kind, peers, shape, draw_seed))
        for draw_seed, edges in islice(_connected(kind, peers, shape, range(first, first + draws)), wanted)
    ]
    if len(candidates) < wanted:
        name = next(name for name in _ALLOWED[kind] if getattr(shape, name) is not None)
        raise GraphError(
            ConfigProblem(
                Option(name),
                f"a larger value, as a connected graph of kind {kind} with {peers} peers needs",
                f"{getattr(shape, name):g}",
                f"{counted(draws, 'draw')} from seed {seed} gave none.",
            )
        )
    return max(candidates, key=spectral_gap) if kind == "expander" else candidates[0]


def _check_addresses(template: str, base_port: int | None, peers: int) -> None:
    """Refuse a template whose addresses are not ``host:port`` with a port of up to 65535, or are not one for each peer.

    Raises:
        GraphError: the first or last address is wrong, or both are the same.
    """
    first_port, addresses = BASE_PORT if base_port is None else base_port, list[str]()
    for peer_id in (0, peers - 1):
        addresses.append(fill_template(template, Option("address_template"), id=peer_id, port=first_port + peer_id))
        try:
            split_address(addresses[-1])
        except ValueError as error:
            where = f"{addresses[-1]!r} for peer {peer_id}"
            key, got = ("address_template", repr(template)) if base_port is None else ("base_port", str(base_port))
            raise GraphError(ConfigProblem(Option(key), str(error), f"{got}, which gives {where}")) from None
    if addresses[0] == addresses[1]:
        raise GraphError(ConfigProblem(Option("address_template"), "{id} or {port} in it", repr(template)))


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
            keys = f"KIND:KEY=VALUE,... with keys {', '.join(KIND_KEYS)}, each once"
            raise GraphError(ConfigProblem(Option("kind"), keys, repr(text)))
        try:
            arguments[key] = number(value)
        except ValueError:
            what = "an integer" if number is int else "a number"
            raise GraphError(ConfigProblem(Option(key), what, repr(value))) from None
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
    settings = [f"{name}={getattr(shape, name):g}" for name in _given(shape)]
    return ", ".join([kind, f"{peers} peers", *settings, *[f"seed {seed}"] * bool(settings and kind != "base-k")])


def _given(shape: Shape) -> list[str]:
    return [name for name in _PARAMETERS if getattr(shape, name) is not None]


def _check_shape(kind: Kind, peers: int, shape: Shape) -> None:
    allowed, given = _ALLOWED.get(kind, ()), _given(shape)
    for name in given:
        if name not in allowed and not (name == "p" and kind == "small-world"):
            raise GraphError(ConfigProblem.without_effect(Option(name), getattr(shape, name), f"the kind is {kind}"))
    if len(several := [name for name in given if not (name == "p" and kind == "small-world")]) > 1:
        raise GraphError(ConfigProblem(Option(several[0]), f"{' or '.join(several)}, not both", " and ".join(several)))
    limits: dict[str, tuple[float | None, float, float]] = {
        "k": (shape.k, 1, peers - 1),
        "p": (shape.p, 0, 1),
        "m": (shape.m, 1, peers - 1),
        "degree": (shape.degree, 1, peers - 1),
        "radius": (shape.radius, 0, math.sqrt(2)),
    }
    for name, (value, low, high) in limits.items():
        if value is not None and not low <= value <= high:
            expected = f"a number from {low:g} to {high:g} with {peers} peers"
            raise GraphError(ConfigProblem(Option(name), expected, f"{value:g}"))
    degree = shape.degree or 0
    if kind in ("regular", "expander") and (not float(degree).is_integer() or peers * int(degree) % 2):
        raise GraphError(ConfigProblem(Option("degree"), f"an integer, even with {peers} peers", f"{degree:g}"))
    if kind == "small-world" and degree % 2:
        raise GraphError(ConfigProblem(Option("degree"), "an even integer", f"{degree:g}"))


def _draw(kind: Kind, peers: int, shape: Shape, seed: int) -> nx.Graph:  # noqa: PLR0912 - one case per kind
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
        case "hypercube":
            if peers & (peers - 1):
                fix = "Kind base-k takes any number."
                raise GraphError(ConfigProblem(Option("peers"), "a power of two for a hypercube", str(peers), fix))
            return nx.hypercube_graph(peers.bit_length() - 1)
        case "base-k":
            return nx.Graph(base_k_edges(peers, shape.k or 1))
        case "star":
            return nx.star_graph(peers - 1)
        case "torus":  # the grid closest to a square, periodic in both directions
            rows = next(rows for rows in range(math.isqrt(peers), 0, -1) if peers % rows == 0)
            if rows == 1:
                raise GraphError(
                    ConfigProblem(Option("peers"), "rows times columns of a torus, both at least 2", str(peers))
                )
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
