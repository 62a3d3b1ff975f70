"""The film of a run, as JSON for the page: the newest state, and every peer in every round, in columns.

The page computes no state: what it shows of a past round are the cells of this film. docs/page.md describes the keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Any

from coordinator_free_bootstrap.strict_json import printable
from peer.core.counters import Totals
from peer.core.metric import Metric
from peer.store.records import NO_STATE, PHASES, RoundLine
from peer.view.state.more_metrics import values_of
from peer.view.state.reducer import EventLog, RoundCell
from peer.view.state.rows import JSON, GraphPicture, StateMessage
from peer.view.state.view import View, present, statistics

DIGITS = 6  # after the point, of numbers in columns
FOLDED_MAX = 35  # models from one neighbor in one round: one digit of base 36
_BASE_36 = "0123456789abcdefghijklmnopqrstuvwxyz"


class Film:
    """Messages for the page: `everything`, and the `message` after a cursor of the event log.

    Args:
        view: of the run.

    Attributes:
        warnings: what makes the numbers of the run doubtful, as sentences.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        self.warnings: list[str] = []
        self._neighbors: dict[int, list[int]] = {}
        self._shape, self._grown = (0, 0), 0  # peers and further metrics that pages know, since this cursor

    @property
    def log(self) -> EventLog:
        """The events of the run."""
        return self.view.log

    def everything(self) -> JSON:
        """Return the run, its newest state, and all rounds."""
        edges = self._edges()
        self._neighbors = neighbors_of(edges)
        if self._shape != (shape := self._present_shape()):
            self._shape, self._grown = shape, self.log.cursor
        return {"run": self._run(edges), "state": self._state(self.view.at(self.log.cursor)), **self._news(0)}

    def message(self, cursor: int) -> tuple[str, JSON]:
        """Return ``film`` and everything, or ``more`` and what changed after a cursor: peers, edges, rounds, news.

        The header and the timeline are whole in both. A reader whose cursor precedes a new peer or metric gets everything.
        """
        if not cursor or cursor < self._grown or self._present_shape() != self._shape:
            return "film", self.everything()
        return "more", {"state": self._state(self.view.since(cursor)), **self._news(cursor)}

    def _present_shape(self) -> tuple[int, int]:
        return len(self.log.peers), len(self.view.more_metrics())

    def _run(self, edges: list[tuple[int, int]]) -> JSON:
        graph, log = self.view.graph, self.log
        ids = list(log.peers)
        place = {peer_id: index for index, peer_id in enumerate(ids)}
        header = self.view.header(log.state()).as_json()
        known = ("algorithm", "task", "clusters", "rounds_total")
        addresses = {node.id: node.address for node in graph.nodes} if graph else {}
        return {
            **{key: header[key] for key in known},
            "peers": [{"id": peer_id, "address": printable(addresses.get(peer_id) or "")} for peer_id in ids],
            "edges": [[place[a], place[b]] for a, b in edges],
            "layout": layout(self.view.picture(), ids),
        }

    def _edges(self) -> list[tuple[int, int]]:
        return [(edge.a, edge.b) for edge in self.view.edges(self.log.state())]

    def _state(self, view: StateMessage) -> JSON:
        began = self._began
        events = [entry | {"at": round(entry["at"] - began, 3)} for entry in view["timeline"]]
        header = view["header"] | {"seconds": round(max(0.0, view["at"] - began), 3)}
        return {
            "header": header,
            "peers": view["peers"],
            "edges": view["edges"],
            "timeline": events,
            "warnings": self.warnings,
        }

    @property
    def _began(self) -> float:
        return self.log.began

    def _news(self, cursor: int) -> JSON:
        statuses, links = self._changes(cursor)
        return {
            "frames": self._frames(cursor),
            "strips": list(self._strips(cursor)),
            "statuses": statuses,
            "links": links,
        }

    def _frames(self, cursor: int) -> list[JSON]:
        """Return statistics over the peers with a line in each changed round, and its time: the median of the peers."""
        table = self.view.rounds(cursor)
        names = ("round", "mean", "worst", "best", "tenth", "ari")
        frames = [dict(zip(names, row, strict=True)) for row in zip(*(table[name] for name in names), strict=True)]
        metrics = self.view.more_metrics()
        for frame in frames:
            if metrics:
                frame["more"] = self._more(frame["round"], metrics)
            ended = median(cell.at for cell in self.log.rounds[frame["round"]].values())
            frame["seconds"] = round(max(0.0, ended - self._began), 3)
        return frames

    def _more(self, round_index: int, metrics: list[Metric]) -> list[JSON]:
        """Return statistics of each further metric over the peers in a round."""
        rows = [values_of(cell.line, metrics) for cell in self.log.rounds[round_index].values()]
        found = [present(row[at] for row in rows) for at in range(len(metrics))]
        return [
            statistics(metric, values) | {"best": metric.best(values) if values.size else None}
            for metric, values in zip(metrics, found, strict=True)
        ]

    def _strips(self, cursor: int) -> Iterator[JSON]:
        """Yield the changed cells: for each peer, stretches of consecutive rounds."""
        stretches: dict[int, list[tuple[int, list[RoundCell]]]] = {}
        for index in sorted(self.log.changed_rounds(cursor)):
            for peer_id, cell in self.log.rounds[index].items():
                if cell.position <= cursor:
                    continue
                found = stretches.setdefault(peer_id, [])
                if found and found[-1][0] + len(found[-1][1]) == index:
                    found[-1][1].append(cell)
                else:
                    found.append((index, [cell]))
        for peer_id, parts in sorted(stretches.items()):
            for first, cells in parts:
                yield {"peer": peer_id, "round": first, **self._columns(peer_id, cells)}

    def _columns(self, peer_id: int, cells: list[RoundCell]) -> JSON:
        lines = [cell.line for cell in cells]
        neighbors = self._neighbors.get(peer_id, [])
        columns: JSON = {
            "metric_value": [rounded(line.get("metric_value")) for line in lines],
            "cluster": [line.get("cluster_index") for line in lines],
            "seconds": [round(max(0.0, cell.at - self._began), 3) for cell in cells],
            "sent": [cell.payload_bytes for cell in cells],
            "alive": [line.get("neighbors_alive") for line in lines],
            "lonely": [Totals.of(line).rounds_alone for line in lines],
            "folded": [folded(line, neighbors) for line in lines],
            "missing": [line.get("missing") or [] for line in lines],
        }
        spent = [line.get("seconds") or {} for line in lines]
        for phase in PHASES:
            columns[phase] = [None if (s := row.get(phase)) is None else round(s, 3) for row in spent]
        if metrics := self.view.more_metrics():
            rows = [values_of(line, metrics) for line in lines]
            columns |= {f"more{at}": [rounded(row[at]) for row in rows] for at in range(len(metrics))}
        found: dict[str, list[Any]] = {
            "mixture": [mixture(line) for line in lines],
            "collaborators": [(line.get("state") or NO_STATE).get("collaborators") for line in lines],
        }
        return columns | {name: values for name, values in found.items() if any(value is not None for value in values)}

    def _changes(self, cursor: int) -> tuple[list[list[object]], list[list[object]]]:
        """Return [seconds, peer, status] and [seconds, peer, neighbor, state] of the news after a cursor."""
        statuses: list[list[object]] = []
        links: list[list[object]] = []
        for position, event in self.log.news:
            if position <= cursor:
                continue
            at = round(max(0.0, event.at - self._began), 3)
            if event.data["kind"] == "neighbor":
                subject, state = event.data["neighbor"], event.data["state"]
                links.append([at, event.peer, subject, state])
                if state in ("dead", "alive"):
                    statuses.append([at, subject, "dead" if state == "dead" else "running"])
            elif event.kind == "exit":
                statuses.append([at, event.peer, "dead"])
            elif event.kind in _STATUS:
                statuses.append([at, event.peer, _STATUS[event.kind]])
        return statuses, links


_STATUS = {"start": "running", "end": "completed", "leave": "left"}


def neighbors_of(edges: list[tuple[int, int]]) -> dict[int, list[int]]:
    """Return the neighbors of each peer, ascending."""
    found: dict[int, list[int]] = {}
    for a, b in edges:
        found.setdefault(a, []).append(b)
        found.setdefault(b, []).append(a)
    return {peer_id: sorted(others) for peer_id, others in found.items()}


def folded(line: RoundLine, neighbors: list[int]) -> str:
    """Return how many models a round folded from each neighbor: one digit of base 36 a neighbor, at most 35."""
    counts = Counter([arrival[0] for arrival in line.get("folded") or ()])
    return "".join([_BASE_36[min(counts[neighbor], FOLDED_MAX)] for neighbor in neighbors])


def mixture(line: RoundLine) -> list[float] | None:
    """Return the weights of the clusters after a round, or None."""
    state = line.get("state") or {}
    weights = state.get("soft_mixture") or state.get("mixture")
    return [round(weight, 4) for weight in weights] if weights else None


def rounded(value: float | None) -> float | None:
    """Return a number with `DIGITS` digits after the point."""
    return None if value is None else round(value, DIGITS)


def layout(picture: GraphPicture | None, ids: list[int]) -> list[list[float]]:
    """Return x and y of each peer, 0 to 1, y down; a circle without a picture of the graph."""
    from math import cos, pi, sin

    if picture is None:
        spots = {p: (cos(2 * pi * i / len(ids)), sin(2 * pi * i / len(ids))) for i, p in enumerate(ids)}
    else:
        spots = dict(zip(picture["ids"], zip(picture["x"], picture["y"], strict=True), strict=True))
    xs, ys = ([spots[p][axis] for p in ids] for axis in (0, 1))
    return [[_share(spots[p][0], xs), 1 - _share(spots[p][1], ys)] for p in ids]


def _share(value: float, values: list[float]) -> float:
    low, high = min(values), max(values)
    return round((value - low) / (high - low), 4) if high > low else 0.5
