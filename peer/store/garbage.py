"""What Python's garbage collector need not visit: modules, and the peers of a simulated run while it lasts."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

_for_life = Event()  # gc.get_freeze_count tells it too, by counting millions of objects


def freeze_for_life() -> None:
    """Keep what exists out of collections until the process ends: modules live as long, so a collection finds nothing there."""
    _for_life.set()
    gc.freeze()


@contextmanager
def frozen_objects() -> Iterator[None]:
    """Keep what exists, and what a full collection leaves, out of later ones: else each visits all objects of all peers.

    Nothing after `freeze_for_life`: only all objects together can be thawed, and each later collection would visit the modules.
    """
    if _for_life.is_set():
        yield
        return

    def freeze(phase: str, collection: dict[str, int]) -> None:
        if phase == "stop" and collection["generation"] == 2:
            gc.freeze()

    gc.freeze()
    gc.callbacks.append(freeze)
    try:
        yield
    finally:
        gc.callbacks.remove(freeze)
        gc.unfreeze()
