"""`peer.watch`: a page of a run, while it runs and afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from peer.api.arguments import named_in_python
from peer.view.options import PageOptions, page_options


@named_in_python()
def watch(directory: str | Path, **options: Unpack[PageOptions]) -> None:
    """Serve a page of a run until Ctrl-C (in Jupyter: interrupt the kernel), as `peer watch` does; prints a link.

    Args:
        directory: the ``out`` of a testbed or a simulation, a state directory, or a folder with several; running or ended.
        options: those of `peer watch`: ``listen``, a port, such as 7480, or ``host:port`` (default: any free port of 127.0.0.1;
            the page is plain HTTP: keep it on this machine), and ``name``, other host names under which a browser may ask for it.

    Raises:
        ConfigError: the extra ``page`` is not installed, or the address cannot be bound.
        UsageError: there is no such directory, or an option is wrong.
        GraphError, StorageError: a file of the run cannot be read.

    ``watch("bed")`` prints the link and does not return; an error comes at once:

    >>> watch("no-such-bed")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    coordinator_free_bootstrap.errors.UsageError: no-such-bed: expected ...
    """
    from peer.view.page.process import watch_directory

    host, port, names = page_options(options)
    watch_directory(Path(directory), print, host=host, port=port, names=names)
