"""What two machines must have in common so that a run gives the same bits on both: this package and torch."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from pathlib import Path

from peer import __version__


def fingerprint() -> dict[str, str]:
    """Return version and digest of this package's code, and the versions of torch and NumPy without the kind of their build."""
    digest = hashlib.sha256()
    for package in ("coordinator_free_bootstrap", "peer"):
        found = importlib.util.find_spec(package)
        assert found is not None and found.submodule_search_locations is not None
        (place, *_) = found.submodule_search_locations
        for path in sorted(Path(place).rglob("*.py")):
            digest.update(path.relative_to(place).as_posix().encode() + b"\0" + path.read_bytes())
    others = {name: importlib.metadata.version(name).partition("+")[0] for name in ("torch", "numpy")}
    return {"coordinator-free": f"{__version__}, code {digest.hexdigest()[:12]}"} | others


def differences(found: dict[str, str], wanted: dict[str, str]) -> list[str]:
    """Return a sentence part for each difference: ``torch 2.6 instead of 2.13``."""
    return [
        f"{name} {found.get(name, 'missing')} instead of {value}"
        for name, value in wanted.items()
        if found.get(name) != value
    ]
