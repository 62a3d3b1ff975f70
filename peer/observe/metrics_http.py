"""An HTTP server for ``/metrics`` and no other path."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from typing_extensions import override

PATH = "/metrics"
SILENT_S = 10.0  # for which a connection may be silent


class _MetricsServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _MetricsServer6(_MetricsServer):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    timeout = SILENT_S

    @override
    def log_message(self, *_: object) -> None:
        """Log nothing: a scrape comes every few seconds."""


def serve(registry: CollectorRegistry, port: int, host: str) -> tuple[WSGIServer, threading.Thread]:
    """Serve ``/metrics`` in a thread; `WSGIServer.shutdown` of the first result ends it.

    Raises:
        OSError: the port cannot be bound.
    """
    server = make_server(
        host, port, _only_metrics(registry), _MetricsServer6 if ":" in host else _MetricsServer, _Quiet
    )
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    return server, thread


def _only_metrics(registry: CollectorRegistry) -> Callable[..., Iterable[bytes]]:
    """Return the application: 404 for another path than ``/metrics``, 405 for another method than GET and HEAD."""
    metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, object], start_response: Callable[..., object]) -> Iterable[bytes]:
        text = [("Content-Type", "text/plain; charset=utf-8")]
        if environ.get("PATH_INFO") != PATH:
            start_response("404 Not Found", text)
            return [f"expected {PATH}, got another path\n".encode()]
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            start_response("405 Method Not Allowed", [*text, ("Allow", "GET, HEAD")])
            return [b"expected GET or HEAD, got another method\n"]
        content: Iterable[bytes] = metrics(environ | {"REQUEST_METHOD": "GET"}, start_response)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else content

    return answer
