"""A slow start says what it does, every few seconds; a fast one says nothing."""

import logging
import threading

from peer.runtime.slow_start import log_while


class Lines(logging.Handler):
    """Collects the messages, and tells when there are enough."""

    def __init__(self, enough):
        super().__init__()
        self.found, self._enough, self.there = [], enough, threading.Event()

    def emit(self, record):
        self.found.append(record.getMessage())
        if len(self.found) >= self._enough:
            self.there.set()


def test_a_slow_block_is_told_again_and_again_until_it_ends():
    """Before, a container was silent for 43 s while it imported PyTorch."""
    lines, log = Lines(3), logging.getLogger("peer")
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(lines)
    try:
        with log_while("importing PyTorch", every_s=0.01):
            assert lines.there.wait(60)
        count = len(lines.found)
        assert all(line.startswith("importing PyTorch, ") and line.endswith(" s so far") for line in lines.found)
        with log_while("loading", every_s=60):
            pass
        assert len(lines.found) == count and "slow start" not in {thread.name for thread in threading.enumerate()}
    finally:
        log.removeHandler(lines)
        log.setLevel(level)
