"""What the kernel finds in the rings around it by name, when it is first used: verbs, names of the Python API, and two parts."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# verb of the command line -> (module, its function, or its group of verbs `app`)
VERBS = {
    "run": ("peer.cli.run", "run"),
    "health": ("peer.cli.health", "health"),
    "testbed": ("peer.bed.verbs.testbed", "testbed"),
    "chaos": ("peer.bed.verbs.chaos", "app"),
    "status": ("peer.view.verbs.status", "status"),
    "watch": ("peer.view.verbs.watch", "watch"),
    "keygen": ("peer.cli.keygen", "keygen"),
    "report": ("peer.view.verbs.report", "report"),
    "evaluate": ("peer.view.verbs.evaluate", "evaluate"),
    "predict": ("peer.view.verbs.evaluate", "predict"),
    "export": ("peer.view.verbs.export", "export"),
    "doctor": ("peer.ops.verbs.doctor", "doctor"),
    "list": ("peer.zoo.verbs.list", "list_names"),
    "graph": ("peer.cli.graph", "app"),
    "privacy": ("peer.view.verbs.privacy", "app"),
    "data": ("peer.zoo.verbs.data", "app"),
    "init": ("peer.ops.verbs.init", "init"),
    "task": ("peer.cli.task", "app"),
    "experiment": ("peer.lab.verbs.experiment", "app"),
    "deploy": ("peer.ops.verbs.deploy", "app"),
    "audit": ("peer.ops.verbs.audit", "app"),
    "state": ("peer.ops.verbs.state", "app"),
    "policy": ("peer.ops.verbs.policy", "app"),
}

# name in `peer` -> module
NAMES = {
    "Algorithm": "peer.algorithms.base",
    "Budget": "peer.tasks",
    "Data": "peer.zoo.tasks.own_data",
    "Graph": "peer.api.graph",
    "Metric": "peer.tasks",
    "Manifest": "coordinator_free_bootstrap.manifest",
    "Model": "peer.zoo.tasks.models",
    "PeerSplit": "peer.zoo.tasks.splits.plan",
    "PoolSamples": "peer.zoo.tasks.splits.plan",
    "Preprocessing": "peer.tasks",
    "Run": "peer.view.api.results",
    "Shard": "peer.tasks",
    "Split": "peer.zoo.tasks.splits",
    "SplitInput": "peer.zoo.tasks.splits.plan",
    "SplitOptions": "peer.zoo.tasks.splits.options",
    "Task": "peer.tasks",
    "Trained": "peer.tasks",
    "Testbed": "peer.bed.api.testbed",
    "join": "peer.api.joined",
    "run": "peer.api.one_peer",
    "run_async": "peer.api.one_peer",
    "simulate": "peer.lab.simulation",
    "watch": "peer.view.api.watching",
    # what a subclass of `Algorithm` takes and returns
    "Ability": "peer.algorithms.learner",
    "AlgorithmState": "peer.core.decisions",
    "Fields": "peer.algorithms.learner",
    "Follow": "peer.algorithms.learner",
    "Learner": "peer.algorithms.learner",
    "ModelHeader": "peer.core.messages",
    "NO_NUMBERS": "peer.core.messages",
    "Numbers": "peer.core.messages",
    "Offer": "peer.core.decisions",
    "OptionsT": "peer.algorithms.base",
    "Pass": "peer.core.messages",
    "Predictor": "peer.algorithms.predictor",
    "RefusalCode": "coordinator_free_bootstrap.errors",
    "Refusal": "coordinator_free_bootstrap.errors",
    "SampleUse": "peer.algorithms.private",
    "Schema": "peer.core.schema",
    "Select": "peer.core.messages",
    "StateT": "peer.algorithms.base",
    "Target": "peer.core.effects",
    "TrainStats": "peer.algorithms.learner",
    "TrainingPlan": "peer.algorithms.learner",
    "Vector": "peer.core.averaging",
    "Workspace": "peer.algorithms.workspace",
    # what its code uses
    "ConfigProblem": "coordinator_free_bootstrap.errors",
    "ConfigError": "coordinator_free_bootstrap.errors",
    "EffectiveWhen": "coordinator_free_bootstrap.options",
    "accumulate": "peer.core.averaging",
    "array": "peer.algorithms.saved_state",
    "derive_seed": "coordinator_free_bootstrap.seeds",
    "fold": "peer.core.averaging",
    "generator": "coordinator_free_bootstrap.seeds",
    "measured": "peer.algorithms.learner",
    "training_fields": "peer.algorithms.learner",
    "weighted_sum": "peer.algorithms.personalize",
}

# parts of `peer` that need packages of their own; `import peer` offers each as a module
MODULES = {"lightning": "peer.lightning", "transformers": "peer.transformers"}

# what others use of a ring by name -> module: events and trackers of a running peer, and the faults that `peer list` shows
PARTS = {
    "Alerts": "peer.ops.alerts",
    "FAULTS": "peer.bed.chaos.faults",
    "LiveExport": "peer.view.trackers.export",
}


def verb(name: str) -> Any:
    """Return a verb of the command line: a function, or a `typer.Typer` with verbs of its own."""
    return _found(*VERBS[name])


def name_of_api(name: str) -> Any:
    """Return what `import peer` offers under a name."""
    return _found(NAMES[name], name)


def module_of_api(name: str) -> Any:
    """Return a module of `import peer`."""
    return import_module(MODULES[name])


def part(name: str) -> Any:
    """Return a part of a ring."""
    return _found(PARTS[name], name)


def _found(module: str, attribute: str) -> Any:
    from coordinator_free_bootstrap.extras import named_packages  # here: `import peer` stays light

    with named_packages():
        return getattr(import_module(module), attribute)
