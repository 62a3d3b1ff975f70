"""CGPFL between neighbors: a personal model theta near a local one w, and w near one of K centers; only w travels.

Round: w starts at the center of the peer's label; local rounds as in pFedMe move theta and w; the label becomes the center
nearest to w. A peer sends w with its label. Over N[i], each center becomes (1 - alpha) center + alpha mean of the w that name it.
In round 0 each peer clusters the w of its closed neighborhood with k-means++, and the labels of the peer with the smallest id
spread over the graph, one edge per step: the steps carry sketches of centers and no models. With ``clusters = "auto"``
(CGPFL-Heur), peers first agree on K, by gossip of cost curves (`peer.zoo.algorithms.cluster_count`).

Source: Xueyang Tang, Song Guo and Jingcai Guo, "Personalized Federated Learning with Clustered Generalization", 2021, arXiv
2106.13044, Algorithm 1. The paper has a server (in `peer.lab`), which clusters all w. The form between neighbors is an
addition of this project. So are: rho, eta lambda as in pFedMe, in place of a beta of which no value is given; labels by the
nearest center after round 0; alignment; a peer that sits a round out, whose center takes the part of w.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np
from typing_extensions import override

from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.seeds import derive_seed, generator
from peer.algorithms import clustering, labels, sketches
from peer.algorithms.learner import Ability, Fields, Learner, training_fields
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector, fold
from peer.zoo.algorithms import cluster_count
from peer.zoo.algorithms.cgpfl_decisions import CgpflDecisions, CgpflState, anchor_in, count_in, sketches_in
from peer.zoo.algorithms.local_rounds import local_rounds

Points: TypeAlias = list[tuple[int, Vector, int]]  # peer, what travels of its w, its samples


class Cgpfl(CgpflDecisions):
    """CGPFL: theta near w near one of K centers; theta and the center are evaluated."""

    name = "cgpfl"
    why_not_private = "its steps are on batches that it draws by the run's seed, which all peers know"

    # ---- the start --------------------------------------------------------------------------------------------------

    @classmethod
    @override
    def needs(cls, manifest: Manifest) -> frozenset[Ability]:
        """Return the losses of samples, which choose a center."""
        return frozenset({"losses"})

    @override
    def initial_models(self, learner: Learner) -> tuple[list[Vector], bool]:
        """Return copies of one model, equal on all peers."""
        first = learner.initial_model(derive_seed(self.manifest.seed, "initial", 0))
        return [first.copy() for _ in range(self.held)], self.manifest.start_from != "own"

    @override
    def begin(self, workspace: Workspace[CgpflState]) -> CgpflState:
        """Return the state before the first training: no label yet, unless there is one center alone."""
        count = None if self.auto else self.clusters
        return replace(super().begin(workspace), label=self.first_label, clusters=count)

    # ---- training ---------------------------------------------------------------------------------------------------

    @override
    def assign(self, workspace: Workspace[CgpflState]) -> CgpflState:
        """Train w; a peer without a label takes the center of lowest training loss."""
        state = replace(self._new_round(workspace), trained=(self.own,))
        if state.label is not None or workspace.round_index == 0:
            return state
        losses = [workspace.learner.mean_loss(workspace.models.model(k)) for k in range(self.count(state))]
        return replace(state, label=int(np.argmin(losses)))

    @override
    def sit_out(self, workspace: Workspace[CgpflState]) -> CgpflState:
        """Train nothing; w takes part in the own centers as the round starts it: equal to the center of the label."""
        models, state = workspace.models, replace(self._new_round(workspace), trained=())
        if state.label is not None:
            models.replace(self.own, models.model(state.label).copy())
        return state

    def _new_round(self, workspace: Workspace[CgpflState]) -> CgpflState:
        t = workspace.round_index
        return replace(workspace.state, costs=(), sketches=None, round_index=t, averaging=t > 0)

    @override
    def train(self, workspace: Workspace[CgpflState]) -> Fields:
        """Do R local rounds on theta and w, from the center of the label; then take the label of the nearest center."""
        models, state = workspace.models, workspace.state
        start = models.model(self.own if state.label is None else state.label)
        theta = models.model(self.personal) if state.has_trained else start
        w, theta, done = local_rounds(self.options, workspace, start, theta)
        models.replace(self.own, w)
        models.replace(self.personal, theta)
        label = self._nearest(workspace, self.count(state)) if workspace.round_index > 0 else state.label
        workspace.state = replace(state, has_trained=True, label=label)
        return training_fields(done)

    def _nearest(self, workspace: Workspace[CgpflState], count: int) -> int:
        models, part = workspace.models, workspace.models.part
        return clustering.nearest(part.of(models.model(self.own)), [part.of(models.model(k)) for k in range(count)])

    # ---- the exchange -----------------------------------------------------------------------------------------------

    @override
    def end_step(self, workspace: Workspace[CgpflState]) -> CgpflState:
        """Average or cluster models, mix cost curves, or align labels: what the step has exchanged."""
        t, step = workspace.round_index, workspace.step
        kind = self.kind(t, step)
        if kind == "models":
            self._average(workspace)
        else:
            self.merge(workspace)  # of a step without models: nothing
        state = workspace.state
        if kind == "costs" and state.costs:
            reported = [
                (tuple(numbers), self.metropolis(n)) for n, numbers in sorted(workspace.neighbor_numbers.items())
            ]
            state = replace(state, costs=tuple(cluster_count.mixed(state.costs, reported)))
        elif kind == "align":
            state = self._align(workspace)
        if self.chooses(t, step):
            workspace.state = state
            state = self._cluster(workspace)
        if self.aligns_next(t, step) and state.anchor is not None and state.sketches is None:
            state = replace(state, sketches=self._sketches(workspace, self.count(state)))
        workspace.state = state
        return state

    @override
    def close(self, workspace: Workspace[CgpflState]) -> CgpflState:
        """End the last step."""
        state = replace(self.end_step(workspace), costs=(), sketches=None)
        workspace.scratch.pop("points", None)
        return state if state.label is None else replace(state, cluster_index=state.label)

    def _average(self, workspace: Workspace[CgpflState]) -> None:
        """Move each center towards the mean of the models that name it; in round 0, keep the models to cluster them."""
        models, t = workspace.models, workspace.round_index
        before = [models.share(k) if self.options.alpha < 1 else models.model(k) for k in range(self.clusters)]
        self.merge(workspace)
        kept = sorted(
            ((a.header, a.model) for a in workspace.arrivals if a.model is not None), key=lambda row: row[0].sender
        )
        if t == 0:
            self._keep_points(workspace, [(header.sender, model, header.sample_count) for header, model in kept])
        elif kept:  # this peer has learned K by now
            count = int(kept[0][0].numbers[1])
            workspace.state = replace(workspace.state, clusters=count, label=self._nearest(workspace, count))
            for header, model in kept:
                if header.numbers[1] == count:
                    models.fold(int(header.numbers[0]), model, self.mixing_weight(header.sender))
            super().merge(workspace)
        self._keep_share(workspace, before)
        workspace.state = replace(workspace.state, averaging=False)

    def _keep_share(self, workspace: Workspace[CgpflState], before: list[Vector]) -> None:
        """With alpha < 1, keep a share of the centers as they were before."""
        alpha = self.options.alpha
        for k, old in enumerate(before) if alpha < 1 else ():
            if workspace.models.model(k) is not old:
                part = workspace.models.part
                mixed = part.of(old).copy()
                fold(mixed, 1.0 - alpha, part.of(workspace.models.model(k)), alpha)
                workspace.models.replace_part(k, mixed)

    def _keep_points(self, workspace: Workspace[CgpflState], points: Points) -> None:
        """Keep the models of round 0, the own one among them; with ``auto``, find what each number of clusters costs."""
        if workspace.state.trained:
            models = workspace.models
            own = (self.peer_id, models.share_part(self.own), workspace.learner.count())
            points = sorted([*points, own], key=lambda point: point[0])
        workspace.scratch["points"] = points
        if not self.auto:
            return
        ratios: list[float] = []
        if points:
            weights = np.array([float(samples) for *_, samples in points])
            found = self._coordinates(workspace, points)
            most = max(1, min(self.count_max, len(points) // 2))
            ratios = cluster_count.relative_costs(found, most, self._draw("costs"), weights)
        workspace.state = replace(workspace.state, costs=tuple(cluster_count.curve_of(ratios, self.count_max)))

    def _coordinates(self, workspace: Workspace[CgpflState], points: Points) -> clustering.Points:
        first = workspace.models.part.of(self._first(workspace))
        return clustering.coordinates([model for _, model, _ in points], first)

    def _draw(self, purpose: str) -> np.random.Generator:
        """Return the random numbers of a clustering: equal on peers whose neighborhoods have the same smallest id."""
        smallest = min([self.peer_id, *self.graph.neighbors(self.peer_id)])
        return generator(self.manifest.seed, purpose, smallest)

    def _first(self, workspace: Workspace[CgpflState]) -> Vector:
        """Return the common first model."""
        if "first" not in workspace.scratch:
            workspace.scratch["first"] = self.initial_models(workspace.learner)[0][0]
        first: Vector = workspace.scratch["first"]
        return first

    # ---- clustering and alignment -------------------------------------------------------------------------------------

    def _cluster(self, workspace: Workspace[CgpflState], count: int | None = None) -> CgpflState:
        """Cluster the models of round 0 into K parts; a part without models keeps the first model as its center."""
        state, models, points = workspace.state, workspace.models, workspace.scratch["points"]
        if count is None and state.costs:
            count = cluster_count.best_count(state.costs, self.count_max, self.options.mu_scale)
        elif count is None:
            count = self.count(state)
        state = replace(state, clusters=count)
        if not points:
            return state
        found = self._coordinates(workspace, points)
        parts = clustering.k_means(found, count, self._draw("k-means"))
        before = [self._first(workspace).copy() for _ in range(self.clusters)]
        for k in range(self.clusters):
            models.replace(k, before[k])
            models.share(k)
        for (peer, model, _), part in zip(points, parts.tolist(), strict=True):
            if peer == self.peer_id:
                state = replace(state, label=part)
            else:
                models.fold(part, model, self.mixing_weight(peer))
        workspace.state = replace(state, averaging=True)
        super().merge(workspace)
        self._keep_share(workspace, before)
        return replace(state, anchor=labels.Anchor(self.peer_id, 0))

    def _sketches(self, workspace: Workspace[CgpflState], count: int) -> sketches.Sketches:
        models, part = workspace.models, workspace.models.part
        centers = [part.of(models.model(k)) for k in range(count)]
        size, seed = self.options.sketch_size, self.manifest.seed
        return sketches.sketch(centers, part.of(self._first(workspace)), size, seed)

    def _align(self, workspace: Workspace[CgpflState]) -> CgpflState:
        """Take over the labels, and K, of the neighbor with the smallest anchor: permute the own centers to match its."""
        state, reported = workspace.state, workspace.neighbor_numbers
        own = state.anchor or labels.Anchor(self.graph.ids[-1] + 1, 0)
        known = {n: anchor_in(numbers) for n, numbers in reported.items()}
        parent = labels.choose_parent(own, known, len(self.graph.nodes) - 1)
        if parent is None:
            return state
        count, anchor = count_in(reported[parent]), known[parent]
        if count != state.clusters:
            state = self._change_count(workspace, count)
        mine = self._sketches(workspace, count) if state.sketches is None else state.sketches
        order = labels.nearest_matching(mine, sketches_in(reported[parent]))
        state = replace(state, anchor=labels.Anchor(anchor.peer_id, anchor.hops + 1), sketches=mine[order])
        if order != list(range(count)):
            for k, center in enumerate([workspace.models.model(old) for old in order]):
                workspace.models.replace(k, center.copy())  # a snapshot may still share the array
            state = replace(state, label=None if state.label is None else order.index(state.label))
        return state

    def _change_count(self, workspace: Workspace[CgpflState], count: int) -> CgpflState:
        """Adopt a neighbor's K: in round 0 by clustering again, later with the nearest of the centers that remain."""
        if workspace.scratch.get("points"):
            state = self._cluster(workspace, count)
        else:
            state = replace(workspace.state, clusters=count)
            if state.has_trained:
                state = replace(state, label=self._nearest(workspace, count))
        return replace(state, sketches=None)

    # ---- catching up, and the result --------------------------------------------------------------------------------

    @override
    def adopt(self, workspace: Workspace[CgpflState]) -> CgpflState:
        """Average the pulled centers, and choose the label anew; w and theta stay."""
        self.average_pulled(workspace, range(self.clusters))
        return replace(workspace.state, anchor=None, label=self.first_label)

    @override
    def evaluation_model(self, workspace: Workspace[CgpflState]) -> Vector:
        """Return theta."""
        return workspace.models.model(self.personal)

    @override
    def evaluate(self, workspace: Workspace[CgpflState]) -> Fields:
        """Return the metrics of theta, the metric value of the peer's center, and K."""
        state = workspace.state
        center = workspace.models.model(state.label or 0)
        known: Fields = {} if state.clusters is None else {"clusters": state.clusters}
        known |= {} if state.anchor is None else {"anchor": list(state.anchor)}
        shared = workspace.learner.evaluate(center).metric
        return super().evaluate(workspace) | {"metric_shared": shared, "state": known}
