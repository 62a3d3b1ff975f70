"""Read and write the graph file, the one file that all peers share.

The format is the node-link JSON of networkx. The key of the edges is ``edges``; the older ``links`` is read too:

    {"graph": {"run": {"clusters": 2}},
     "nodes": [{"id": 0, "address": "10.0.0.7:7400"}, {"id": 1, "address": "10.0.0.8:7400"}],
     "edges": [{"source": 0, "target": 1}]}

A node with ``"dials_only": true`` needs no address; with ``"network": "b"`` too, other nodes of that network dial its address.
``"relay": {"bytes_per_second": 1000000, "connections": 4}`` at a node agrees to carry edges between its neighbors; ``"via": 5``
at an edge sends it through peer 5. ``"continues"`` in ``graph`` names the files before this one, whose models stay,
``"from_round"`` the round with which running peers change to it, and ``"removed"`` the peers that have left for good.
``"upload_limit": 250000`` and ``"download_limit"`` at a node declare the bytes per second of its transfers.

Any bytes give a valid `Graph`, a GraphError or, for a fault inside ``run``, a ConfigError.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from coordinator_free_bootstrap.errors import GraphError
from coordinator_free_bootstrap.graph import Graph, Node, Observer, Relay, Removed, credentials_of, facts_of
from coordinator_free_bootstrap.ordinary_file import content_of, unreadable, unwritable
from coordinator_free_bootstrap.settings import parse_manifest
from coordinator_free_bootstrap.strict_json import loads
from coordinator_free_bootstrap.validation import joined, sentences

FILE_BYTES_MAX = 64 << 20  # about 100,000 peers of degree 10


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _RelayRow(_Strict):
    bytes_per_second: int
    connections: int


class _NodeRow(_Strict):
    id: int
    dials_only: bool = False
    address: str = Field("", validate_default=True)
    pins: list[str] = []
    certificates: list[str] = []
    relay: _RelayRow | None = None
    upload_limit: int | None = None
    download_limit: int | None = None
    network: str = ""

    @field_validator("address")
    @classmethod
    def _check_present(cls, address: str, info: ValidationInfo) -> str:
        if not address and not info.data.get("dials_only"):
            raise ValueError("expected host:port, got nothing. It is required except with dials_only true.")
        return address


class _ObserverRow(_Strict):
    name: str
    pins: list[str] = []
    certificates: list[str] = []


class _RemovedRow(_Strict):
    id: int
    pins: list[str] = []
    certificates: list[str] = []


class _EdgeRow(_Strict):
    source: int
    target: int
    via: int | None = None


class _Attributes(_Strict):
    name: str = ""
    run: dict[str, Any] = {}
    observers: list[_ObserverRow] = []
    continues: list[str] = []
    from_round: int = 0
    removed: list[_RemovedRow] = []
    owners: list[str] = []
    signature: str = ""


class _File(_Strict):
    directed: Literal[False] = False
    multigraph: Literal[False] = False
    graph: _Attributes = _Attributes()
    nodes: list[_NodeRow]
    edges: list[_EdgeRow]


def load_graph(path: str | Path) -> Graph:
    """Read a graph file.

    Raises:
        GraphError: the file cannot be read, is too large, or its graph is invalid.
        ConfigError: its manifest is invalid.
    """
    return parse_graph(graph_content(path), str(path))


def graph_content(path: str | Path) -> bytes:
    """Return the bytes of a graph file.

    Raises:
        GraphError: the file cannot be read or is too large.
    """
    try:
        return content_of(path, FILE_BYTES_MAX)
    except OSError as error:
        raise GraphError(unreadable(str(path), error, "Make a graph file with `peer graph make`.")) from error


def parse_graph(content: bytes | str, source: str = "graph") -> Graph:
    """Return the graph of a file's content; ``source`` names the file in messages.

    Raises:
        GraphError: the content is too large or not JSON, or its graph is invalid.
        ConfigError: its manifest is invalid.
    """
    if len(content) > FILE_BYTES_MAX:
        raise GraphError(f"{source}: expected at most {FILE_BYTES_MAX} bytes, got more")
    try:
        data = loads(content if isinstance(content, str) else content.decode())
    except UnicodeDecodeError as error:
        raise GraphError(f"{source}: expected UTF-8, got other bytes ({error.reason})") from error
    except ValueError as error:
        raise GraphError(f"{source}: {error}") from error
    if isinstance(data, dict) and "links" in data and "edges" not in data:
        data["edges"] = data.pop("links")  # networkx before 3.4 wrote this key
    try:
        file = _File.model_validate(data)
    except ValidationError as error:
        raise GraphError(joined(source, sentences(error, _File, data))) from error
    manifest = parse_manifest(file.graph.run, source)
    nodes = tuple(map(_node, file.nodes))
    observers = tuple(Observer(row.name, tuple(row.pins), tuple(row.certificates)) for row in file.graph.observers)
    edges = tuple((row.source, row.target) for row in file.edges)
    via = tuple((row.source, row.target, row.via) for row in file.edges if row.via is not None)
    removed = tuple(Removed(row.id, tuple(row.pins), tuple(row.certificates)) for row in file.graph.removed)
    revision = tuple(file.graph.continues), file.graph.from_round, removed
    ownership = tuple(file.graph.owners), file.graph.signature
    try:
        return Graph(nodes, edges, manifest, file.graph.name, observers, via, *revision, *ownership)
    except GraphError as error:
        raise GraphError(joined(source, str(error).splitlines())) from error


def _node(row: _NodeRow) -> Node:
    relay = Relay(row.relay.bytes_per_second, row.relay.connections) if row.relay else None
    credentials = tuple(row.pins), tuple(row.certificates)
    return Node(
        row.id, row.address, *credentials, row.dials_only, relay, row.upload_limit, row.download_limit, row.network
    )


def dump_graph(graph: Graph) -> str:
    """Return the text of a graph file: all manifest keys, then one node or edge per line."""
    data: dict[str, Any] = {"directed": False, "multigraph": False}
    data["graph"] = ({"name": graph.name} if graph.name else {}) | {"run": graph.manifest.model_dump()}
    if graph.observers:
        data["graph"]["observers"] = [{"name": each.name, **credentials_of(each)} for each in graph.observers]
    if graph.continues:
        data["graph"]["continues"] = list(graph.continues)
    if graph.from_round:
        data["graph"]["from_round"] = graph.from_round
    if graph.removed:
        data["graph"]["removed"] = [{"id": each.id, **credentials_of(each)} for each in graph.removed]
    if graph.owners:
        data["graph"]["owners"] = list(graph.owners)
    if graph.signature:
        data["graph"]["signature"] = graph.signature
    via = {(a, b): {"via": relay} for a, b, relay in graph.via}
    rows: dict[str, list[dict[str, Any]]] = {
        "nodes": [{**facts_of(node), "id": node.id} for node in graph.nodes],
        "edges": [{**via.get((a, b), {}), "source": a, "target": b} for a, b in graph.edges],
    }
    texts = {key: ",\n".join(f"    {json.dumps(row)}" for row in entries) for key, entries in rows.items()}
    head = json.dumps(data, indent=2).removesuffix("\n}")
    return head + "".join(f',\n  "{key}": [\n{text}\n  ]' for key, text in texts.items()) + "\n}\n"


def save_graph(graph: Graph, path: str | Path) -> None:
    """Write a graph file.

    Raises:
        GraphError: the file cannot be written.
    """
    try:
        Path(path).write_text(dump_graph(graph), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise GraphError(unwritable(str(path), path, error)) from error
