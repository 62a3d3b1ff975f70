"""Errors name what the reader wrote: options on the command line (``--data-root``), arguments in Python (``data_root``).

Messages name an `Option`. What a Python program calls is wrapped in `named_in_python`, which changes nothing in a verb of the
command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from coordinator_free_bootstrap.errors import PeerError, face, names_for
from coordinator_free_bootstrap.extras import named_packages
from peer.api.notebook import show_one_sentence


@contextmanager
def named_in_python() -> Iterator[None]:
    """Name arguments of Python in the errors of a block, or of a function that it decorates; a missing package is one of them."""
    with names_for("python"):
        try:
            with named_packages():
                yield
        except PeerError as error:
            if face() == "python":
                if error.problem is not None:  # it may come from a thread, which does not know the face
                    error.args = (str(error.problem),)
                show_one_sentence(error)
            raise
