"""A Python process as in a bare installation: the packages of extras cannot be found.

`environment` puts this file on PYTHONPATH as sitecustomize.py; it works alone, as that process has no other file of the tests.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

HIDDEN = "HIDDEN_PACKAGES"  # environment variable: names, joined by commas


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a process without the packages of extras; the folder gets its sitecustomize.py."""
    from coordinator_free_bootstrap.extras import EXTRAS

    (folder / "sitecustomize.py").write_text(Path(__file__).read_text())
    return os.environ | {"PYTHONPATH": str(folder), HIDDEN: ",".join(EXTRAS)}


class WithoutExtras(PathFinder):
    """Finds what is installed, except the hidden packages."""

    hidden = frozenset(os.environ.get(HIDDEN, "").split(","))

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return None for a hidden package, as for one that is not installed."""
        return None if fullname.partition(".")[0] in cls.hidden else super().find_spec(fullname, path, target)


if __name__ == "sitecustomize":
    sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutExtras
