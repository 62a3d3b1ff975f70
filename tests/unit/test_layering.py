"""Imports run one way, without circles, among files and among folders; the protocol is pure (docs/architecture.md)."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# The kernel, lowest first. A module may import its own package and those that stand before it.
FLOORS = (
    "coordinator_free_bootstrap",
    "peer.core",
    "peer.secure_sum",
    "peer.algorithms",
    "peer.failpoints",
    "peer.store",
    "peer.tasks",
    "peer.learning",
    "peer.host",
    "peer.identity",
    "peer.wire",
    "peer.observe",
    "peer.runtime",
    "peer.rings",
    "peer.api",
    "peer.cli",
    "peer.__main__",
)
PURE = (
    "coordinator_free_bootstrap",
    "peer.core",
    "peer.secure_sum",
    "peer.algorithms",
    "peer.host",
    "peer.zoo.algorithms",
)
FACE = "peer"  # its imports are for type checkers; it finds names by the table `peer.rings`
IMPURE = {
    *("asyncio", "concurrent", "ctypes", "datetime", "fcntl", "grpc", "io", "logging", "multiprocessing", "os"),
    *("pathlib", "queue", "random", "sched", "secrets", "select", "selectors", "shutil", "signal", "socket", "ssl"),
    *("subprocess", "sys", "tempfile", "threading", "time", "torch"),
}
FILE_READERS = {
    "coordinator_free_bootstrap.graph_file": {"pathlib", "sys"},
    "coordinator_free_bootstrap.installed": {"sys"},  # the path of packages, as importlib.metadata reads it
    "coordinator_free_bootstrap.ordinary_file": {"io", "os", "pathlib"},
    "coordinator_free_bootstrap.user_file": {"pathlib", "sys", "threading"},  # a process executes each file once
}
SEEDED = {"Generator", "Philox"}  # all that may be used of numpy.random: the rest holds or draws process-wide state


def sources():
    for package in ("coordinator_free_bootstrap", "peer"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if "generated" not in path.parts:
                parts = path.relative_to(ROOT).with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


TREES = {name: ast.parse(path.read_text()) for name, path in sources()}
PACKAGES = {name for name, path in sources() if path.name == "__init__.py"}


def imported(tree):
    """Yield (module, name): ``from a import b`` may mean the module a.b, or a name of a."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from ((node.module, alias.name) for alias in node.names)


def imported_modules(tree):
    """Return the modules of this project that a syntax tree imports."""
    found = set()
    for module, name in imported(tree):
        inner = f"{module}.{name}"
        target = inner if inner in TREES else module
        if target in TREES:
            found.add(target)
    return found


def rings():
    """Return which rings each ring may import, as the table in docs/architecture.md says."""
    text = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| `peer\.(\w+)` \| [^|]+ \| ([^|]+) \|$", text, re.MULTILINE)
    return {name: frozenset(re.findall(r"`(\w+)`", others)) for name, others in rows}


RINGS = rings()


def ring(name):
    found = name.split(".")[1:2]
    return found[0] if found and found[0] in RINGS else None


def floor(name):
    found = [i for i, package in enumerate(FLOORS) if name == package or name.startswith(package + ".")]
    return found[-1] if found else None


def upward(name, tree):
    """Return the imports that a module may not have: from the kernel up or to a ring, from a ring to one it does not list."""
    here, others = ring(name), imported_modules(tree)
    if here is not None:
        return sorted(other for other in others if ring(other) not in {None, here, *RINGS[here]})
    return sorted(other for other in others if ring(other) or (floor(other) or 0) > floor(name))


def circle(edges):
    """Return a circle of a graph {node: nodes}, or []."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        path.append(node)
        found = next((c for other in sorted(edges.get(node, ())) if (c := visit(other))), [])
        path.pop()
        done.add(node)
        return found

    return next((c for node in sorted(edges) if (c := visit(node))), [])


def file_edges():
    """Return the imports between files; a package that gathers its own modules is not a step of a circle."""
    edges = {name: imported_modules(tree) - {name} for name, tree in TREES.items()}
    return {
        name: {o for o in others if not (o in PACKAGES and name.startswith(o + "."))} for name, others in edges.items()
    }


def folder_edges():
    edges = defaultdict(set)
    for name, tree in TREES.items():
        here = name if name in PACKAGES else name.rpartition(".")[0]
        for other in imported_modules(tree):
            there = other if other in PACKAGES else other.rpartition(".")[0]
            if here != there and not here.startswith(there + ".") and not there.startswith(here + "."):
                edges[here].add(there)
    return dict(edges)


def impurities(name, tree):
    """Return imports of the outside world, calls of `open`, and uses of numpy's own random state."""
    allowed = FILE_READERS.get(name, set())
    found = [module for module, _ in imported(tree) if module.split(".")[0] in IMPURE - allowed]
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


def test_every_module_has_a_floor():
    assert [name for name in TREES if floor(name) is None and ring(name) is None and name != FACE] == []


def test_the_rings_are_known_and_form_no_circle():
    assert set(RINGS) == {"zoo", "lab", "bed", "view", "ops", "lightning", "transformers"}
    assert circle(RINGS) == []


def test_each_listed_import_between_rings_is_used():
    used = {(ring(name), ring(other)) for name, tree in TREES.items() for other in imported_modules(tree)}
    assert {(name, other) for name, others in RINGS.items() for other in others} <= used


@pytest.mark.parametrize("name", [name for name in TREES if name != FACE])
def test_imports_run_downward(name):
    assert upward(name, TREES[name]) == []


def test_no_circle_among_files():
    assert circle(file_edges()) == []


def test_no_circle_among_folders():
    assert circle(folder_edges()) == []


@pytest.mark.parametrize("name", [name for name in TREES if name.startswith(PURE)])
def test_the_protocol_is_pure(name):
    assert impurities(name, TREES[name]) == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("peer.core.engine", "from peer.algorithms import base"),
        ("peer.core.engine", "import peer.runtime.world"),
        ("coordinator_free_bootstrap.graph", "from peer.core import schema"),
        ("peer.store.checkpoint", "from peer.runtime import world"),
        ("peer.learning.learner", "from peer.wire.access import CallLimits"),
        ("peer.tasks.loading", "from peer.learning import learner"),
        ("peer.tasks.loading", "from peer.zoo.tasks import builtin"),
        ("peer.cli.run", "def f():\n    from peer.view.trackers.export import LiveExport"),
        ("peer.zoo.tasks.builtin", "from peer.view.report import report"),
        ("peer.store.state_dir", "from peer.identity.files import KeyFiles"),
        ("peer.runtime.world", "def f():\n    from peer.cli.main import main"),
    ],
)
def test_an_upward_import_is_found(name, line):
    assert upward(name, ast.parse(line))


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert circle({"a": {"b", "c"}, "b": {"c"}}) == []


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
def test_an_impurity_is_found(line):
    assert impurities("peer.core.engine", ast.parse(line))
