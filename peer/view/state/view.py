"""The state of a run as JSON, for the page, `peer watch --terminal` and scripts. docs/state.md describes the keys.

A first message has everything; later ones have what changed since a cursor. Text of peers is cut and its control characters are
escaped; what shows it must not read it as markup.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.routes import kind_of
from coordinator_free_bootstrap.strict_json import finite, printable
from peer.core.metric import Metric
from peer.store.records import STATES
from peer.view.state.agreement import agreement
from peer.view.state.layout import positions
from peer.view.state.model_tests import results
from peer.view.state.more_metrics import latest_values, more_metrics_of
from peer.view.state.peer_state import PeerState, run_state, states, totals_of
from peer.view.state.reducer import EventLog, RunState
from peer.view.state.rows import JSON, AtRound, EdgeRow, Everything, GraphPicture, Header, PeerRow, Since, StateMessage
from peer.view.state.timeline import TimelineEntry, timeline
from peer.view.state.waits import alone, waits

TIMELINE_MAX = 500  # newest entries
LINKS = ("dead", "left", "suspect", "unknown", "alive")  # states of a neighbor, the worst first
ROUTES = ("relay", "tunnel", "proxy", "direct")  # how the ends of an edge reach each other, the least direct first


class View:
    """What a run looks like at any cursor.

    Args:
        log: its events.
        graph: None if there is no graph file.
    """

    def __init__(self, log: EventLog, graph: Graph | None) -> None:
        self.log, self.graph = log, graph
        self._more_at, self._more = -1, list[Metric]()  # of the cursor of the last look

    # ---- messages -------------------------------------------------------------------------------------------------------

    def everything(self) -> Everything:
        """Return the newest state, the graph with its layout, and all rounds."""
        state = self.log.state()
        found: Everything = {**self._state(state), "graph": self.picture(), "rounds": self.rounds()}
        return finite(found)

    def since(self, cursor: int) -> Since:
        """Return what changed after a cursor: its peers, edges and rounds; `header` and `timeline` are always whole."""
        state = self.log.state()
        changed = {peer_id for peer_id, peer in state.peers.items() if peer.position > cursor}
        if self.graph is not None:  # what a peer waits for changes with its neighbors
            changed |= {neighbor for peer_id in changed for neighbor in self.graph.neighbors(peer_id)}
        found: Since = {**self._state(state, changed), "since": cursor, "rounds": self.rounds(cursor)}
        return finite(found)

    def at(self, cursor: int) -> StateMessage:
        """Return the state at any cursor, for replay."""
        return finite(self._state(self.log.state(cursor)))

    def at_round(self, round_index: int) -> AtRound:
        """Return the state in which every peer has just completed a round; see `EventLog.at_round`."""
        found: AtRound = {**self._state(self.log.at_round(round_index)), "round": round_index}
        return finite(found)

    def _state(self, state: RunState, only: set[int] | None = None) -> StateMessage:
        peers = state.peers if only is None else {peer_id: state.peers[peer_id] for peer_id in sorted(only)}
        return {
            "cursor": state.cursor,
            "newest": self.log.cursor,
            "at": round(state.at, 3),
            "header": self.header(state).as_json(),
            "peers": [self.peer(peer, state).as_json() for peer in peers.values()],
            "edges": [row.as_json() for row in self.edges(state, only)],
            "timeline": self.timeline(state),
        }

    # ---- parts ----------------------------------------------------------------------------------------------------------

    def metric(self) -> Metric:
        """Return the metric that the first peer with one names."""
        return metric_of(self.log.peers.values())

    def more_metrics(self) -> list[Metric]:
        """Return the task's other metrics, as the first peer with some names them."""
        if self._more_at != self.log.cursor:
            self._more_at, self._more = self.log.cursor, more_metrics_of(self.log.peers.values())
        return self._more

    def header(self, state: RunState) -> Header:
        """Return the numbers of the whole run."""
        peers, metric = list(state.peers.values()), self.metric()
        values = present(peer.last.get("metric_value") for peer in peers)
        rounds = [peer.rounds_completed for peer in peers]
        manifest = self.graph.manifest if self.graph else None
        count = states(state.peers)
        return Header(
            algorithm=algorithm_of(self.graph, peers),
            task=manifest.task if manifest else None,
            clusters=manifest.clusters if manifest else None,
            metric={**metric.as_json(), "name": printable(metric.name, 64)},
            **statistics(metric, values),
            measured=int(values.size),
            more_metrics=self._more_statistics(peers),
            ari=ari(peers),
            rounds_min=min(rounds, default=0),
            rounds_max=max(rounds, default=0),
            rounds_total=manifest.rounds if manifest else None,
            totals=totals_of(peers),
            peers=len(peers),
            alive=count["running"],
            down=sum(count[status] for status, each in STATES.items() if each.down),
            state=run_state(peers, manifest.rounds if manifest else None),
            states=dict(sorted(count.items())),
            seconds_left=seconds_left(peers, manifest.rounds if manifest else None),
            gaps=sum(len(peer.gaps) for peer in peers),
            ended=bool(peers) and not count["running"] and count["missing"] < len(peers),
        )

    def _more_statistics(self, peers: list[PeerState]) -> list[JSON]:
        metrics = self.more_metrics()
        rows = [latest_values(peer, metrics) for peer in peers]
        return [
            metric.as_json()
            | {"name": printable(metric.name, 64)}
            | statistics(metric, present(row[at] for row in rows))
            for at, metric in enumerate(metrics)
        ]

    def peer(self, peer: PeerState, state: RunState) -> PeerRow:
        """Return the row of one peer of a state."""
        last = peer.last
        algorithm = last.get("state") or {}
        wait = waits(peer, state.peers, self.graph, state.at)
        return PeerRow(
            id=peer.peer_id,
            status=printable(peer.status, 32),
            exit_code=peer.exit_code,
            round=peer.rounds_completed,
            metric=last.get("metric_value"),
            metrics=latest_values(peer, self.more_metrics()),
            best_round=last.get("best_round"),
            metric_best=last.get("metric_best"),
            loss=last.get("loss"),
            epsilon=last.get("epsilon"),
            cluster=last.get("cluster_index"),
            true_cluster=last.get("true_cluster"),
            collaborators=algorithm.get("collaborators"),
            tests=[
                [each.model_of, each.value, each.slot, each.round_index, printable(each.missing, 32)]
                for each in results(last.get("model_tests"))
            ],
            mixture=algorithm.get("soft_mixture") or algorithm.get("mixture"),
            waits_for=wait.neighbors,
            why=[printable(reason) for reason in wait.reasons],
            until_s=wait.until_s,
            stage=wait.stage,
            silent=printable(peer.silent),
            alive=alive(peer),
            alone=alone(peer),
            neighbors={str(neighbor): state for neighbor, state in peer.neighbors.items()},
            seconds={phase: round(spent, 3) for phase, spent in peer.phase_seconds().items()},
            seconds_per_round=None if peer.pace_s is None else round(peer.pace_s, 3),
            totals=peer.totals,
            rounds_with_missing=len(peer.missing),
            refusals=peer.refusals,
            starts=len(peer.incarnations),
            checkpoint=peer.checkpoint.get("round_index") if peer.checkpoint else None,
            at=round(peer.at, 3),
        )

    def edges(self, state: RunState, only: set[int] | None = None) -> list[EdgeRow]:
        """Return each edge of the graph (of these peers): its state, and models and bytes both ways."""
        pairs = self.graph.edges if self.graph else known_edges(state)
        return [edge(state, a, b, self.graph) for a, b in pairs if only is None or a in only or b in only]

    def timeline(self, state: RunState) -> list[TimelineEntry]:
        """Return the newest `TIMELINE_MAX` entries of the timeline."""
        return timeline(state.news)[-TIMELINE_MAX:]

    def picture(self) -> GraphPicture | None:
        """Return ids, positions and edges of the graph; None without a graph file."""
        if self.graph is None:
            return None
        places = positions(self.graph)
        return {
            "name": printable(self.graph.name),
            "ids": list(self.graph.ids),
            "x": [round(places[i][0], 4) for i in self.graph.ids],
            "y": [round(places[i][1], 4) for i in self.graph.ids],
            "edges": [list(pair) for pair in self.graph.edges],
        }

    def rounds(self, since: int = 0) -> JSON:
        """Return, for each round with a line after a cursor, statistics over peers, and the cells of those lines.

        ``cells`` has one list per column: all have the same length, one entry per (peer, round).
        """
        cells: JSON = {name: [] for name in CELL}
        metric = self.metric()
        table: JSON = {name: [] for name in ROUND}
        for index in sorted(self.log.changed_rounds(since)):
            lines = self.log.rounds[index]
            rows = list(lines.values())
            values = present(row.metric for row in rows)
            numbers = statistics(metric, values)
            best = metric.best(values) if values.size else None
            starts = [self.log.newest(peer_id).start for peer_id in lines]
            true = [start.get("true_cluster") if start else None for start in starts]
            found = [row.cluster for row in rows]
            entry = (
                index, numbers["mean"], numbers["worst"], best, numbers["tenth"], agreement(true, found),
                float(np.mean([row.seconds for row in rows])), float(np.mean([row.payload_bytes for row in rows])), len(rows),
            )  # fmt: skip
            for name, value in zip(ROUND, entry, strict=True):
                table[name].append(value)
            for peer_id, row in lines.items():
                if row.position > since:
                    for name, value in zip(CELL, (peer_id, index, row.metric, row.cluster), strict=True):
                        cells[name].append(value)
        return {**table, "cells": cells}


CELL = ("peer", "round", "metric", "cluster")
ROUND = ("round", "mean", "worst", "best", "tenth", "ari", "seconds", "payload_bytes", "peers")


def metric_of(peers: Iterable[PeerState]) -> Metric:
    """Return the metric in the start lines or summaries of peers; accuracy if they have none."""
    for peer in peers:
        started = peer.start.get("metric") if peer.start else None
        found = peer.summary.get("metric") or started or (peer.answer["metric"] if peer.answer else None)
        if found:
            return Metric.from_json(found)
    return Metric()


def algorithm_of(graph: Graph | None, peers: Iterable[PeerState]) -> str | None:
    """Return the name of the algorithm: of the manifest, else of a summary; None if no file has it."""
    if graph is not None:
        return graph.manifest.algorithm
    return next((printable(str(name)) for peer in peers if (name := peer.summary.get("algorithm"))), None)


def statistics(metric: Metric, values: np.ndarray) -> JSON:
    """Return mean, standard deviation, worst and worst tenth of the peers; None without values."""
    if not values.size:
        return {"mean": None, "std": None, "worst": None, "tenth": None}
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "worst": metric.worst(values),
        "tenth": metric.worst_tenth(values),
    }


def present(values: Iterable[float | None]) -> np.ndarray:
    """Return the values that are not None, float64."""
    return np.array([value for value in values if value is not None], dtype=float)


def ari(peers: list[PeerState]) -> float | None:
    """Return `agreement` of the peers' latest clusters."""
    return agreement([p.last.get("true_cluster") for p in peers], [p.last.get("cluster_index") for p in peers])


def seconds_left(peers: list[PeerState], total: int | None) -> float | None:
    """Return the seconds until the slowest running peer ends, at its present pace; None if that is not known."""
    if total is None:
        return None
    left = [
        peer.pace_s * max(0, total - peer.rounds_completed)
        for peer in peers
        if peer.status == "running" and peer.pace_s is not None
    ]
    return round(max(left), 1) if left else None


def alive(peer: PeerState) -> int | None:
    """Return the number of live neighbors: of its answer or the changes of their states, else of the last round."""
    if peer.neighbors or peer.answered:
        return sum(state == "alive" for state in peer.neighbors.values())
    return peer.last.get("neighbors_alive")


def known_edges(state: RunState) -> list[tuple[int, int]]:
    """Return the edges that peers without a graph file wrote about."""
    found = {
        (min(peer_id, other), max(peer_id, other))
        for peer_id, peer in state.peers.items()
        for other in (*peer.neighbors, *peer.folded)
    }
    return sorted(found)


def edge(state: RunState, a: int, b: int, graph: Graph | None = None) -> EdgeRow:
    """Return one edge."""
    ends = {peer_id: state.peers.get(peer_id) or PeerState(peer_id) for peer_id in (a, b)}
    said = [ends[a].neighbors.get(b), ends[b].neighbors.get(a)]
    known = [word for word in said if word is not None]
    worst = next((word for word in LINKS if word in known), "unknown")
    models = [ends[b].folded.get(a, 0), ends[a].folded.get(b, 0)]
    sent = [round(count * _model_bytes(ends[i])) for count, i in zip(models, (a, b), strict=True)]
    return EdgeRow(a=a, b=b, state=worst, models=models, bytes=sent, kind=edge_kind(ends, a, b, graph))


def edge_kind(ends: dict[int, PeerState], a: int, b: int, graph: Graph | None) -> str | None:
    """Return how the ends of an edge reach each other: as one of them says, the least direct first; else as the graph says."""
    answers = ((ends[i].answer, str(j)) for i, j in ((a, b), (b, a)))
    said = {answer.get("routes", {}).get(other) for answer, other in answers if answer is not None}
    found = next((kind for kind in ROUTES if kind in said), None)
    return found or (kind_of(graph, a, b) if graph is not None else None)


def _model_bytes(peer: PeerState) -> float:
    sent = peer.totals.models_sent
    return peer.totals.payload_bytes_sent / sent if sent else 0.0
