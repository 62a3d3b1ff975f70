"""The numbers of an experiment's table: what each case measured over its seeds, beside the paper's number."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from peer.core.metric import Metric

Spread = float | tuple[float, float]  # a mean; with half of its 95 % interval where there are two seeds or more
BEST, NOT_SEPARATED, NO_COMMON_SEED = "best", "not separated", "no common seed"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class CaseRow(_Part):
    """One case, in one setting if the experiment has settings. Shares are in percent; None: not measured, or no such number."""

    case: str
    setting: str | None = None
    seeds: int = Field(ge=1, description="runs behind the numbers")
    published: Spread | None = Field(None, description="the paper's number, with its standard deviation")
    measured: Spread | None = None
    to_best: Spread | Literal["best", "not separated", "no common seed"] | None = Field(
        None, description="mean difference to the best case on the same data, over the seeds that both have"
    )
    before_final: float | None = Field(None, description="the metric before the final phase")
    worst: Spread | None = Field(None, description="the metric of the worst peer")
    worst_tenth: float | None = Field(None, description="10th percentile over the peers")
    ari: float | None = Field(None, description="adjusted Rand index of learned and true clusters")
    clusters_right: tuple[int, int] | None = Field(
        None, description="runs in which each peer ended in its true cluster, of the runs with clusters"
    )
    mixture_error: float | None = None
    samples_right: float | None = Field(None, description="samples with their true cluster")
    class_explains: float | None = Field(None, description="samples with the commonest cluster of their class")
    truth_explains: float | None = Field(None, description="samples with the commonest cluster of their true one")
    links_to_renamed: tuple[float, float] | None = Field(
        None, description="links of peers with true labels to peers with renamed ones, in the first and the last round"
    )
    settled: float | None = Field(None, description="rounds until the last peer changed its cluster")
    models_sent: float | None = Field(None, description="by all peers")
    megabytes_sent: float | None = Field(None, description="a peer")
    cpu_seconds: float | None = Field(None, description="of the process, for all peers")
    held_megabytes: float | None = Field(None, description="of the peer that holds most")
    by_seed: dict[int, float] | None = Field(None, description="`measured` of each seed")

    @property
    def mark(self) -> str:
        """`BEST`, `NOT_SEPARATED`, or nothing for a row that is neither or cannot be compared."""
        if isinstance(self.to_best, tuple):
            return NOT_SEPARATED if abs(self.to_best[0]) <= self.to_best[1] else ""
        return self.to_best if self.to_best in (BEST, NOT_SEPARATED) else ""


class Total(_Part):
    """What a case reached and cost over all settings."""

    case: str
    mean: float | None = Field(None, description="of `measured` over the settings, if the case was run in all")
    to_best: Spread | Literal["best", "no common seed"] | None = Field(
        None, description="difference of `mean` to that of the best case, over the seeds that both have: one comparison"
    )
    megabytes_sent: float | None = None
    cpu_seconds: float | None = None
    held_megabytes: float | None = None
    seeds: tuple[int, ...]


class ResultTable(_Part):
    """One experiment at one scale."""

    experiment: str = Field(description="name of its file, without .toml")
    title: str
    note: str = Field("", description="what sets this table apart from another one of the same scale")
    metric: Metric
    scale: str
    peers: int
    mean_degree: float
    rounds: int
    backends: tuple[str, ...]
    device: str
    dates: tuple[str, ...] = Field(min_length=1, description="first and last day")
    machine: str
    minutes: float | None = Field(None, description="of all runs together")
    commands: tuple[str, ...]
    cautions: tuple[str, ...] = Field((), description="what a reader needs before comparing rows")
    rows: tuple[CaseRow, ...] = Field(min_length=1)
    totals: tuple[Total, ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        """What sets the table apart from the others of its experiment."""
        return self.note, self.scale, self.device, self.metric.name


def mean_of(value: Spread | None) -> float | None:
    """Return a number without its interval."""
    return value[0] if isinstance(value, tuple) else value
