"""Revisions: the next graph file of a federation names those before it, so that trained models stay.

A change is a new file. Peers, edges and most settings may change; what would make models incomparable starts a new run. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace

from coordinator_free_bootstrap.errors import ConfigProblem, GraphError, Option, UsageError
from coordinator_free_bootstrap.graph import REMOVED_MAX, REVISIONS_MAX, Graph, Node, Removed
from coordinator_free_bootstrap.handshake import INCOMPARABLE, disagreements
from coordinator_free_bootstrap.manifest import Manifest, canonical_json
from coordinator_free_bootstrap.settings import diff
from coordinator_free_bootstrap.validation import counted

TAKEN = "by SIGHUP, peer run --watch-graph, or a restart"  # how a peer takes a file
DEALT = ("split", "split_options")  # of built-in data sets, which also deal by the number of peers


def incomparable(before: Manifest, now: Manifest) -> list[str]:
    """Return the keys of ``run`` that differ and make models incomparable."""
    keys = {each.key.split(".")[1] for each in diff(canonical_json(now), canonical_json(before))}
    return sorted(f"run.{key}" for key in keys & {*INCOMPARABLE, *DEALT})


def next_graph(before: Graph, now: Graph, *, restart_training: bool = False) -> Graph:
    """Return a changed graph as the revision after another one.

    Args:
        before: the present graph.
        now: the same with changes.
        restart_training: begin a new run instead: no peer continues with its models.

    Raises:
        UsageError: nothing differs, or the models of both are incomparable.
    """
    if before == now:
        raise UsageError(ConfigProblem("peer graph next", "a change", "none", "Name what changes; --help lists it."))
    if restart_training:
        return replace(now, continues=())
    if keys := incomparable(before.manifest, now.manifest):
        fix = f"Or give {Option('restart_training')}: all peers then start at round 0 with --discard-state."
        raise UsageError(ConfigProblem(", ".join(keys), "the present value, since trained models stay", "another", fix))
    if before.run_digest == now.run_digest:  # addresses, keys, limits, observers: checkpoints do not name them
        return replace(now, continues=before.continues)
    return replace(now, continues=(before.run_digest, *before.continues)[:REVISIONS_MAX])


def require_next(before: Graph, now: Graph) -> None:
    """Check that a running peer may change from one graph file to another: to a later one of the same federation.

    Raises:
        GraphError: the file is an earlier one, or of another federation or run.
    """
    if now.run_digest == before.run_digest or before.run_digest in now.continues:
        return
    earlier = now.run_digest in before.continues
    raise GraphError(
        ConfigProblem(
            "graph file",
            f"one that continues the present one, {before.run_digest}",
            f"{now.run_digest}, {'an earlier one' if earlier else 'which does not name it'}",
            "Make it with peer graph next from the present file.",
        )
    )


def with_changes(
    graph: Graph,
    *,
    add: Iterable[tuple[int, str]] = (),
    remove: Iterable[int] = (),
    add_edges: Iterable[tuple[int, int]] = (),
    remove_edges: Iterable[tuple[int, int]] = (),
    move: Iterable[tuple[int, str]] = (),
    manifest: Manifest | None = None,
    from_round: int = 0,
) -> Graph:
    """Return a graph with other peers, edges, addresses or settings.

    A former peer stays in the file with its credentials, so that its neighbors can tell it; a new peer may take its id.

    Args:
        graph: not changed.
        add: id and address of new peers.
        remove: ids of peers, which go with their edges.
        add_edges: pairs of ids.
        remove_edges: pairs of ids.
        move: id and new address of peers.
        manifest: other settings.
        from_round: the round with which running peers change to it.

    Raises:
        GraphError: a peer or edge is there already, or missing; or the graph is not valid afterwards.
    """
    nodes = {node.id: node for node in graph.nodes}
    removed = {each.id: each for each in graph.removed}
    edges = set(graph.edges)
    for peer_id, address in add:
        if peer_id in nodes:
            raise GraphError(ConfigProblem(Option("add_peer"), "the id of a new peer", str(peer_id)))
        nodes[peer_id] = Node(peer_id, address)
        removed.pop(peer_id, None)
    for peer_id, address in move:
        node = nodes[_known(nodes, peer_id, "move")]
        nodes[peer_id] = replace(node, address=address)
    for peer_id in remove:
        node = nodes.pop(_known(nodes, peer_id, "remove_peer"))
        removed[peer_id] = Removed(peer_id, node.pins, node.certificates)
        edges = {edge for edge in edges if peer_id not in edge}
    for edge in map(_sorted, remove_edges):
        if edge not in edges:
            raise GraphError(ConfigProblem(Option("remove_edge"), "an edge of the graph", "{}-{}".format(*edge)))
        edges.remove(edge)
    edges |= set(map(_sorted, add_edges))
    via = tuple(each for each in graph.via if each[:2] in edges and each[2] in nodes)
    return replace(
        graph,
        nodes=tuple(nodes.values()),
        edges=tuple(edges),
        via=via,
        manifest=manifest or graph.manifest,
        from_round=from_round,
        removed=tuple(removed.values())[-REMOVED_MAX:],
        signature="",
    )


def changes(before: Graph, now: Graph) -> Iterator[str]:
    """Yield what differs between two graph files, as sentences, and at the end who must do what."""
    keys = diff(canonical_json(now.manifest), canonical_json(before.manifest))
    yield from (f"{each.key} was {each.theirs}, is now {each.ours}" for each in keys)
    gone, new = sorted(set(before.ids) - set(now.ids)), sorted(set(now.ids) - set(before.ids))
    yield from (f"peer {each} leaves" for each in gone)
    yield from (
        f"peer {each} joins at {now.node(each).address}, neighbor of {_list(now.neighbors(each))}" for each in new
    )
    stayed = set(before.ids) & set(now.ids)
    both = [set(graph.edges) for graph in (before, now)]
    yield from (f"edge {a}-{b} goes" for a, b in sorted(both[0] - both[1]) if {a, b} <= stayed)
    yield from (f"edge {a}-{b} comes" for a, b in sorted(both[1] - both[0]) if {a, b} <= stayed)
    moved = set()
    for peer_id in sorted(stayed):
        old, other = before.node(peer_id), now.node(peer_id)
        for each in fields(Node):
            if getattr(old, each.name) != getattr(other, each.name):
                moved.add(peer_id)
                yield f"peer {peer_id}: {_changed(each.name, old, other)}"
    if before.observers != now.observers:
        yield "observers differ"
    if before.owners != now.owners:
        yield "owners differ: who may sign the next file"
    yield from _to_do(before, now, moved)


def _to_do(before: Graph, now: Graph, moved: set[int]) -> Iterator[str]:
    """Yield who must restart, and what becomes of the models."""
    if before.run_digest == now.run_digest:
        who = {neighbor for peer_id in moved for neighbor in (peer_id, *now.neighbors(peer_id))}
        if who:
            yield f"the run continues as it is; {_list(sorted(who))} take the new file when they can: {TAKEN}"
        return
    if before.run_digest in now.continues:
        yield f"all peers take the new file: {TAKEN}; their models and rounds stay, a new peer takes those of its neighbors"
        if keys := disagreements(canonical_json(before.manifest), canonical_json(now.manifest)):
            yield f"until both ends of an edge have it, they exchange nothing, since {', '.join(keys)} must be equal at both"
        elif now.from_round:
            yield f"a running peer that has it before changes with round {now.from_round}"
        return
    keys = incomparable(before.manifest, now.manifest)
    why = (
        f"{', '.join(keys)} would make them incomparable"
        if keys
        else "the second file does not name the first (peer graph next)"
    )
    yield f"another run: models do not stay, since {why}; all peers start with --discard-state"


def _changed(name: str, before: Node, now: Node) -> str:
    if name in ("pins", "certificates"):
        old, new = set(getattr(before, name)), set(getattr(now, name))
        return f"{counted(len(new - old), f'new {name[:-1]}')}, {len(old - new)} removed"
    return f"{name} was {getattr(before, name)}, is now {getattr(now, name)}"


def _known(nodes: dict[int, Node], peer_id: int, option: str) -> int:
    if peer_id not in nodes:
        raise GraphError(ConfigProblem(Option(option), f"one of {json.dumps(sorted(nodes))}", str(peer_id)))
    return peer_id


def _sorted(edge: tuple[int, int]) -> tuple[int, int]:
    return min(edge), max(edge)


def _list(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids))
