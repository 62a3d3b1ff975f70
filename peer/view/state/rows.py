"""The rows of a run's state: what the page, progress, statuses and replays show of a run, a peer and an edge.

The attributes are the keys in JSON, and docs/state.md lists them: `Entry` has the meaning of each.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

from typing_extensions import TypedDict

from peer.core.counters import Entry, Totals
from peer.core.metric import MetricRecord
from peer.view.state.timeline import TimelineEntry

JSON = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A row with typed attributes."""

    def as_json(self) -> JSON:
        """Return the attributes by name."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value.as_json() if isinstance(value, Totals) else value for name, value in found.items()}


@dataclass(frozen=True)
class Header(Row):
    """The numbers of a whole run."""

    algorithm: Annotated[str | None, Entry("of the manifest, else of a summary")]
    task: Annotated[str | None, Entry("of the manifest")]
    clusters: Annotated[int | None, Entry("of the manifest")]
    metric: Annotated[
        MetricRecord, Entry("the task's metric: `name`, `higher_is_better`, `share` (whether its values are in [0, 1])")
    ]
    mean: Annotated[float | None, Entry("of the metric over peers, each peer's latest value")]
    std: Annotated[float | None, Entry("standard deviation of the same")]
    worst: Annotated[float | None, Entry("the worst of them")]
    tenth: Annotated[float | None, Entry("10th percentile of them, the 90th if lower is better")]
    measured: Annotated[int, Entry("number of peers with a value of the metric")]
    more_metrics: Annotated[
        list[JSON],
        Entry("the task's other metrics, each with the keys of `metric` and `mean`, `std`, `worst`, `tenth`"),
    ]
    ari: Annotated[float | None, Entry("adjusted Rand index of the peers' clusters against the true ones")]
    rounds_min: Annotated[int, Entry("completed rounds of the slowest peer")]
    rounds_max: Annotated[int, Entry("completed rounds of the fastest peer")]
    rounds_total: Annotated[int | None, Entry("rounds of the manifest")]
    totals: Annotated[Totals, Entry("counters that are not 0, sums over peers ([history.md](history.md))")]
    peers: Annotated[int, Entry("number of peers")]
    alive: Annotated[int, Entry("number of running peers")]
    down: Annotated[int, Entry("number of peers that are dead, silent, diverged, refused, alone or failed")]
    state: Annotated[
        str,
        Entry(
            "of the whole run: `running`, `diverged`, `complete`, `alone`, `stopped`, `incomplete` ([metrics.md](metrics.md))"
        ),
    ]
    states: Annotated[dict[str, int], Entry("number of peers by status")]
    seconds_left: Annotated[float | None, Entry("until the slowest running peer ends, at its present pace")]
    gaps: Annotated[int, Entry("how often an observer missed rounds")]
    ended: Annotated[bool, Entry("whether no peer runs any more")]


@dataclass(frozen=True)
class PeerRow(Row):
    """One peer."""

    id: Annotated[int, Entry("of the peer")]
    status: Annotated[str, Entry("see *States*")]
    exit_code: Annotated[int | None, Entry("of a process that has ended, where it is known; -n: signal n ended it")]
    round: Annotated[int, Entry("completed rounds")]
    metric: Annotated[float | None, Entry("latest value")]
    metrics: Annotated[
        list[float | None],
        Entry("latest values of the task's other metrics, in the order of `more_metrics` of the header"),
    ]
    best_round: Annotated[
        int | None, Entry("round of the model in `models/best.safetensors`, where the peer has validation samples")
    ]
    metric_best: Annotated[float | None, Entry("metric of that model on the validation samples")]
    loss: Annotated[float | None, Entry("latest value")]
    epsilon: Annotated[float | None, Entry("privacy spent so far, with `run.privacy`")]
    cluster: Annotated[int | None, Entry("latest cluster of the evaluation model")]
    true_cluster: Annotated[int | None, Entry("where it is known")]
    collaborators: Annotated[list[int] | None, Entry("neighbors whose models the peer averages with its own (DPFL)")]
    tests: Annotated[
        list[list[int | float | str | None]],
        Entry(
            "after its end, `[peer, metric, slot, round, reason]` of each model that it tested ([history.md](history.md))"
        ),
    ]
    mixture: Annotated[list[float] | None, Entry("weight of each cluster (FedSPD, FedEM, FedSoft)")]
    waits_for: Annotated[
        tuple[int, ...],
        Entry("neighbors: of its last answer; without answers those in an earlier round"),
    ]
    why: Annotated[list[str], Entry("a reason for each")]
    until_s: Annotated[float | None, Entry("seconds until the suspect ones are marked dead or the round closes")]
    stage: Annotated[str, Entry("of its last answer")]
    silent: Annotated[str, Entry('why an observer got no answer, or ""')]
    alive: Annotated[int | None, Entry("live neighbors")]
    alone: Annotated[str, Entry('a sentence if the peer trains without any neighbor now, else ""')]
    neighbors: Annotated[dict[str, str], Entry("state of each, as the peer says")]
    seconds: Annotated[dict[str, float], Entry("by phase, over all rounds")]
    seconds_per_round: Annotated[float | None, Entry("running mean of a round")]
    totals: Annotated[Totals, Entry("counters that are not 0, over all rounds ([history.md](history.md))")]
    rounds_with_missing: Annotated[int, Entry("rounds without some neighbor's model")]
    refusals: Annotated[dict[str, int], Entry("refused messages by code")]
    starts: Annotated[int, Entry("incarnations")]
    checkpoint: Annotated[int | None, Entry("round of the last checkpoint")]
    at: Annotated[float, Entry("time of its last event, Unix seconds")]


@dataclass(frozen=True)
class EdgeRow(Row):
    """One edge."""

    a: Annotated[int, Entry("id of a peer")]
    b: Annotated[int, Entry("id of the other")]
    state: Annotated[str, Entry("the worst that one of them says of the other: dead, left, suspect, unknown, alive")]
    models: Annotated[list[int], Entry("models folded, `[a to b, b to a]`")]
    bytes: Annotated[list[int], Entry("the same times the mean payload of the sender's models")]
    kind: Annotated[
        str | None, Entry("`direct`, `proxy`, `tunnel` or `relay`, as the ends say, else as the graph file says")
    ]


class GraphPicture(TypedDict):
    """The graph as the report draws it."""

    name: str
    ids: list[int]
    x: list[float]
    y: list[float]
    edges: list[list[int]]


class StateMessage(TypedDict):
    """The state of a run at a cursor."""

    cursor: Annotated[int, Entry("the cursor of this state")]
    newest: Annotated[int, Entry("the newest cursor of the run")]
    at: Annotated[float, Entry("time of the latest event, Unix seconds")]
    header: Annotated[JSON, Entry("numbers of the whole run")]
    peers: Annotated[list[JSON], Entry("a row per peer; in `since` only peers with new events")]
    edges: Annotated[list[JSON], Entry("a row per edge; in `since` only edges of these peers")]
    timeline: Annotated[
        list[TimelineEntry],
        Entry("the newest 500 entries: faults, deaths, refusals, restarts, gaps, checkpoints that failed"),
    ]


class _WithRounds(StateMessage):
    rounds: Annotated[JSON, Entry("statistics per round, and cells per peer and round; in `since` only what changed")]


class Everything(_WithRounds):
    """The newest state of a run, its graph and all its rounds."""

    graph: Annotated[
        GraphPicture | None,
        Entry("`ids`, `x`, `y` (positions as in the report's picture), `edges`; null without a graph file"),
    ]


class Since(_WithRounds):
    """What changed after a cursor."""

    since: Annotated[int, Entry("the cursor of the call")]


class AtRound(StateMessage):
    """The state in which every peer has just completed a round."""

    round: Annotated[int, Entry("the round of the call")]


MESSAGES = {"everything": Everything, "since": Since, "at": StateMessage, "at_round": AtRound}  # by method of `View`
