"""Graph files that change while the peers run: the operator makes the next one, and gives it to one machine after the other."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator_free_bootstrap.errors import GraphError
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.revision import next_graph, require_next, with_changes
from peer.core import events as ev
from peer.core.stages import Stage

if TYPE_CHECKING:
    from tests.simulation.world import Machine, World

KINDS = ("add", "remove", "rewire", "setting", "key")


class Revisions:
    """The chain of graph files of one run; `World.graph` is the last one."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._rng = world.random("revisions")

    def plan(self, times: int) -> None:
        """Schedule so many changes."""
        for _ in range(times):
            self.world.after(self._rng.uniform(0.3, 1.0) * self.world.options.safety_s, self.revise)

    def revise(self) -> None:
        """Make the next file, and give it to the machines, each at its own time."""
        world = self.world
        if world.healed_at is not None:
            return
        for kind in self._rng.sample(KINDS, len(KINDS)):
            if world.options.shared and kind in ("add", "remove"):  # the scaling is that of all sites
                continue
            with contextlib.suppress(GraphError):
                graph = self._changed(kind)
                break
        else:
            return
        world.fired[f"revision {kind}"] += 1
        world.adopt(graph)
        for machine in world.machines.values():
            told = (
                machine.peer_id in graph or self._rng.random() < 0.5
            )  # a former peer may hear it from its neighbors only
            if told:
                world.after(self._rng.choice((0.2, 3.0, 10.0)) * self._rng.random(), give, machine, graph)

    def _changed(self, kind: str) -> Graph:
        """Return the next file; raises GraphError where such a change is not possible."""
        before, rng, manifest = self.world.graph, self._rng, self.world.graph.manifest
        ahead = max((p.engine.round_index for p in self.world.processes()), default=0)
        from_round = min(rng.choice((0, 0, ahead + 1)), manifest.rounds - 1)
        absent = [(a, b) for a in before.ids for b in before.ids if a < b and (a, b) not in before.edges]
        now = with_changes(before, from_round=from_round)
        if kind == "add":
            new = max(self.world.machines) + 1
            edges = [(new, n) for n in rng.sample(before.ids, min(2, len(before.ids)))]
            now = with_changes(before, add=[(new, f"127.0.0.1:{10_000 + new}")], add_edges=edges, from_round=from_round)
        elif kind == "remove":
            if len(before.ids) < 4:
                raise GraphError("too few peers")
            gone = rng.choice(before.ids)
            around = before.neighbors(gone)
            bridges = [edge for edge in itertools.pairwise(around) if edge in absent]
            now = with_changes(before, remove=[gone], add_edges=bridges, from_round=from_round)
        elif kind == "rewire":
            gone = [rng.choice(before.edges)]
            now = with_changes(
                before, remove_edges=gone, add_edges=absent and [rng.choice(absent)], from_round=from_round
            )
        elif kind == "setting":
            run = manifest.model_copy(update={"learning_rate": manifest.learning_rate * rng.uniform(0.5, 0.9)})
            now = with_changes(before, manifest=run, from_round=from_round)
        else:
            peer_id = rng.choice(before.ids)
            pins = (f"sha256:{rng.getrandbits(256):064x}", *before.node(peer_id).pins)[:2]
            nodes = (replace(node, pins=pins) if node.id == peer_id else node for node in before.nodes)
            now = replace(now, nodes=tuple(nodes))
        return next_graph(before, now)


def give(machine: Machine, graph: Graph) -> None:
    """Copy a file to a machine, and send its peer SIGHUP."""
    try:
        require_next(machine.graph, graph)
    except GraphError:
        return  # a later one is there
    if len(graph.continues) < len(machine.graph.continues):
        return
    machine.graph = graph
    process = machine.process
    if process is None:
        machine.start()
    elif not process.paused and process.engine.stage is not Stage.STOPPED:
        machine.world.checker.mark(f"changes while {process.engine.stage}")
        machine.asked_from = graph.from_round
        process.host.post(ev.ChangeRequested(graph.from_round, removed=machine.peer_id not in graph))
