"""A class of the engine or the host shares its name with no other class of the product."""

import ast
from collections import defaultdict
from pathlib import Path

import coordinator_free_bootstrap
import peer

ROOTS = [Path(package.__file__).parent for package in (peer, coordinator_free_bootstrap)]
OURS = {ROOTS[0] / "core", ROOTS[0] / "host"}


def test_no_class_of_core_and_host_shares_its_name():
    found = defaultdict(list)
    for path in (path for root in ROOTS for path in sorted(root.rglob("*.py")) if "generated" not in path.parts):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path)
    shared = {name: paths for name, paths in found.items() if len(paths) > 1 and OURS & {p.parent for p in paths}}
    assert not shared
