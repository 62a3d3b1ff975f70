"""Errors in a notebook: one sentence, and the whole trace on request."""

from __future__ import annotations

import os
import traceback
from functools import partial

from coordinator_free_bootstrap.errors import PeerError

TRACE_VARIABLE = "PEER_TRACEBACK"  # of the environment


def show_one_sentence(error: PeerError) -> None:
    """Let IPython show the sentence of an error; it asks an exception for this method."""
    vars(error)["_render_traceback_"] = partial(_lines, error)


def _lines(error: PeerError) -> list[str]:
    if os.environ.get(TRACE_VARIABLE):
        return "".join(traceback.format_exception(error)).splitlines()
    return [f"{type(error).__name__}: {error}", f"(the whole trace: %env {TRACE_VARIABLE}=1)"]
