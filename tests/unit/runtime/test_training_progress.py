"""A long training logs its progress, at most once in `EVERY_S` seconds."""

from __future__ import annotations

import logging

from peer.runtime.progress import EVERY_S, TrainingProgress


def test_a_training_longer_than_a_minute_logs_its_steps(caplog):
    """Before, a round of an hour was silent."""
    now = [0.0]
    progress = TrainingProgress(60, clock=lambda: now[0])
    with caplog.at_level(logging.INFO, logger="peer"):
        for second in range(int(2.5 * EVERY_S)):
            now[0] = float(second)
            progress.step(round_index=2)
        progress.begin()
        progress.step(round_index=3)
    assert caplog.messages == [
        "training in round 3 of 60: 60 steps in 60 s",
        "training in round 3 of 60: 120 steps in 120 s",
    ]
