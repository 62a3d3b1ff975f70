"""The page ``/metrics`` of a process that runs a peer: from its start to its end, also before, between and after runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric as Family

from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem, Option
from peer.observe.metrics import PeerMetrics, StateGauge
from peer.observe.metrics_http import serve
from peer.wire.ports import why_not_bound


class MetricsPage:
    """What ``/metrics`` answers: the process, the state of the run, and the metrics of the peer once its task is known."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._process, self._before = CollectorRegistry(), CollectorRegistry()
        ProcessCollector(registry=self._process)
        self._state = StateGauge(self._before)
        self._peer: PeerMetrics | None = None

    def show(self, make: Callable[[], PeerMetrics]) -> PeerMetrics:
        """Return the metrics of the peer; in later windows of work those of the first, so that counters only grow."""
        self._peer = self._peer or make()
        return self._peer

    def set_state(self, state: str) -> None:
        """Set the state of the run; see `StateGauge`."""
        self._state.set(state)
        if self._peer:
            self._peer.run_state.set(state)

    def collect(self) -> Iterator[Family]:
        """Yield all metrics; the registry asks for them at each scrape."""
        yield from self._process.collect()
        yield from (self._peer.registry if self._peer else self._before).collect()


@contextmanager
def metrics_page(port: int, host: str = "127.0.0.1") -> Iterator[MetricsPage]:
    """Serve a page while the block runs, and yield it.

    Raises:
        ConfigError: the port cannot be bound.
    """
    page = MetricsPage()
    try:
        server, thread = serve(page.registry, port, host)
    except OSError as error:
        got = f"{host}:{port}: the address {why_not_bound(host, port) or f'cannot be bound ({error.strerror})'}"
        fix = "Choose another port. (docs/trouble.md#port-in-use)"
        problem = ConfigProblem(Option("metrics"), "a free port of this machine", got, fix)
        raise ConfigError(problem) from error
    try:
        yield page
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
