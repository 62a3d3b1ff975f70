"""Log lines during a slow start, every few seconds: importing PyTorch on a busy machine takes a minute, and is not a hang."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

EVERY_S = 5.0

log = logging.getLogger("peer")


@contextmanager
def log_while(work: str, every_s: float = EVERY_S) -> Iterator[None]:
    """Log what this process does, and for how long, while the block runs; a block shorter than `every_s` logs nothing.

    Args:
        work: such as "importing PyTorch".
        every_s: seconds between two lines.
    """
    ended, began = threading.Event(), time.monotonic()

    def log_progress() -> None:
        while not ended.wait(every_s):
            log.info("%s, %.0f s so far", work, time.monotonic() - began)

    thread = threading.Thread(target=log_progress, name="slow start", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
