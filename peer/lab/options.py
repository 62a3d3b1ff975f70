"""The options of a run in one process: those of `peer.simulate`, and of `peer experiment run`; each declared here only."""

from __future__ import annotations

from typing import Annotated, TypedDict

from pydantic import Field

from coordinator_free_bootstrap.options import Shown
from peer.learning.device import device_form
from peer.runtime.local_options import Amp, DataRoot, StartFrom, checked


class SimulatedOptions(TypedDict, total=False):
    """How a run in one process computes, and on what."""

    device: Annotated[
        str,
        checked(device_form),
        Field(
            "cpu",
            description="cpu, cuda, cuda:N, mps or auto; with Ray cpu or cuda. Not of processes, which are always on auto.",
        ),
        Shown(default="cpu; processes: auto"),
    ]
    amp: Amp
    data_root: DataRoot
    threads: Annotated[
        int,
        Field(
            1,
            ge=1,
            description="PyTorch threads, which may change the last bits, and receivers that fold at the same time. Not of "
            "processes.",
        ),
    ]
    start_from: StartFrom
    stacked: Annotated[
        bool | None, Field(None, description="Train all peers' models of a round as one. Default: on a GPU.")
    ]
