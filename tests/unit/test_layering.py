"""Imports run one way, and the protocol is pure: held by reading the imports of every module (docs/architecture.md)."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What a module belongs to, by the longest matching prefix, and how high that stands. A module may import its own layer and
# those below it.
LAYERS = {
    "coordinator_free_bootstrap": 0,
    "peer.core": 1,
    "peer.algorithms": 2,
    "peer.failpoints": 3,
    "peer.identity": 3,
    "peer.wire": 3,
    "peer.store": 3,
    "peer.learning": 3,
    "peer.tasks": 3,
    "peer.observe": 3,
    "peer": 4,  # runtime, assembly, testbed, ...
    "peer.cli": 5,
    "peer.__main__": 5,
}
PURE = ("coordinator_free_bootstrap", "peer.core", "peer.algorithms")
IMPURE = {
    *(
        "asyncio",
        "concurrent",
        "ctypes",
        "datetime",
        "fcntl",
        "grpc",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
    ),
    *("queue", "random", "sched", "secrets", "select", "selectors", "shutil", "signal", "socket", "ssl", "subprocess"),
    *("sys", "tempfile", "threading", "time", "torch"),
}
FILE_READERS = {"coordinator_free_bootstrap.graph_file": {"pathlib", "sys"}}
SEEDED = {"Generator", "Philox"}  # all that may be used of numpy.random: the rest holds or draws process-wide state


def modules():
    for package in ("coordinator_free_bootstrap", "peer"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if "generated" not in path.parts:
                parts = path.relative_to(ROOT).with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), ast.parse(path.read_text())


def imported(tree):
    """Every module that a syntax tree imports, wherever in it; ``from a import b`` may mean the module a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(name):
    prefixes = [prefix for prefix in LAYERS if name == prefix or name.startswith(prefix + ".")]
    return LAYERS[max(prefixes, key=len)] if prefixes else None


def upward(name, tree):
    return [other for other in imported(tree) if (layer(other) or 0) > layer(name)]


def impurities(name, tree):
    """Imports of the outside world, calls of `open`, and numpy's own random state."""
    allowed = FILE_READERS.get(name, set())
    found = [other for other in imported(tree) if other.split(".")[0] in IMPURE - allowed]
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("open", "input", "print")
        ):
            found.append(node.func.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "random":
            found += [f"numpy.random.{node.attr}"] if node.attr not in SEEDED else []
    return found


@pytest.mark.parametrize(("name", "tree"), [pytest.param(*module, id=module[0]) for module in modules()])
def test_imports_run_one_way(name, tree):
    assert upward(name, tree) == []


@pytest.mark.parametrize(
    ("name", "tree"), [pytest.param(*module, id=module[0]) for module in modules() if module[0].startswith(PURE)]
)
def test_the_protocol_is_pure(name, tree):
    assert impurities(name, tree) == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("peer.core.engine", "from peer.algorithms import base"),
        ("peer.core.engine", "import peer.runtime"),
        ("coordinator_free_bootstrap.graph", "from peer.core import schema"),
        ("peer.store.checkpoint", "from peer import runtime"),
        ("peer.runtime", "def f():\n    from peer.cli.main import main"),
    ],
)
def test_an_import_that_runs_up_is_seen(name, line):
    assert upward(name, ast.parse(line))


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "from os import path",
        "import grpc.aio",
        "def f():\n    import threading",
        "numpy.random.rand(3)",
        "x = open('file')",
    ],
)
def test_an_impurity_is_seen(line):
    assert impurities("peer.core.engine", ast.parse(line))
