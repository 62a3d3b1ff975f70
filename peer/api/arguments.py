"""Errors name what the reader wrote: options on the command line (``--data-root``), arguments in Python (``data_root``).

The program writes every error for the command line. What a Python program calls is wrapped in `named_in_python`, which
changes nothing in a verb of the command line (`named_on_command_line`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from coordinator_free_bootstrap.errors import PeerError
from coordinator_free_bootstrap.extras import named_packages
from peer.api.notebook import show_one_sentence

_COMMAND_OR_OPTION = re.compile(r"\bpeer(?: [a-z]+)+(?: [^;,]*)?|(?<![\w-])--(?P<option>[a-z][a-z-]*)")

_on_command_line = ContextVar("on_command_line", default=False)


def in_python(sentence: str) -> str:
    """Return an error's sentence with the names of Python arguments in place of options; whole commands stay.

    >>> in_python("--data-root: found an option that task 'digits' does not use; remove --data-root")
    "data_root: found an option that task 'digits' does not use; remove data_root"
    >>> in_python("bed: no results found; make some with: peer testbed --out bed")
    'bed: no results found; make some with: peer testbed --out bed'
    """

    def renamed(found: re.Match[str]) -> str:
        return found[0] if found["option"] is None else found["option"].replace("-", "_")

    return _COMMAND_OR_OPTION.sub(renamed, sentence)


@contextmanager
def named_in_python() -> Iterator[None]:
    """Convert the errors of a block, or of a function that it decorates, with `in_python`; a missing package is one of them."""
    try:
        with named_packages():
            yield
    except PeerError as error:
        if not _on_command_line.get():
            error.args = (in_python(str(error)),)
            show_one_sentence(error)
        raise


@contextmanager
def named_on_command_line() -> Iterator[None]:
    """Let the errors of a block name options, also those of the Python API."""
    token = _on_command_line.set(True)
    try:
        yield
    finally:
        _on_command_line.reset(token)
