"""Imports at the start of a process, without the garbage collector: with it they take a fifth more processor time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Pause the collector of cyclic garbage for a block of imports; afterwards it never visits the imported objects again.

    Modules live as long as the process, so that a collection among them finds nothing; torch alone has 500,000 objects.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
