"""Federated learning without a server: one process per client, models streamed between graph neighbors.

The Python API (docs/python.md) is the names in ``__all__``. They are imported when they are first used, so that
``import peer`` stays light.

>>> import peer
>>> graph = peer.Graph.make("ring", peers=4, run={"algorithm": "dfca", "rounds": 2})
>>> peer.simulate(graph, progress=False).metrics["rounds"]
2
"""

from typing import TYPE_CHECKING, Any

from peer.rings import MODULES, NAMES, module_of_api, name_of_api

if TYPE_CHECKING:
    from coordinator_free_bootstrap.errors import ConfigError as ConfigError
    from coordinator_free_bootstrap.errors import ConfigProblem as ConfigProblem
    from coordinator_free_bootstrap.errors import Refusal as Refusal
    from coordinator_free_bootstrap.errors import RefusalCode as RefusalCode
    from coordinator_free_bootstrap.manifest import Manifest as Manifest
    from coordinator_free_bootstrap.options import EffectiveWhen as EffectiveWhen
    from coordinator_free_bootstrap.seeds import derive_seed as derive_seed
    from coordinator_free_bootstrap.seeds import generator as generator
    from peer.algorithms.base import Algorithm as Algorithm
    from peer.algorithms.base import OptionsT as OptionsT
    from peer.algorithms.base import StateT as StateT
    from peer.algorithms.learner import Ability as Ability
    from peer.algorithms.learner import Fields as Fields
    from peer.algorithms.learner import Follow as Follow
    from peer.algorithms.learner import Learner as Learner
    from peer.algorithms.learner import TrainingPlan as TrainingPlan
    from peer.algorithms.learner import TrainStats as TrainStats
    from peer.algorithms.learner import measured as measured
    from peer.algorithms.learner import training_fields as training_fields
    from peer.algorithms.personalize import weighted_sum as weighted_sum
    from peer.algorithms.predictor import Predictor as Predictor
    from peer.algorithms.private import SampleUse as SampleUse
    from peer.algorithms.saved_state import array as array
    from peer.algorithms.workspace import Workspace as Workspace
    from peer.api.graph import Graph as Graph
    from peer.api.joined import join as join
    from peer.api.one_peer import run as run
    from peer.api.one_peer import run_async as run_async
    from peer.bed.api.testbed import Testbed as Testbed
    from peer.core.averaging import Vector as Vector
    from peer.core.averaging import accumulate as accumulate
    from peer.core.averaging import fold as fold
    from peer.core.decisions import AlgorithmState as AlgorithmState
    from peer.core.decisions import Offer as Offer
    from peer.core.effects import Target as Target
    from peer.core.messages import NO_NUMBERS as NO_NUMBERS
    from peer.core.messages import ModelHeader as ModelHeader
    from peer.core.messages import Numbers as Numbers
    from peer.core.messages import Pass as Pass
    from peer.core.messages import Select as Select
    from peer.core.schema import Schema as Schema
    from peer.lab.simulation import simulate as simulate
    from peer.tasks import Budget as Budget
    from peer.tasks import Metric as Metric
    from peer.tasks import Preprocessing as Preprocessing
    from peer.tasks import Shard as Shard
    from peer.tasks import Task as Task
    from peer.tasks import Trained as Trained
    from peer.view.api.results import Run as Run
    from peer.view.api.watching import watch as watch
    from peer.zoo.tasks.models import Model as Model
    from peer.zoo.tasks.own_data import Data as Data
    from peer.zoo.tasks.splits import Split as Split
    from peer.zoo.tasks.splits.options import SplitOptions as SplitOptions
    from peer.zoo.tasks.splits.plan import PeerSplit as PeerSplit
    from peer.zoo.tasks.splits.plan import PoolSamples as PoolSamples
    from peer.zoo.tasks.splits.plan import SplitInput as SplitInput

__version__ = "0.1.0"

__all__ = sorted(NAMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    """Import a name of the API when it is first used."""
    if name in MODULES:
        return module_of_api(name)
    if name not in NAMES:
        raise AttributeError(f"module 'peer' has no attribute {name!r}")
    found = globals()[name] = name_of_api(name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *NAMES, *MODULES})
