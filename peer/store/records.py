"""The record vocabulary: each kind of line of a history with its fields, and the states of a run. Counters: `peer.core.counters`.

What a field is stands here once: its type and limits, meaning, unit, whether observers may know it, and whether the metrics
endpoint shows it. The writer, the validation of readers, the ring of rounds, the endpoint and the tables in docs are derived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from coordinator_free_bootstrap.graph import ID_MAX
from coordinator_free_bootstrap.strict_json import printable
from peer.core.counters import COUNTERS, COUNTING, Entry, entries
from peer.core.metric import MORE_METRICS_MAX, Metric

COUNT_MAX = 2**63 - 1
ENTRIES_MAX = 100_000  # neighbors of one peer
CLUSTERS_MAX = 4096
PHASES = ("train", "wait", "fold", "evaluate", "other")  # of a round, in the field `seconds`

# ---- types of values ----------------------------------------------------------------------------------------------------


def _iso(text: str) -> str:
    try:
        datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError) as error:
        raise ValueError(f"expected a time in ISO 8601, got {printable(text, 40)}") from error
    return text


def _rectangle(rows: list[list[int]]) -> list[list[int]]:
    if len({len(row) for row in rows}) != 1 or not rows[0] or not any(map(sum, rows)):
        raise ValueError("expected a table of counts, got rows of different lengths or no samples")
    return rows


Text = Annotated[str, Field(max_length=4096)]
Word = Annotated[str, Field(pattern=r"^[a-z][a-z_]{0,31}$")]
Time = Annotated[str, AfterValidator(_iso)]
PeerId = Annotated[int, Field(ge=0, le=ID_MAX)]
PeerIds = Annotated[list[PeerId], Field(max_length=ENTRIES_MAX)]
Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]
Small = Annotated[int, Field(ge=0, le=2**53)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Metrics = Annotated[dict[Text, Number | None], Field(max_length=MORE_METRICS_MAX)]
Weights = Annotated[list[Number], Field(min_length=1, max_length=CLUSTERS_MAX)]
CenterScores = Annotated[  # [center][true cluster]: sum of the test samples' scores, and their number
    list[Annotated[list[Annotated[list[Number], Field(min_length=2, max_length=2)]], Field(min_length=1)]],
    Field(min_length=1, max_length=CLUSTERS_MAX),
]
Confusion = Annotated[  # [true cluster][label]: samples
    list[Annotated[list[Small], Field(max_length=CLUSTERS_MAX)]],
    Field(min_length=1, max_length=CLUSTERS_MAX),
    AfterValidator(_rectangle),
]


class MetricRecord(BaseModel):
    """A metric in a status, a start line or a summary: `peer.core.metric.Metric`, and in the first and last its value."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    name: Annotated[str, Field(min_length=1, max_length=64)]
    higher_is_better: bool
    share: bool
    value: Number | None = None

    @property
    def plain(self) -> Metric:
        """The metric without its value."""
        return Metric(self.name, self.higher_is_better, self.share)


MoreMetrics = Annotated[list[MetricRecord], Field(max_length=MORE_METRICS_MAX)]

# ---- lines of a history -------------------------------------------------------------------------------------------------


def told(help: str, unit: str = "", prometheus: Any = "") -> Entry:
    """Return the entry of a field that observers may know."""
    return Entry(help, unit, told=True, prometheus=prometheus)


class Line(BaseModel):
    """A history line of any kind."""

    model_config = ConfigDict(strict=True, extra="ignore")

    kind: Text
    t: Annotated[Number | None, told("seconds since the process opened the file, monotonic")] = None
    time: Annotated[Time | None, told("wall clock, ISO 8601, UTC")] = None
    incarnation: Annotated[Count | None, Entry("of the process, higher after each start")] = None


class StartLine(Line):
    """The first line of an incarnation."""

    peer_id: Annotated[PeerId | None, Entry("of the peer whose history it is")] = None
    backend: Annotated[Text | None, Entry("`simulated`, in simulated runs only")] = None
    port: Annotated[Count | None, Entry("where the peer listens")] = None
    resumed_from: Annotated[Count | None, Entry("round of the checkpoint, or null")] = None
    notes: Annotated[list[str] | None, Entry("e.g. refused checkpoints with the reason")] = None
    digests: Annotated[dict[str, Text] | None, Entry("of what neighbors compare at the first contact")] = None
    metric: Annotated[MetricRecord | None, Entry("see *The metric*")] = None
    more_metrics: Annotated[MoreMetrics | None, Entry("name and direction of each further metric of the task")] = None
    true_cluster: Annotated[Count | None, Entry("null if not known")] = None
    samples: Annotated[Count | None, Entry("of the training set")] = None
    parameters: Annotated[Count | None, Entry("of one model")] = None


class AlgorithmFields(BaseModel):
    """The parts of an algorithm's state that reports compute with; observers get some of them, if the peer's owner allows it."""

    model_config = ConfigDict(strict=True, extra="ignore")

    mixture: Annotated[Weights | None, told("FedSPD, FedEM, FedSoft: weight of each cluster")] = None
    soft_mixture: Annotated[Weights | None, told("FedEM: pi, which is not a count of samples")] = None
    confusion: Annotated[Confusion | None, Entry("samples [true][label], if the true clusters are known")] = None
    class_explains: Annotated[
        Number | None, Entry("share of the samples with the commonest label of their class, if there are classes")
    ] = None
    center_scores: Annotated[
        CenterScores | None,
        Entry("FedSoft: [center][true cluster], sum of the test samples' scores, and their number"),
    ] = None
    seeds: Annotated[
        Any,
        Entry(
            "DFCA and `blend` with seeds: the peer whose model began each cluster; -1: it did not arrive, or this peer was away; "
            "null: no group was left, the cluster is empty"
        ),
    ] = None
    candidates: Annotated[PeerIds | None, told("DPFL: Ω, a list of peers")] = None
    collaborators: Annotated[PeerIds | None, told("DPFL: C, a list of peers")] = None
    gain: Annotated[
        Any, Entry("DPFL: validation loss of the own model minus that of the average with `collaborators`")
    ] = None
    clusters: Annotated[Any, Entry("CGPFL: K")] = None
    anchor: Annotated[
        Any, Entry("CGPFL: the peer from which the numbers of the clusters come, and its distance in edges")
    ] = None


class _ResultLine(Line):
    cluster_index: Annotated[
        Count | None,
        told("cluster of the evaluation model, its slot; not in algorithms with one model", prometheus="gauge"),
    ] = None
    selected_cluster: Annotated[
        Annotated[int, Field(ge=-1, le=CLUSTERS_MAX)] | None,
        Entry("FedSPD: slot that was trained and sent; -1: none, sits out, or all are exchanged"),
    ] = None
    metric_value: Annotated[
        Number | None, told("the task's metric of the evaluation model on the test set, null without evaluation")
    ] = None
    metric_shared: Annotated[
        Number | None,
        Entry(
            "the same of the model that travels, where the evaluation model is a personal one (`pfedme`, `ditto`, `apfl`, "
            "`perfedavg`, `cgpfl`, `dpfl`), or several models predict (`blend`)"
        ),
    ] = None
    metric_train: Annotated[
        Number | None,
        Entry(
            "the task's metric on the samples of the training steps, each before its step (no additional pass); not where the "
            "metric needs all outputs at once"
        ),
    ] = None
    loss: Annotated[Number | None, told("mean loss of the evaluation model on the test set", prometheus="gauge")] = None
    train_loss: Annotated[Number | None, told("mean training loss", prometheus="gauge")] = None
    metrics: Annotated[
        Metrics | None,
        told("values of the task's `more_metrics` by name, where it has some; in trackers and tables `metrics.NAME`"),
    ] = None
    state: Annotated[AlgorithmFields | None, Entry("the algorithm's state, see below")] = None


class RoundLine(_ResultLine):
    """One completed round."""

    round_index: Annotated[int, Field(ge=0, le=2**31), told("0-based")]
    active: Annotated[bool | None, told("whether the peer trained in this round (`run.participation`)")] = None
    seconds: Annotated[dict[str, Number | None] | None, told(f"per phase: {', '.join(PHASES)}", "seconds")] = None
    folded: Annotated[Any, told("list of [neighbor, incarnation, round, step, slot], in fold order")] = None
    missing: Annotated[PeerIds | None, told("ids of neighbors whose models were missing when the round closed")] = None
    rejected: Annotated[dict[Word, Count] | None, Entry("complete arrivals that failed screening, by refusal code")] = (
        None
    )
    neighbors_alive: Annotated[Count | None, told("when the round closed", "neighbors")] = None
    restores: Annotated[
        Count | None,
        Entry(
            "only in a round whose training was undone: how often the peer went back to its last finite models so far "
            "(`run.diverged_restores`); each halved its learning rate"
        ),
    ] = None


class LeaveLine(Line):
    """A peer that leaves before the end of the run."""

    rounds_completed: Annotated[Count | None, Entry("with those skipped by catching up")] = None


class EndLine(_ResultLine):
    """The end of a run."""

    rounds_completed: Annotated[Count | None, Entry("with those skipped by catching up")] = None
    predictor: Annotated[Text | None, Entry("how several models predict, see below")] = None
    metric_before_final: Annotated[Number | None, Entry("before the final phase")] = None
    metric_after_final: Annotated[Number | None, Entry("after it")] = None
    final_share: Annotated[
        Number | None, Entry("weight of the personalized model, where the final phase has a guard")
    ] = None


class NeighborLine(Line):
    """A change of a neighbor's state."""

    neighbor: Annotated[PeerId, Entry("whose state changed")]
    state: Annotated[Word, Entry("unknown, alive, suspect, dead, left")]
    reason: Annotated[str | None, Entry("why")] = None


class RefusedLine(Line):
    """A refused message."""

    neighbor: Annotated[PeerId | None, Entry("null for a caller that is not a neighbor")] = None
    code: Annotated[Word, Entry("see `coordinator_free_bootstrap.errors.RefusalCode`")]
    reason: Annotated[str | None, Entry("a sentence")] = None


class CheckpointLine(Line):
    """A checkpoint, written or not."""

    round_index: Annotated[Count | None, Entry("the first round after it")] = None
    seconds: Annotated[Number | None, Entry("of writing")] = None
    bytes: Annotated[Count | None, Entry("of its arrays")] = None
    error: Annotated[str | None, Entry("null, or the message")] = None


class CaughtUpLine(Line):
    """Rounds that neighbors completed without this peer."""

    from_round: Annotated[Count | None, Entry("the first of them")] = None
    to_round: Annotated[Count | None, Entry("the round with which it continues")] = None


KINDS: Mapping[str, type[Line]] = {
    "start": StartLine,
    "round": RoundLine,
    "neighbor": NeighborLine,
    "refused": RefusedLine,
    "checkpoint": CheckpointLine,
    "caught_up": CaughtUpLine,
    "leave": LeaveLine,
    "end": EndLine,
}


def fields_of(kind: str) -> dict[str, Entry]:
    """Return the fields that lines of a kind may have, beside those of every line and the counters."""
    return {name: each for name, each in entries(KINDS[kind]).items() if name not in entries(Line)}


FIELDS = {
    kind: frozenset(fields_of(kind)) | (frozenset(COUNTERS) if kind in COUNTING else frozenset()) for kind in KINDS
}

# ---- the summary --------------------------------------------------------------------------------------------------------


class Summary(BaseModel):
    """``summary.json``, which a peer writes when it ends."""

    model_config = ConfigDict(strict=True, extra="ignore")

    peer_id: Annotated[PeerId | None, Entry("of the peer")] = None
    status: Annotated[Word | None, Entry("how the run ended: a state that ends it")] = None
    exit_code: Annotated[Small | None, Entry("of the process")] = None
    incarnation: Annotated[Count | None, Entry("of the process")] = None
    rounds_completed: Annotated[Count | None, Entry("with those skipped by catching up")] = None
    rounds_total: Annotated[Count | None, Entry("rounds of the manifest")] = None
    algorithm: Annotated[Text | None, Entry("of the manifest")] = None
    cluster_index: Annotated[Count | None, Entry("as in the `end` line")] = None
    true_cluster: Annotated[Count | None, Entry("null if not known")] = None
    metric: Annotated[MetricRecord | None, Entry("see *The metric*, with its last `value`")] = None
    loss: Annotated[Number | None, Entry("as in the `end` line")] = None
    metrics: Annotated[Metrics | None, Entry("as in the `end` line, where the task has more metrics")] = None
    totals: Annotated[dict[str, Count] | None, Entry("counters of the run that are not 0")] = None
    refusals: Annotated[dict[Word, Count] | None, Entry("refused messages by code")] = None
    storage_error: Annotated[str | None, Entry("a message, or empty")] = None
    run_seconds: Annotated[Number | None, Entry("of this process")] = None
    digests: Annotated[dict[str, Text] | None, Entry("as in the `start` line")] = None
    ended_at: Annotated[Time | None, Entry("ISO 8601, UTC")] = None


# ---- states of a run ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunStatus:
    """A state of a peer's run.

    Attributes:
        help: what it means.
        said: whether the peer itself says it: in its metrics and, of an end, its summary; else only readers of files do.
        ends: whether the run of this peer is over, as it says.
        down: whether such a peer takes no part any more although its run is not complete, so that pages warn.
        note: of reports, about a peer in this state; "": none.
    """

    help: str
    said: bool = True
    ends: bool = False
    down: bool = False
    note: str = ""


STATES: Mapping[str, RunStatus] = {
    "starting": RunStatus("task and data are loaded"),
    "waiting": RunStatus("outside its windows of work"),
    "running": RunStatus("the start, or a round, is in progress", note="still running; the numbers are preliminary"),
    "completed": RunStatus("all rounds are done", ends=True),
    "alone": RunStatus(
        "as completed, but without any neighbor in most rounds, or without any model folded", ends=True, down=True
    ),
    "left": RunStatus("asked to leave", ends=True, note="stopped before the end of the run; started again, it resumes"),
    "refused": RunStatus("refused by every neighbor", ends=True, down=True),
    "diverged": RunStatus("models that are not finite", ends=True, down=True),
    "failed": RunStatus("an error", ends=True, down=True, note="failed; see its log"),
    "dead": RunStatus(
        "no process and no end line",
        said=False,
        down=True,
        note="killed or crashed; the numbers are those of its last round",
    ),
    "silent": RunStatus(
        "no answer to an observer",
        said=False,
        down=True,
        note="gives the observer no answer; the numbers are those of the last one",
    ),
    "missing": RunStatus(
        "never started", said=False, note="no history; it never started, or its state directory is elsewhere"
    ),
}
