"""`import peer` offers the documented names, imports nothing heavy, and its docstrings' examples run."""

import ast
import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import peer
from coordinator_free_bootstrap import make_graph
from peer.bed.testbed.ports import on_free_ports

ROOT = Path(__file__).parents[3]
WITH_AN_EXAMPLE = [
    *("Algorithm", "Data", "Graph", "Manifest", "Preprocessing", "Run", "Shard", "Task", "Testbed"),
    *("join", "run", "run_async", "simulate", "watch"),
]
OF_ALGORITHMS = [  # what a subclass of Algorithm takes, returns and uses
    *(
        "Ability",
        "AlgorithmState",
        "ConfigError",
        "ConfigProblem",
        "EffectiveWhen",
        "Fields",
        "Follow",
        "Learner",
        "ModelHeader",
    ),
    *("NO_NUMBERS", "Numbers"),
    *(
        "Offer",
        "OptionsT",
        "Pass",
        "Predictor",
        "Refusal",
        "RefusalCode",
        "SampleUse",
        "Schema",
        "Select",
        "StateT",
        "Target",
        "TrainStats",
    ),
    *("TrainingPlan", "Vector", "Workspace", "accumulate", "array", "derive_seed", "fold", "generator", "measured"),
    *("training_fields", "weighted_sum"),
]
OF_OWN_LOOPS = ["Budget", "Metric", "Trained"]
OF_SPLITS_AND_MODELS = ["Model", "PeerSplit", "PoolSamples", "Split", "SplitInput", "SplitOptions"]
NAMES = sorted(WITH_AN_EXAMPLE + OF_ALGORITHMS + OF_OWN_LOOPS + OF_SPLITS_AND_MODELS)
WITH_EXAMPLES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in ("coordinator_free_bootstrap", "peer")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>>" in path.read_text()
]


def test_all_has_the_documented_names():
    assert peer.__all__ == NAMES
    assert set(NAMES) <= set(dir(peer))
    page = (ROOT / "docs" / "python.md").read_text()
    assert [name for name in NAMES if not re.search(rf"`(peer\.)?{name}\b", page)] == []


@pytest.mark.parametrize("name", WITH_AN_EXAMPLE)
def test_a_name_has_a_docstring_with_an_example(name):
    assert doctest.DocTestParser().get_examples(getattr(peer, name).__doc__)
    assert getattr(peer, name).__module__ in WITH_EXAMPLES  # so the test below runs it


def test_types_of_the_names_are_those_that_are_imported():
    tree = ast.parse((ROOT / "peer" / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    for line in block.body:
        for alias in line.names:
            assert getattr(importlib.import_module(line.module), alias.name) is getattr(peer, alias.name)
    assert sorted(alias.name for line in block.body for alias in line.names) == NAMES


def test_an_algorithm_needs_no_other_module_of_this_project():
    """The modules that signatures of `peer.Algorithm` name, which a subclass repeats, are all in `peer`."""
    source = (ROOT / "peer" / "algorithms" / "base.py").read_text()
    annotations = {
        name.id
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name != "__init__"
        for part in (*(each.annotation for each in node.args.args), node.returns)
        if part is not None
        for name in ast.walk(part)
        if isinstance(name, ast.Name)
    }
    ours = {
        alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module.startswith(("peer", "coordinator_free_bootstrap"))
        for alias in node.names
    }
    assert (annotations & ours) - set(NAMES) == {"InRun"}  # of `in_run`, which no algorithm overrides


# Modules that are parts of methods, which an algorithm near one of the kernel's takes from there; and three rare names.
METHODS = {"clustering", "dfca", "ensemble", "final_phase", "held_out", "labels", "mixture", "nearest", "personalize"}
METHODS |= {"seeding", "sketches"}
RARE = {"MIXTURE", "NUMBERS_MAX", "uniform"}


def kernel_imports(path):
    """Return what a module of the zoo imports from the kernel, as pairs of module and name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith(("peer.", "coordinator_free")):
            yield from ((node.module, alias.name) for alias in node.names if not node.module.startswith("peer.zoo"))


def test_the_algorithms_of_the_zoo_need_little_more_than_peer():
    """Each name of the algorithm interface that one of them uses is in `peer`, and is the same object there."""
    used = {pair for path in (ROOT / "peer" / "zoo" / "algorithms").glob("*.py") for pair in kernel_imports(path)}
    assert len(used) > 40
    methods = {f"peer.algorithms.{name}" for name in METHODS}
    other = {(m, n) for m, n in used if n not in NAMES and m not in methods and f"{m}.{n}" not in methods}
    assert {name for _, name in other} == RARE
    for module, name in used:
        if name in NAMES and name != "Graph":  # peer.Graph is its subclass
            assert getattr(peer, name) is getattr(importlib.import_module(module), name)


def test_the_example_of_a_package_imports_nothing_else_of_this_project():
    for path in (ROOT / "examples" / "package").rglob("*.py"):
        imported = {
            node.module
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(("peer", "coordinator_free"))
        }
        assert imported <= {"peer"}, path


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'peer' has no attribute 'Grph'"):
        peer.Grph  # noqa: B018


def test_import_peer_imports_nothing_heavy():
    heavy = ("torch", "grpc", "pandas", "numpy", "matplotlib", "networkx", "pydantic", "asyncio")
    program = f"import sys, peer; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout == "[]\n"


def test_there_are_modules_with_examples():
    assert {"peer", "peer.api.graph", "peer.lab.simulation"} <= set(WITH_EXAMPLES)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_docstrings_run(name, monkeypatch):
    # graphs of examples have the default ports, which may be in use
    monkeypatch.setattr("peer.api.graph.make_graph", lambda *args, **more: on_free_ports(make_graph(*args, **more)))
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0 and result.failed == 0
