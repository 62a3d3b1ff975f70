"""The record vocabulary: each kind of line of a history with its fields, and the states of a run. Counters: `peer.core.counters`.

What a field is stands here once: its type and limits, meaning, unit, whether observers may know it, and whether the metrics
endpoint shows it. The classes are the types of the lines that readers get, and pydantic checks a line against its class; a field
that may be missing or null is None for `get`. The writer, the ring of rounds, the endpoint and the tables in docs are derived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal, NotRequired, Required, get_args, get_type_hints

from pydantic import AfterValidator, Field, SkipValidation
from typing_extensions import TypedDict

from coordinator_free_bootstrap.graph import ID_MAX
from coordinator_free_bootstrap.identity import INCARNATION_MAX, restart_count
from coordinator_free_bootstrap.strict_json import printable
from peer.core.counters import COUNTERS, COUNTING, Entry, Series, entries
from peer.core.metric import MORE_METRICS_MAX, MetricRecord

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


def _sum_of_known(seconds: Mapping[str, float | None]) -> float:
    return sum(each or 0.0 for each in seconds.values())


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
PeerKey = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
Small = Annotated[int, Field(ge=0, le=2**53)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Metrics = Annotated[dict[Text, Number | None], Field(max_length=MORE_METRICS_MAX)]
OwnNumbers = Annotated[dict[Text, Number | None], Field(max_length=MORE_METRICS_MAX)]
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


class ModelTest(TypedDict, total=False):
    """The test of one model: which, and its result or why there is none, a word of `peer.core.model_tests.REASONS`."""

    model_of: Required[PeerId]
    slot: Count
    round_index: Count
    metric_value: Number | None
    loss: Number | None
    metrics: Metrics
    missing: Word


ModelTests = Annotated[list[ModelTest], Field(max_length=ENTRIES_MAX)]
ArrivalRows = SkipValidation[Sequence[Sequence[int]]]  # readers check them by hand, as a history has many
MoreMetrics = Annotated[list[MetricRecord], Field(max_length=MORE_METRICS_MAX)]

# ---- lines of a history -------------------------------------------------------------------------------------------------


def observable(
    help: str, unit: str = "", prometheus: Literal["", "counter", "gauge"] = "", series: tuple[Series, ...] = ()
) -> Entry:
    """Return the entry of a field that observers may know."""
    return Entry(help, unit, observable=True, prometheus=prometheus, series=series)


class Line(TypedDict, total=False):
    """What lines of any kind have beside their ``kind``."""

    t: Annotated[Number | None, observable("seconds since the process opened the file, monotonic")]
    time: Annotated[Time | None, observable("wall clock, ISO 8601, UTC")]
    incarnation: Annotated[
        Count | None,
        Entry(
            "of the process, higher after each start",
            series=(
                Series(
                    "restart_count",
                    "gauge",
                    "restart count, from the incarnation: 1 after the first start",
                    restart_count,
                ),
            ),
        ),
    ]


class LineOfLater(Line, total=False):
    """A line of a kind that this version does not know."""

    kind: Required[Text]


class StartFields(TypedDict, total=False):
    """What a peer says of itself when it starts."""

    peer_id: Annotated[PeerId | None, Entry("of the peer whose history it is")]
    backend: Annotated[Text | None, Entry("`simulated`, in simulated runs only")]
    port: Annotated[Count | None, Entry("where the peer listens")]
    resumed_from: Annotated[Count | None, Entry("round of the checkpoint, or null")]
    notes: Annotated[list[str] | None, Entry("e.g. refused checkpoints with the reason")]
    digests: Annotated[dict[str, Text] | None, Entry("of what neighbors compare at the first contact")]
    metric: Annotated[MetricRecord | None, Entry("see *The metric*")]
    more_metrics: Annotated[MoreMetrics | None, Entry("name and direction of each further metric of the task")]
    true_cluster: Annotated[Count | None, Entry("null if not known")]
    start_from: Annotated[
        object, Entry("of the first models: file or run, SHA-256, its rounds, tensors taken, new ones")
    ]
    samples: Annotated[Count | None, Entry("of the training set")]
    parameters: Annotated[Count | None, Entry("of one model")]


class StartLine(Line, StartFields, total=False):
    """The first line of an incarnation."""

    kind: Required[Literal["start"]]


class AlgorithmFields(TypedDict, total=False):
    """The parts of an algorithm's state that reports compute with; observers get some of them, if the peer's owner allows it."""

    mixture: Annotated[Weights | None, observable("FedSPD, FedEM, FedSoft: weight of each cluster")]
    soft_mixture: Annotated[Weights | None, observable("FedEM: pi, which is not a count of samples")]
    confusion: Annotated[Confusion | None, Entry("samples [true][label], if the true clusters are known")]
    class_explains: Annotated[
        Number | None, Entry("share of the samples with the commonest label of their class, if there are classes")
    ]
    center_scores: Annotated[
        CenterScores | None,
        Entry("FedSoft: [center][true cluster], sum of the test samples' scores, and their number"),
    ]
    seeds: Annotated[
        object,
        Entry(
            "DFCA and `blend` with seeds: the peer whose model began each cluster; -1: it did not arrive, or this peer was away; "
            "null: no group was left, the cluster is empty"
        ),
    ]
    candidates: Annotated[PeerIds | None, observable("DPFL: Ω, a list of peers")]
    collaborators: Annotated[PeerIds | None, observable("DPFL: C, a list of peers")]
    gain: Annotated[
        object, Entry("DPFL: validation loss of the own model minus that of the average with `collaborators`")
    ]
    clusters: Annotated[object, Entry("CGPFL: K")]
    anchor: Annotated[
        object, Entry("CGPFL: the peer from which the numbers of the clusters come, and its distance in edges")
    ]


NO_STATE: AlgorithmFields = {}


class ResultFields(TypedDict, total=False):
    """What the models of a peer are worth after a round, or at the end."""

    cluster_index: Annotated[
        Count | None,
        observable("cluster of the evaluation model, its slot; not in algorithms with one model", prometheus="gauge"),
    ]
    selected_cluster: Annotated[
        Annotated[int, Field(ge=-1, le=CLUSTERS_MAX)] | None,
        Entry("FedSPD: slot that was trained and sent; -1: none, sits out, or all are exchanged"),
    ]
    metric_value: Annotated[
        Number | None, observable("the task's metric of the evaluation model on the test set, null without evaluation")
    ]
    metric_shared: Annotated[
        Number | None,
        Entry(
            "the same of the model that travels, where the evaluation model is a personal one, or several models predict"
        ),
    ]
    metric_validation: Annotated[
        Number | None,
        observable(
            "the same of what predicts on the validation samples, where the peer has some: it chooses the best round"
        ),
    ]
    best_round: Annotated[
        Count | None,
        observable(
            "round with the best `metric_validation` so far, the earliest of equal ones; its model is `models/best.safetensors`. "
            "The number of rounds: the model after the final phase"
        ),
    ]
    metric_best: Annotated[Number | None, observable("`metric_validation` of that round")]
    metric_train: Annotated[
        Number | None,
        Entry(
            "the task's metric on the samples of the training steps, each before its step (no additional pass); not where the "
            "metric needs all outputs at once"
        ),
    ]
    loss: Annotated[Number | None, observable("mean loss of the evaluation model on the test set", prometheus="gauge")]
    train_loss: Annotated[Number | None, observable("mean training loss", prometheus="gauge")]
    train_numbers: Annotated[OwnNumbers | None, Entry("of an own training loop, by name, from `Trained.numbers`")]
    learning_rate: Annotated[
        Number | None,
        observable(
            "of the round's training: `run.learning_rate` by its schedule, halved by each restore", prometheus="gauge"
        ),
    ]
    metrics: Annotated[
        Metrics | None,
        observable(
            "values of the task's `more_metrics` by name, where it has some; in trackers and tables `metrics.NAME`"
        ),
    ]
    state: Annotated[AlgorithmFields | None, Entry("the algorithm's state, see below")]


class PrivacyField(TypedDict, total=False):
    """What a private peer has spent."""

    epsilon: Annotated[
        Number | None,
        observable(
            "with `run.privacy`: of the training samples, over all rounds and restarts so far, at `run.privacy.delta`",
            prometheus="gauge",
        ),
    ]


class RoundFields(PrivacyField, total=False):
    """What happened in a round."""

    active: Annotated[bool | None, observable("whether the peer trained in this round (`run.participation`)")]
    seconds: Annotated[
        dict[str, Number | None] | None,
        observable(
            f"per phase: {', '.join(PHASES)}",
            "seconds",
            series=(
                Series(
                    "phase_seconds",
                    "counter",
                    f"seconds spent in each phase of a round: {', '.join(PHASES)}",
                    dict,
                    "phase",
                    PHASES,
                ),
                Series("round_seconds", "histogram", "seconds of a round", _sum_of_known),
            ),
        ),
    ]
    folded: Annotated[
        ArrivalRows | None, observable("list of [neighbor, incarnation, round, step, slot], in fold order")
    ]
    missing: Annotated[
        PeerIds | None,
        observable(
            "ids of neighbors whose models were missing when the round closed",
            series=(
                Series("missing_deliveries", "counter", "neighbors whose models were missing when a round closed", len),
            ),
        ),
    ]
    awaited: Annotated[
        PeerId | None,
        observable("the neighbor that the round waited for longest; only in lockstep, if it waited"),
    ]
    summed: Annotated[
        PeerIds | None,
        observable("with `run.secure_sum`: ids of neighbors in the sum of the round; none if it could not be opened"),
    ]
    rejected: Annotated[dict[Word, Count] | None, Entry("complete arrivals that failed screening, by refusal code")]
    neighbors_alive: Annotated[Count | None, observable("when the round closed", "neighbors")]
    resumed_steps: Annotated[
        Count | None,
        Entry("only after a restart inside the round: steps of its trainings that were on disk, and were not repeated"),
    ]
    restores: Annotated[
        Count | None,
        Entry(
            "only in a round whose training was undone: how often the peer went back to its last finite models so far "
            "(`run.diverged_restores`); each halved its learning rate"
        ),
    ]


class RoundLine(Line, ResultFields, RoundFields, total=False):
    """One completed round."""

    kind: Required[Literal["round"]]
    round_index: Annotated[
        Required[int],
        Field(ge=0, le=2**31),
        observable(
            "0-based",
            series=(
                Series(
                    "round_index", "gauge", "current round, 0-based; after the run the number of rounds", (1).__add__
                ),
            ),
        ),
    ]


class CompletedField(TypedDict, total=False):
    """How far a peer came."""

    rounds_completed: Annotated[Count | None, Entry("with those skipped by catching up")]


class LeaveLine(Line, CompletedField, total=False):
    """A peer that leaves before the end of the run."""

    kind: Required[Literal["leave"]]


class FinalFields(TypedDict, total=False):
    """What the final phase of a run gave."""

    predictor: Annotated[Text | None, Entry("how several models predict, see below")]
    metric_before_final: Annotated[Number | None, Entry("before the final phase")]
    metric_after_final: Annotated[Number | None, Entry("after it")]
    final_share: Annotated[Number | None, Entry("weight of the personalized model, where the final phase has a guard")]
    model_tests: Annotated[
        ModelTests | None,
        Entry(
            "tests on this peer's test set of each model that a neighbor delivered in the last round, and of the own one offered "
            "then: `model_of` (peer), `slot`, `round_index`, `metric_value`, `loss`, `metrics`; or `missing`, a word, see below"
        ),
    ]


class EndLine(Line, ResultFields, PrivacyField, CompletedField, FinalFields, total=False):
    """The end of a run."""

    kind: Required[Literal["end"]]


class NeighborLine(Line, total=False):
    """A change of a neighbor's state."""

    kind: Required[Literal["neighbor"]]
    neighbor: Annotated[Required[PeerId], Entry("whose state changed")]
    state: Annotated[Required[Word], Entry("unknown, alive, suspect, dead, left")]
    reason: Annotated[str | None, Entry("why")]


class RefusedLine(Line, total=False):
    """A refused message."""

    kind: Required[Literal["refused"]]
    neighbor: Annotated[PeerId | None, Entry("null for a caller that is not a neighbor")]
    code: Annotated[Required[Word], Entry("of the table in docs/refusals-and-events.md")]
    reason: Annotated[str | None, Entry("a sentence")]


class CheckpointLine(Line, total=False):
    """A checkpoint, written or not."""

    kind: Required[Literal["checkpoint"]]
    round_index: Annotated[Count | None, Entry("the first round after it")]
    seconds: Annotated[Number | None, Entry("of writing")]
    bytes: Annotated[Count | None, Entry("of its arrays")]
    error: Annotated[str | None, Entry("null, or the message")]


class CaughtUpLine(Line, total=False):
    """Rounds that neighbors completed without this peer."""

    kind: Required[Literal["caught_up"]]
    from_round: Annotated[Count | None, Entry("the first of them")]
    to_round: Annotated[Count | None, Entry("the round with which it continues")]


class ScalingLine(Line, total=False):
    """The numbers of all sites on which the peers have agreed, with shared scaling; once in each incarnation."""

    kind: Required[Literal["scaling"]]
    digest: Annotated[Required[Text], Entry("SHA-256 of the numbers of all sites; equal at all peers")]
    samples: Annotated[
        Required[Annotated[dict[PeerKey, Count], Field(max_length=ENTRIES_MAX)]],
        Entry("of the training set of each peer, by id"),
    ]
    classes: Annotated[
        dict[PeerKey, list[Count]] | None,
        Entry("samples of each class in it, where each sample has one of known classes"),
    ]
    columns: Annotated[list[Text] | None, Entry("names of the features, of a table")]
    mean: Annotated[list[Number] | None, Entry("of each feature over all sites")]
    deviation: Annotated[list[Number] | None, Entry("of each feature over all sites; 0: it is constant")]


HistoryLine = (
    StartLine
    | ScalingLine
    | RoundLine
    | NeighborLine
    | RefusedLine
    | CheckpointLine
    | CaughtUpLine
    | LeaveLine
    | EndLine
)  # distinguished by ``kind``
KINDS: Mapping[str, type] = {get_args(get_type_hints(each)["kind"])[0]: each for each in get_args(HistoryLine)}


def fields_of(kind: str) -> dict[str, Entry]:
    """Return the fields that lines of a kind may have, beside those of every line and the counters."""
    return {name: each for name, each in entries(KINDS[kind]).items() if name not in entries(Line)}


FIELDS = {
    kind: frozenset(fields_of(kind)) | (frozenset(COUNTERS) if kind in COUNTING else frozenset()) for kind in KINDS
}


class Latest(Line, StartFields, CompletedField, ResultFields, RoundFields, FinalFields, total=False):
    """The latest value of each field of a peer's lines."""

    round_index: int


# ---- the summary --------------------------------------------------------------------------------------------------------


class Summary(TypedDict, total=False):
    """``summary.json``, which a peer writes when it ends."""

    peer_id: Annotated[PeerId | None, Entry("of the peer")]
    status: Annotated[Word | None, Entry("how the run ended: a state that ends it")]
    exit_code: Annotated[Small | None, Entry("of the process")]
    incarnation: Annotated[Count | None, Entry("of the process")]
    rounds_completed: Annotated[Count | None, Entry("with those skipped by catching up")]
    rounds_total: Annotated[Count | None, Entry("rounds of the manifest")]
    algorithm: Annotated[Text | None, Entry("of the manifest")]
    cluster_index: Annotated[Count | None, Entry("as in the `end` line")]
    true_cluster: Annotated[Count | None, Entry("null if not known")]
    metric: Annotated[MetricRecord | None, Entry("see *The metric*, with its last `value`")]
    best_round: Annotated[Count | None, Entry("as in the `end` line, where the peer has validation samples")]
    metric_best: Annotated[Number | None, Entry("as in the `end` line, where the peer has validation samples")]
    loss: Annotated[Number | None, Entry("as in the `end` line")]
    epsilon: Annotated[Number | None, Entry("as in the `end` line, with `run.privacy`")]
    metrics: Annotated[Metrics | None, Entry("as in the `end` line, where the task has more metrics")]
    model_tests: Annotated[ModelTests | None, Entry("as in the `end` line")]
    totals: Annotated[dict[str, Count] | None, Entry("counters of the run that are not 0")]
    refusals: Annotated[dict[Word, Count] | None, Entry("refused messages by code")]
    storage_error: Annotated[str | None, Entry("a message, or empty")]
    run_seconds: Annotated[Number | None, Entry("of this process")]
    digests: Annotated[dict[str, Text] | None, Entry("as in the `start` line")]
    ended_at: Annotated[Time | None, Entry("ISO 8601, UTC")]
    told_by: list[int]  # not in the file: the neighbors that say how a silent peer ended


# ---- the status ---------------------------------------------------------------------------------------------------------

Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class HostStatus(TypedDict):
    """What a peer is doing, whatever world it is in.

    Attributes:
        stage: of the run, `peer.core.stages.Stage`.
        waiting_for: neighbors whose models the round waits for.
        owed_to: neighbors that have not accepted this peer's models.
        unchanged_s: seconds since stage or round last changed.
        deadline_s: seconds until the round closes without the models that are missing then; None if it does not wait.
        metric: of the task, and its last value; `more_metrics`: its others.
        epsilon: spent of the privacy budget, with run.privacy; `epsilon_max`: its limit, None without one.
        best_round: with the best value on the validation samples, where the peer has some; `metric_best`: that value.
        revision: how many graph files its present one continues; `graph_file`: the first 12 digits of that one's digest.
    """

    peer_id: PeerId
    revision: NotRequired[Count]
    graph_file: NotRequired[Text]
    incarnation: Annotated[int, Field(ge=0, le=INCARNATION_MAX)]
    phase: Word
    stage: Word
    round_index: Count
    rounds_total: Count
    persisted_round: Annotated[int, Field(ge=-1, le=COUNT_MAX)]
    waiting_for: PeerIds
    owed_to: PeerIds
    waiting_s: Seconds
    unchanged_s: Seconds
    suspicion_s: Seconds
    deadline_s: NotRequired[Seconds | None]
    neighbors: Annotated[dict[PeerKey, Word], Field(max_length=ENTRIES_MAX)]
    neighbor_rounds: Annotated[dict[PeerKey, int], Field(max_length=ENTRIES_MAX)]
    silent_s: Annotated[dict[PeerKey, Seconds | None], Field(max_length=ENTRIES_MAX)]
    metric: MetricRecord
    more_metrics: NotRequired[MoreMetrics]
    epsilon: NotRequired[Number]
    epsilon_max: NotRequired[Number | None]
    best_round: NotRequired[Count | None]
    metric_best: NotRequired[Number | None]
    cluster_index: Count | None
    totals: Annotated[dict[Word, Count], Field(max_length=100)]
    refusals: Annotated[dict[Word, Count], Field(max_length=100)]
    storage_error: Annotated[str, Field(max_length=4096)]


class ProcessStatus(TypedDict, total=False):
    """What its process adds.

    Attributes:
        routes: how each neighbor is called: direct, proxy, tunnel or relay.
        outcome: how the run of this peer ended: completed, left, refused, removed, behind, alone, diverged or failed; None while
            it continues.
        exit_code: of the process, with `outcome`.
        true_cluster: where the peer tells it.
    """

    open_streams: Count
    routes: Annotated[dict[PeerKey, Word], Field(max_length=ENTRIES_MAX)]
    outcome: Word | None
    exit_code: Annotated[int, Field(ge=0, le=255)] | None
    true_cluster: Count | None


class PeerStatus(HostStatus, ProcessStatus):
    """What a peer answers to an observer."""


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
    "waiting": RunStatus("outside its windows of work, or beyond its owner's bytes of the day"),
    "running": RunStatus("the start, or a round, is in progress", note="still running; the numbers are preliminary"),
    "completed": RunStatus("all rounds are done", ends=True),
    "alone": RunStatus(
        "as completed, but without any neighbor in most rounds, or without any model folded; or ended by `run.start.wait_for`",
        ends=True,
        down=True,
    ),
    "left": RunStatus("asked to leave", ends=True, note="stopped before the end of the run; started again, it resumes"),
    "refused": RunStatus("refused by every neighbor", ends=True, down=True),
    "removed": RunStatus("removed from the federation", ends=True),
    "behind": RunStatus("with a graph file that is too old for its neighbors", ends=True, down=True),
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
