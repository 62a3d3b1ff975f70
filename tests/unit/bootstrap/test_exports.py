"""The public names are those of __all__, and the import loads no large library."""

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


def test_the_import_loads_neither_numpy_nor_networkx():
    code = "import sys, coordinator_free_bootstrap; print({'numpy', 'networkx', 'scipy', 'peer'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
