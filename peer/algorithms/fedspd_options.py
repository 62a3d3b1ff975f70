"""The options of FedSPD. "Addition" in a description: the option is not in the paper.

Source: FedSPD (arXiv 2410.18862); defaults follow the paper, or the authors' code where the paper gives no value.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from coordinator_free_bootstrap.options import EffectiveWhen

OF_SEVERAL = EffectiveWhen(lambda r: r.run.clusters > 1, "run.clusters is 1", by_run=True)
OF_SOFT_START = EffectiveWhen(
    lambda r: not (r.options.warm_rounds or r.options.hard_rounds),
    "the run begins with run.options.warm_rounds or run.options.hard_rounds",
)
OF_PRIVACY = EffectiveWhen(lambda r: r.options.dp_epsilon is not None, "run.options.dp_epsilon is not set")


class FedSpdOptions(BaseModel):
    """``run.options`` of algorithm ``fedspd``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    exchange: Literal["same_cluster", "broadcast"] = Field(
        "same_cluster",
        description="send the model to neighbors that selected the same cluster (same_cluster), or to all (broadcast)",
    )
    initialization: Literal["global", "local"] = Field(
        "global",
        description="first centers: equal on all peers (global), or drawn by each peer (local, the authors' code)",
    )
    init_labels: Annotated[Literal["random", "index_split"], OF_SEVERAL, OF_SOFT_START] = Field(
        "random",
        description="first labels: random, or by sample order (index_split, the authors' code), which reveals the true clusters "
        "if the samples are in their order",
    )
    first_round: Annotated[Literal["all_clusters", "paper"], OF_SOFT_START] = Field(
        "all_clusters",
        description="round 0 trains and exchanges all centers (all_clusters, the authors' code), or one (paper)",
    )
    first_round_factor: int = Field(2, ge=1, le=100, description="round 0 trains this many times longer")
    min_cluster_samples: int | None = Field(
        None, ge=0, description="least number of samples in a cluster; default 10 if the model has BatchNorm, else 0"
    )
    selection: Annotated[Literal["mixture", "partition"], OF_SEVERAL] = Field(
        "mixture",
        description="select a cluster with the probabilities of the mixture weights (mixture, the paper), or divide all peers by "
        "chance into S equal parts in each round, whatever their mixtures (partition, the authors' code)",
    )
    u_min: Annotated[
        float,
        EffectiveWhen(lambda r: r.options.selection == "mixture", "run.options.selection is partition"),
        OF_SEVERAL,
    ] = Field(0.0, ge=0, lt=1, description="least weight of a cluster in the selection; 0 is the paper")
    label_check: Annotated[bool, OF_SEVERAL] = Field(
        True, description="refuse a model that points along another own center more than along the one it names"
    )
    label_margin: Annotated[
        float, EffectiveWhen(lambda r: r.options.label_check, "run.options.label_check is false"), OF_SEVERAL
    ] = Field(
        0.1,
        ge=0,
        le=2,
        description="label_check: by how much the other center's cosine must exceed that of the named one",
    )
    align_every: Annotated[int, OF_SEVERAL] = Field(
        10, ge=0, description="rounds between alignments of labels by sketches; 0: no alignment"
    )
    sketch_size: Annotated[
        int,
        EffectiveWhen(
            lambda r: r.options.split == "updates" or r.options.align_every > 0,
            "run.options.align_every is 0, and run.options.split is noise",
        ),
        EffectiveWhen(lambda r: r.options.split == "updates" or r.run.clusters > 1, "run.clusters is 1", by_run=True),
    ] = Field(256, ge=1, le=4096, description="q: float32 values in a sketch")
    dp_epsilon: float | None = Field(
        None, gt=0, description="epsilon of the differential privacy of each sent update; default: no noise"
    )
    dp_delta: Annotated[float, OF_PRIVACY] = Field(
        0.01, gt=0, lt=1, description="delta of the differential privacy of each sent update"
    )
    dp_clip: Annotated[float, OF_PRIVACY] = Field(
        1.0, gt=0, description="largest Euclidean norm of a round's update before noise"
    )
    noisy_self: Annotated[bool, OF_PRIVACY] = Field(
        True,
        description="with dp_epsilon: continue with the noisy model; false: with the clean one, so epsilon holds in round 0 only",
    )
    warm_rounds: int = Field(
        0, ge=0, description="number of first rounds that average one center before it is copied to all; addition"
    )
    hard_rounds: int = Field(
        0, ge=0, description="number of rounds after the warm ones in which a peer's samples train one center; addition"
    )
    split: Annotated[
        Literal["noise", "updates"],
        EffectiveWhen(
            lambda r: r.options.warm_rounds and r.options.hard_rounds,
            "run.options.warm_rounds or run.options.hard_rounds is 0",
        ),
    ] = Field(
        "noise",
        description="center of a peer in hard rounds: that of lowest loss (noise), or by sketches of the first updates "
        "(updates); addition",
    )
    split_noise: Annotated[
        float, EffectiveWhen(lambda r: r.options.warm_rounds > 0, "run.options.warm_rounds is 0")
    ] = Field(
        0.01, gt=0, description="relative size of the noise that separates the copies of the warm center; addition"
    )
    center_labels: bool = Field(
        False,
        description="label samples by losses minus their mean over the sample's class, so that clusters do not become classes; "
        "addition",
    )
    personalize: Literal["average", "confident", "mixture"] = Field(
        "average",
        description="average the centers by mixture weight (average, Eq. 2), predict with the most confident center (confident, "
        "classification only; addition), or mix predictions by mixture weight (mixture; addition)",
    )
