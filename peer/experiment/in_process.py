"""All peers of a graph in one process and one thread: the fault-free lockstep run without processes, sockets or an engine.

It drives the same algorithms, learners and model stores in the order that lockstep promises (by neighbor id), so that
its models equal those of a run of real processes bit for bit (tests/process/test_fedspd_processes.py). For experiments
on few cores, and as the single-process reference of the tests.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import ConfigError
from coordinator_free_bootstrap.schedule import is_active, neighbors_in_round
from peer.algorithms.base import Algorithm, Bench, FoldedArrival
from peer.algorithms.registry import algorithm_named
from peer.algorithms.work import perform
from peer.core.averaging import Vector
from peer.core.decisions import Offer
from peer.core.effects import Work
from peer.core.messages import Announce, ModelHeader
from peer.core.model_store import ModelStore
from peer.learning.learner import Learner
from peer.tasks.loading import load_task

History = list[dict[str, Any]]


@dataclass
class LocalPeer:
    """One simulated peer: what it computes with, and what it has recorded, one row a round."""

    peer_id: int
    algorithm: Algorithm
    bench: Bench
    history: History = field(default_factory=list)
    totals: Counter[str] = field(default_factory=Counter)
    result: dict[str, Any] = field(default_factory=dict)  # the metrics of the work "final"
    announced: Announce | None = None
    active: bool = True


@dataclass(frozen=True)
class _Sent:
    receiver: int
    header: ModelHeader
    model: Vector


class InProcess:
    """A run of every peer of a graph; `run` it, then read `peers`.

    Args:
        graph: with its manifest: pace lockstep, encoding float32, no clipping, no norm bound.
        data_root: folder of the built-in data sets.
        device: where the learners compute.

    Raises:
        ConfigError: the manifest asks for what only real peers do.
    """

    def __init__(self, graph: Graph, *, data_root: Path | None = None, device: str = "cpu") -> None:
        m = graph.manifest
        screening = m.screening.norm_bound or m.screening.clip or m.screening.trimmed_mean
        if m.pace != "lockstep" or m.encoding != "float32" or screening:
            raise ConfigError("a run in one process has pace 'lockstep', encoding 'float32' and no run.screening")
        self.graph, self.manifest = graph, m
        task = load_task(m, len(graph.nodes), data_root=data_root)
        self.peers: dict[int, LocalPeer] = {}
        for peer_id in graph.ids:
            learner = Learner(task, task.load_shard(peer_id), device=device, batch_size=m.batch_size)
            algorithm = algorithm_named(m.algorithm)(m, peer_id, graph)
            models, _ = algorithm.initial_models(learner)  # type: ignore[arg-type]
            store = ModelStore(models, batch=m.aggregation == "batch")
            bench = Bench(m, peer_id, graph, learner, store, {}, true_cluster=learner.shard.true_cluster)  # type: ignore[arg-type]
            bench.facts = algorithm.begin(bench)
            self.peers[peer_id] = LocalPeer(peer_id, algorithm, bench)

    def run(self, on_round: Callable[[int, InProcess], Any] = lambda round_index, run: None) -> dict[int, LocalPeer]:
        """Do all rounds and the end; ``on_round`` is called after each. Return the peers."""
        for round_index in range(self.manifest.rounds):
            self._round(round_index)
            on_round(round_index, self)
        for peer in self.peers.values():
            done = perform(Work("final", self.manifest.rounds), peer.algorithm, peer.bench, time.monotonic)
            peer.result = done.metrics
        return self.peers

    # ---- one round --------------------------------------------------------------------------------------------------

    def _round(self, t: int) -> None:
        m = self.manifest
        for i, peer in self.peers.items():
            peer.active = m.participation == 1 or is_active(m.seed, t, i, m.participation)
            self._do(peer, Work("assign", t, active=peer.active))
            said = peer.algorithm.selects(peer.bench.facts, t) if peer.active else None
            peer.announced = None if said is None else replace(said, sender=i, round_index=t)
            if peer.active:
                self._do(peer, Work("train", t))
        steps = next(iter(self.peers.values())).algorithm.steps(t)
        for step in range(steps):
            self._exchange(t, step)
            if step + 1 < steps:
                for peer in self.peers.values():
                    self._do(peer, self._closing("end_step", peer, t, step))
        evaluate = (t + 1) % m.evaluate_every == 0 or t + 1 == m.rounds
        for peer in self.peers.values():
            work = self._closing("close", peer, t, max(0, steps - 1))
            metrics = self._do(peer, replace(work, evaluate=evaluate))
            peer.history.append({"round_index": t, "active": peer.active, **metrics})

    def _do(self, peer: LocalPeer, work: Work) -> dict[str, Any]:
        return perform(work, peer.algorithm, peer.bench, time.monotonic).metrics

    def _around(self, peer: LocalPeer, t: int) -> list[int]:
        """Return the neighbors whose edge is up."""
        return list(neighbors_in_round(self.graph, t, peer.peer_id))

    def _heard(self, peer: LocalPeer, t: int) -> dict[int, Announce]:
        announced = {n: self.peers[n].announced for n in self._around(peer, t)}
        return {n: said for n, said in announced.items() if said is not None}

    def _closing(self, kind: Any, peer: LocalPeer, t: int, step: int) -> Work:
        present = tuple(self.graph.neighbors(peer.peer_id))
        announced = tuple(self._heard(peer, t).values()) if step == 0 else ()
        return Work(kind, t, step, peer.active, present, announced)

    # ---- one exchange -------------------------------------------------------------------------------------------------

    def _exchange(self, t: int, step: int) -> None:
        """Take all snapshots before anything is folded; then every receiver folds in the order of neighbor ids."""
        sent = [one for peer in self.peers.values() if peer.active for one in self._sends(peer, t, step)]
        for i, peer in self.peers.items():
            heard = self._heard(peer, t)
            facts = peer.bench.facts | peer.algorithm.agrees(peer.bench.facts, t, heard)
            for one in sent:  # senders ascend
                if one.receiver == i:
                    self._receive(peer, one, facts)

    def _sends(self, peer: LocalPeer, t: int, step: int) -> list[_Sent]:
        heard, found, offered = self._heard(peer, t), [], {}
        facts = peer.bench.facts | peer.algorithm.agrees(peer.bench.facts, t, heard)
        for n in self._around(peer, t):
            if peer.announced is not None and step == 0:
                peer.totals["announcements_sent"] += 1
            takes = getattr(peer.algorithm.options, "idle_folds", True) or self.peers[n].active
            offers = peer.algorithm.offers(facts, t, step, n, heard.get(n)) if takes else ()
            for index, offer in enumerate(offers):
                if offer.slot not in offered:
                    model = peer.algorithm.outgoing(peer.bench, offer.slot)
                    offered[offer.slot] = np.array(peer.bench.models.model(offer.slot) if model is None else model)
                header = self._header(peer, t, step, offer, index, len(offers))
                found.append(_Sent(n, header, offered[offer.slot]))
                peer.totals["models_sent"] += 1
                peer.totals["payload_bytes_sent"] += header.size_bytes
        return found

    def _header(self, peer: LocalPeer, t: int, step: int, offer: Offer, index: int, total: int) -> ModelHeader:
        return ModelHeader(
            sender=peer.peer_id,
            incarnation=1,
            round_index=t,
            step=step,
            slot=offer.slot,
            index=index,
            total=total,
            sample_count=offer.sample_count,
            degree=self.graph.degree(peer.peer_id),
            mass=offer.mass,
            scalars=offer.scalars,
            size_bytes=4 * peer.bench.models.size,
            encoding="float32",
        )

    def _receive(self, peer: LocalPeer, one: _Sent, facts: dict[str, Any]) -> None:
        rejection = peer.algorithm.rejects(facts, one.header, self.peers[one.header.sender].announced)
        if rejection is None and peer.algorithm.inspects_arrivals:
            rejection = peer.algorithm.screen_arrival(peer.bench, one.header, one.model)
        if rejection is not None:
            peer.totals["label_conflicts"] += rejection.code == "label_conflict"
            return
        targets = peer.algorithm.targets(facts, one.header)
        if targets is None:
            peer.totals["models_unused"] += 1
            return
        for target in targets:
            peer.bench.models.fold(target.slot, one.model, target.weight)
        peer.bench.arrivals.append(FoldedArrival(one.header, None if targets else one.model))
        peer.totals["models_folded"] += 1
