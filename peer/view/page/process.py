"""The page of a directory, in this process or in one beside a testbed."""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from coordinator_free_bootstrap.extras import require

PACKAGES = ("starlette", "uvicorn")


def watch_directory(
    directory: Path,
    announce: Callable[[str], None],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    names: tuple[str, ...] = (),
) -> None:
    """Serve the page of a run until Ctrl-C or SIGTERM; `announce` gets a sentence with each link.

    Raises:
        ConfigError: the address cannot be bound.
        UsageError: there is no such directory, or the packages of the page are missing.
        GraphError: the graph file is not valid.
        StorageError: a file exists and cannot be read.
    """
    require(PACKAGES, "the page")
    from peer.view.page.access import kept_key
    from peer.view.page.serve import serve
    from peer.view.page.source import RunSource

    gc.set_threshold(100_000, 50)  # the events of a long run are many objects that stay
    serve(
        RunSource(directory),
        kept_key(directory),
        lambda link: announce(f"page: {link}"),
        host=host,
        port=port,
        names=names,
    )


@contextmanager
def beside(directory: Path, port: int = 0) -> Iterator[None]:
    """Serve the page of a directory from a process of its own while the block runs; it prints its links.

    Raises:
        UsageError: the packages of the page are missing.
    """
    require(PACKAGES, "the page")
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(directory, port), name="page", daemon=True
    )
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _serve(directory: Path, port: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the testbed, which ends this process
    watch_directory(directory, lambda sentence: print(sentence, flush=True), port=port)
