"""Manifest keys that are gone, each with what replaces it: the error that refuses such a key says so."""

from __future__ import annotations

from coordinator_free_bootstrap.strict_json import shown

GONE = {
    "run.lockstep": "What it held are constants of the protocol. Remove it.",
    "run.lockstep.wait_rounds_behind": "A neighbor up to 8 rounds behind is waited for in every run. Remove it.",
    "run.lockstep.rate_window_rounds": "A partitioned peer goes by its last 8 rounds in every run. Remove it.",
    "run.lockstep.retry_after_suspicions": (
        "A push is sent again after 4 times run.timeouts.suspicion_s without an answer. Remove it, or lower that."
    ),
}


def gone(key: str, value: object) -> dict[str, str]:
    """Return the keys that are gone of a key and its value, each with the sentences that refuse it.

    Args:
        key: dotted, for example ``run.lockstep``.
        value: what it was set to; the keys of an object that are gone are named in place of the object.
    """
    inner = {f"{key}.{name}": leaf for name, leaf in value.items()} if isinstance(value, dict) else {}
    keys = {name: leaf for name, leaf in inner.items() if name in GONE} or ({key: value} if key in GONE else {})
    return {name: f"expected no such key, got {shown(leaf)}. {GONE[name]}" for name, leaf in keys.items()}
