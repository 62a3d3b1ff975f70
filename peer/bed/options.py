"""The options of `peer testbed`, the arguments of `peer.Testbed`, and the settings of the processes: each declared here only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypedDict, cast

from pydantic import Field

from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.options import Shown, model_of, parsed
from peer.runtime.local_options import Amp, CheckpointMinutes, DataRoot, Exports, GivenPath, StartFrom


class Computing(TypedDict, total=False):
    """How the processes of the peers compute, and on what; `peer testbed` reads them with ``--set``."""

    data_root: DataRoot
    threads: Annotated[
        int | None, Field(None, ge=1, description="PyTorch threads per peer. Default: cores divided by peers.")
    ]
    amp: Amp
    checkpoint_minutes: CheckpointMinutes
    start_from: StartFrom


class ProcessOptions(Computing, total=False):
    """Of the processes of the peers."""

    insecure: Annotated[bool, Field(False, description="Plaintext between peers, instead of TLS with generated keys.")]
    on_start_failure: Annotated[
        Literal["stop", "continue"] | None,
        Field(None, description="The other peers, when one cannot start: stop them, or continue without it."),
        Shown(default="stop if run.start.wait_for is all or everyone, so that they would wait for it"),
    ]


class BedOptions(ProcessOptions, total=False):
    """Of a testbed."""

    out: Annotated[GivenPath, Field(Path("out"), description="Folder for the peers' state, logs and models.")]
    fresh: Annotated[bool, Field(False, description="Delete an earlier run in --out.")]
    proxy: Annotated[bool, Field(False, description="Connect peers through fault proxies, which faults of edges need.")]
    export: Exports


def process_options(given: Mapping[str, object]) -> ProcessOptions:
    """Return all options of the processes; raises as `bed_options`."""
    return cast(ProcessOptions, _complete(ProcessOptions, given))


def bed_options(given: Mapping[str, object]) -> BedOptions:
    """Return all options of a testbed: those given, and the defaults of the others.

    Raises:
        UsageError: an option is unknown or out of range.
    """
    return cast(BedOptions, _complete(BedOptions, given))


def _complete(declared: type, given: Mapping[str, object]) -> dict[str, object]:
    given = {name: value for name, value in given.items() if value is not None}
    read = parsed(model_of(declared), given, error=UsageError, owner="a testbed")
    return {name: getattr(read, name) for name in type(read).model_fields}
