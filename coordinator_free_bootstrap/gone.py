"""Manifest keys that are gone, each with what replaces it: the error that refuses such a key says so."""

from __future__ import annotations

from coordinator_free_bootstrap.strict_json import shown

GONE = {
    "run.lockstep": "Its keys are constants of the protocol. Remove it.",
    "run.lockstep.wait_rounds_behind": "A neighbor up to 8 rounds behind is waited for in every run. Remove it.",
    "run.lockstep.rate_window_rounds": "A partitioned peer goes by its last 8 rounds in every run. Remove it.",
    "run.lockstep.retry_after_suspicions": (
        "A push is sent again after 4 times run.timeouts.suspicion_s without an answer. Remove it, or lower that."
    ),
    "run.learning_rate_decay": "Set run.learning_rate_schedule, to step:factor=0.8,every=5 for [0.8, 5].",
    "run.learning_rate_decay_rounds": "Set run.learning_rate_schedule, for example to step:factor=0.8,every=5.",
    "run.final.decay": "Set run.final.learning_rate_schedule, to step:factor=0.8,every=5 for [0.8, 5].",
    "run.final.decay_epochs": "Set run.final.learning_rate_schedule, for example to step:factor=0.8,every=5.",
    "run.allow_disconnected": "Make a graph file of each connected part; only algorithm local runs on several parts.",
    "run.start.rule": "Set run.start.wait_for to the same, or, in place of quorum, to a share of the neighbors such as 0.5.",
    "run.start.quorum": "Set run.start.wait_for to this share.",
    "run.limits.frame_bytes_max": "A frame has up to 1 MiB in every run. Remove it.",
    "run.limits.streams_per_neighbor": "A neighbor may have 8 streams open in every run. Remove it.",
    "run.limits.requests_per_second": "A neighbor may send 200 messages per second in every run. Remove it.",
    "run.timeouts.heartbeat_s": (
        "It is a fifth of run.timeouts.suspicion_s. Set run.timeouts.suspicion_s to 5 times it, or remove it."
    ),
    "run.timeouts.idle_transfer_s": (
        "It is twice run.timeouts.suspicion_s. Set run.timeouts.suspicion_s to half of it, or remove it."
    ),
    "run.limits.concurrent_receives": "2 models are received at a time in every run. Remove it.",
    "run.limits.rounds_ahead": "A neighbor may be 2 rounds ahead in every lockstep run. Remove it.",
    "run.limits.models_per_round": (
        "2 models of a neighbor and slot are folded in a round of every async run, 1 with run.screening.trimmed_mean. Remove it."
    ),
    "run.limits.weight_max": "Weights and sample counts up to 1e6 are accepted in every run. Remove it.",
    "run.limits.weight_min": "Weights from 1e-9 are sent and accepted in every run. Remove it.",
    "run.fold_order": "Set run.aggregation: sequential is the order of neighbor ids, on_arrival the order of arrival.",
    "run.stale": "Set run.stale_weight: 0 drops the arrivals of an earlier round, and above 0 they are folded.",
    "run.stale_rounds_max": (
        "With run.stale_weight above 0, an arrival up to 1 round old is folded in every run. Remove it."
    ),
}


def gone(key: str, value: object) -> dict[str, str]:
    """Return the removed keys in a key and its value, each with its error sentences.

    Args:
        key: dotted, for example ``run.lockstep``.
        value: what it was set to; the keys of an object that are gone are named in place of the object.
    """
    inner = {f"{key}.{name}": leaf for name, leaf in value.items()} if isinstance(value, dict) else {}
    keys = {name: leaf for name, leaf in inner.items() if name in GONE} or ({key: value} if key in GONE else {})
    return {name: f"expected no such key, got {shown(leaf)}. {GONE[name]}" for name, leaf in keys.items()}
