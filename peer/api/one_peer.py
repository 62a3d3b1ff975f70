"""`peer.run` and `peer.run_async`: one peer in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import ConfigError, UsageError
from coordinator_free_bootstrap.rates import parse_rate
from coordinator_free_bootstrap.validation import refuse_without
from peer.api.choices import AlgorithmChoice, TaskChoice, chosen
from peer.api.results import Run

if TYPE_CHECKING:
    from peer.runtime.assembly import LocalSettings

log = logging.getLogger("peer")


class LocalOptions(TypedDict, total=False):
    """What each device decides for itself: the options of `peer run`, with the same names, defaults and meanings."""

    state_dir: str | Path
    listen: str
    data_root: str | Path
    shard: str | Path
    device: str
    threads: int
    download: bool
    cert: str | Path
    key: str | Path
    certs: str | Path
    ca: str | Path
    insecure: bool
    insecure_anywhere: bool
    upload_limit: str
    download_limit: str
    metrics_port: int
    metrics_host: str
    require_own_address: bool
    proxy: bool
    export: str | Sequence[str]


_PATHS = frozenset({"state_dir", "data_root", "shard", "cert", "key", "certs", "ca"})


def run(
    peer_id: int,
    graph: Graph,
    task: TaskChoice = None,
    *,
    algorithm: AlgorithmChoice = None,
    **options: Unpack[LocalOptions],
) -> Run:
    """Run one peer in this process until the run is completed, as `peer run` does, and return what it left.

    Ctrl-C asks the peer to leave; with the same ``state_dir`` it resumes later. Other signals stay with the program.

    Args:
        peer_id: id of this peer in the graph.
        graph: the graph that all peers share.
        task: a `Task` object, or a value of ``run.task``; every peer must give the same. Default: the graph's.
        algorithm: a subclass of `Algorithm`, or a value of ``run.algorithm``; every peer must give the same.
        options: those of `peer run`: ``state_dir`` (default ``state/peer-<id>``), ``listen``, ``device``, ``certs``, ...

    Raises:
        PeerError: as `peer run` says, by class: `ConfigError`, `TaskError`, `IdentityError`, `DivergedError`, ...
        UsageError: this thread has a running event loop, as in Jupyter; use ``await peer.run_async(...)``.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run_async(peer_id, graph, task, algorithm=algorithm, **options))
    raise UsageError("peer.run: found a running event loop; use: await peer.run_async(...)")


async def run_async(
    peer_id: int,
    graph: Graph,
    task: TaskChoice = None,
    *,
    algorithm: AlgorithmChoice = None,
    **options: Unpack[LocalOptions],
) -> Run:
    """Run one peer on the running event loop; see `run`. A cancelled call leaves the run first.

    Data are loaded on another thread, and the peer trains on threads of its own, so the loop stays responsive.
    """
    from peer.observe.trackers.export import LiveExport
    from peer.runtime.process import opened, run_to_end

    graph, task_object = chosen(graph, task, algorithm)
    exports = options.pop("export", ())
    settings = _settings(peer_id, options, task_object)
    live = LiveExport(settings.state_dir, [exports] if isinstance(exports, str) else exports)
    world = await asyncio.to_thread(opened, peer_id, graph, settings)
    live.start()
    try:
        status = await run_to_end(world)
    finally:
        await asyncio.to_thread(live.finish)
    if live.problem:
        log.warning(live.problem)
    if status == "refused":
        raise ConfigError(
            f"peer {peer_id}: refused by every neighbor, because its manifest, graph, schema or release is another; "
            f"{settings.state_dir / 'history.jsonl'} and the log have each neighbor's reason"
        )
    return Run(settings.state_dir, task=task_object)


def _settings(peer_id: int, options: LocalOptions, task: Any) -> LocalSettings:
    from peer.runtime.assembly import LocalSettings
    from peer.wire.proxy import HttpProxy

    if unknown := sorted(options.keys() - LocalOptions.__annotations__.keys()):
        raise UsageError(
            f"peer.run: found the option {unknown[0]!r}; allowed: {', '.join(sorted(LocalOptions.__annotations__))}"
        )
    given: dict[str, Any] = {
        key: Path(str(value)) if key in _PATHS else value for key, value in options.items() if value is not None
    }
    plaintext = bool(given.get("insecure") or given.get("insecure_anywhere"))
    refuse_without("with --metrics-port", "metrics_port" in given, metrics_host=given.get("metrics_host"))
    refuse_without(
        "without plaintext", not plaintext, **{key: given.get(key) for key in ("cert", "key", "certs", "ca")}
    )
    for key in ("upload_limit", "download_limit"):
        if key in given:
            given[key] = parse_rate(str(given[key]), f"--{key.replace('_', '-')}")
    given["proxy"] = HttpProxy.chosen(bool(given.get("proxy")))
    given.setdefault("state_dir", Path("state") / f"peer-{peer_id}")
    return LocalSettings(**given, task=task, signals=False, check_task=True)
