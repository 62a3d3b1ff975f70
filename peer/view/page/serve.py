"""Serve the page of a run until it is stopped: the link that opens it, and a new one whenever the last is used up."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem, Option
from peer.view.page.access import LOOPBACK, Access
from peer.view.page.server import Source, page_app

JOIN_S = 0.5
STOP_S = 1  # for streams to end when the server stops


def serve(
    source: Source,
    key: bytes,
    announce: Callable[[str], None],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    names: tuple[str, ...] = (),
) -> None:
    """Serve the page in this thread until Ctrl-C or SIGTERM.

    Args:
        source: the run.
        key: secret of the cookies, see `peer.view.page.access.Access`.
        announce: gets the address with the token: at the start, and again whenever one is used up.
        host: address to listen on.
        port: 0: any free port.
        names: allowed in the Host header, beside those of this machine and `host`.

    Raises:
        ConfigError: the address cannot be bound.
    """
    import uvicorn

    listener = bound(host, port)
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    base = f"http://{f'[{shown}]' if ':' in shown else shown}:{listener.getsockname()[1]}/"
    access = Access(key, lambda token: announce(f"{base}?token={token}"))
    app = page_app(source, access, LOOPBACK | {host.lower(), *(name.lower() for name in names)})
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=STOP_S,
        server_header=False,
        date_header=False,
    )
    announce(f"{base}?token={access.token}")
    server = uvicorn.Server(config)
    if not _in_event_loop():
        server.run(sockets=[listener])
        return
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="page server", daemon=True)
    thread.start()
    try:
        while thread.is_alive():  # a join without a limit would not see Ctrl-C on every system
            thread.join(JOIN_S)
    finally:
        server.should_exit = True
        thread.join()


def _in_event_loop() -> bool:
    """Return whether this thread runs an event loop, as a notebook does: a second one needs another thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def bound(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        ConfigError: the address cannot be bound.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        raise ConfigError(
            ConfigProblem(
                Option("listen"),
                "an address of this machine and a free port",
                f"{host}:{port} ({error.strerror or error})",
            )
        ) from error
    return listener
