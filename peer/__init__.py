"""Federated learning without a server: one process per client, models streamed between graph neighbors.

The Python API (docs/python.md) is the names in ``__all__``. They are imported when they are first used, so that
``import peer`` stays light.

>>> import peer
>>> graph = peer.Graph.make("ring", peers=4, run={"algorithm": "dfca", "rounds": 2})
>>> peer.simulate(graph, progress=False).metrics["rounds"]
2
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator_free_bootstrap.manifest import Manifest as Manifest
    from peer.algorithms.base import Algorithm as Algorithm
    from peer.api.graph import Graph as Graph
    from peer.api.one_peer import run as run
    from peer.api.one_peer import run_async as run_async
    from peer.bed.api.testbed import Testbed as Testbed
    from peer.lab.simulation import simulate as simulate
    from peer.tasks import Data as Data
    from peer.tasks import Preprocessing as Preprocessing
    from peer.tasks import Shard as Shard
    from peer.tasks import Task as Task
    from peer.view.api.results import Run as Run
    from peer.view.api.watching import watch as watch

__version__ = "0.1.0"

_PLACES = {
    "Algorithm": "peer.algorithms.base",
    "Data": "peer.tasks",
    "Graph": "peer.api.graph",
    "Manifest": "coordinator_free_bootstrap.manifest",
    "Preprocessing": "peer.tasks",
    "Run": "peer.view.api.results",
    "Shard": "peer.tasks",
    "Task": "peer.tasks",
    "Testbed": "peer.bed.api.testbed",
    "run": "peer.api.one_peer",
    "run_async": "peer.api.one_peer",
    "simulate": "peer.lab.simulation",
    "watch": "peer.view.api.watching",
}
__all__ = sorted(_PLACES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    """Import a name of the API when it is first used."""
    if name not in _PLACES:
        raise AttributeError(f"module 'peer' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
