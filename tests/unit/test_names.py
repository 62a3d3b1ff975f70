"""A class name means one thing: who reads it in one module need not ask which of two is meant."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
# `peer.Graph` is the face in Python of what the bootstrap calls `Graph`: the content of one file.
FACES = {"Graph": {"peer/api/graph.py", "coordinator_free_bootstrap/graph.py"}}


def modules_of_classes(root):
    found = defaultdict(set)
    for folder in ("peer", "coordinator_free_bootstrap"):
        for path in (root / folder).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    found[node.name].add(path.relative_to(root).as_posix())
    return found


def repeated(root):
    return {name: modules for name, modules in modules_of_classes(root).items() if len(modules) > 1}


def test_a_class_name_is_defined_once():
    assert repeated(ROOT) == FACES


def test_a_second_class_of_the_same_name_is_found(tmp_path):
    for name in ("peer/a.py", "peer/ring/b.py", "coordinator_free_bootstrap/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("class Same: ...\n" if name != "peer/a.py" else "class Other: ...\n")
    assert repeated(tmp_path) == {"Same": {"peer/ring/b.py", "coordinator_free_bootstrap/c.py"}}
