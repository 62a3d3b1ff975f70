"""The package's public names are those of __all__, and importing it stays light."""

import subprocess
import sys

import coordinator_free_bootstrap


def test_all_is_sorted_and_complete():
    names = coordinator_free_bootstrap.__all__
    public = {
        name
        for name, value in vars(coordinator_free_bootstrap).items()
        if not name.startswith("_") and not isinstance(value, type(sys))
    }
    assert sorted(names) == sorted(set(names))
    assert public == set(names)


def test_importing_it_loads_neither_arrays_nor_graph_libraries():
    code = "import sys, coordinator_free_bootstrap; print({'numpy', 'networkx', 'scipy', 'peer'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
