"""The options of FedSPD: what the paper leaves open, and what is OURS. Defaults follow the specification, section 2."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class FedSpdOptions(BaseModel):
    """``run.options`` of algorithm ``fedspd``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    exchange: Literal["same_cluster", "broadcast"] = Field(
        "same_cluster", description="models go to neighbors that selected the same cluster, or to all (multicast links)"
    )
    initialization: Literal["global", "local"] = Field(
        "global", description="S centers equal on all peers, or own draws"
    )
    init_labels: Literal["random", "index_split"] = Field(
        "random", description="index_split is the authors' code; it leaks the truth where samples are in its order"
    )
    first_round: Literal["all_clusters", "paper"] = Field(
        "all_clusters",
        description="the first round trains and exchanges all centers (the authors' code), or one (paper)",
    )
    first_round_factor: int = Field(2, ge=1, le=100, description="the first round trains this many times longer")
    min_cluster_samples: int | None = Field(
        None, ge=0, description="no cluster gets fewer samples; default 10 if the model has BatchNorm, else 0"
    )
    u_min: float = Field(0.0, ge=0, lt=1, description="floor of a cluster's weight in the selection; 0 is the paper")
    label_check: bool = Field(True, description="drop models that point along another own center than their tag's")
    label_margin: float = Field(0.1, ge=0, le=2, description="by how much its cosine must exceed the tag's")
    align_every: int = Field(10, ge=0, description="A: rounds between alignments of labels by sketches; 0: none")
    sketch_size: int = Field(256, ge=1, le=4096, description="q: float32 numbers per center and sketch")
    final_epochs: int = Field(10, ge=0, description="tau_final: local epochs after the last round")
    final_learning_rate: float | None = Field(None, gt=0, description="default: half of the first round's")
    dp_epsilon: float | None = Field(None, gt=0, description="differential privacy of each sent update; default: none")
    dp_delta: float = Field(0.01, gt=0, lt=1)
    dp_clip: float = Field(1.0, gt=0, description="C: largest norm of a round's update before noise")
    noisy_self: bool = Field(
        True,
        description="with privacy: go on with the noisy model oneself, or the clean one: epsilon then holds in round 0 only",
    )
    warm_rounds: int = Field(0, ge=0, description="OURS: rounds of plain averaging of one model before it is split")
    hard_rounds: int = Field(
        0, ge=0, description="OURS: rounds after the start in which a peer's samples stay together"
    )
    split: Literal["noise", "updates"] = Field(
        "noise",
        description="OURS: in hard rounds a peer trains its center of lowest loss, or its part by first updates",
    )
    split_noise: float = Field(
        0.01, gt=0, description="OURS: relative size of the common noise that splits the warm model"
    )
    center_labels: bool = Field(
        False, description="OURS: compare losses beside their mean over a class, so that clusters do not become classes"
    )
    personalize: Literal["average", "confident", "mixture"] = Field(
        "average",
        description="Eq. 2; or OURS: predict with the most confident center (classification), or mix predictions by u",
    )
