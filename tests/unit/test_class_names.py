"""A class name means one thing in the whole project."""

import ast
from collections import defaultdict

from tests.unit.test_layering import TREES

# `peer.Graph` is the bootstrap's graph with the runs of a Python program.
FACES = {"Graph": ["coordinator_free_bootstrap.graph", "peer.api.graph"]}


def classes(trees):
    """Return the modules that define each class name."""
    found = defaultdict(list)
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(module)
    return found


def aliases(trees):
    """Return the modules with a type alias of each name: ``Name = ...`` in words, in a module."""
    found = defaultdict(list)
    for module, tree in trees.items():
        for node in tree.body:
            for target in node.targets if isinstance(node, ast.Assign) else []:
                if isinstance(target, ast.Name) and target.id[0].isupper() and not target.id.isupper():
                    found[target.id].append(module)
    return found


def defined_twice(trees):
    """Return the classes that several modules define, or one defines and another has a type alias of that name."""
    others = aliases(trees)
    found = {name: sorted(modules + others[name]) for name, modules in classes(trees).items()}
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def test_each_class_name_is_defined_once():
    assert defined_twice(TREES) == FACES


def test_a_second_definition_is_found():
    def found(*texts):
        return defined_twice({f"m{i}": ast.parse(text) for i, text in enumerate(texts)})

    assert found("class Ab: ...", "class B: ...", "A_SIZE = 1") == {}
    assert found("class Ab: ...", "def f():\n    class Ab: ...") == {"Ab": ["m0", "m1"]}
    assert found("class Ab: ...\nclass Ab: ...") == {"Ab": ["m0", "m0"]}
    assert found("class Ab: ...", "Ab = dict[str, int]") == {"Ab": ["m0", "m1"]}
