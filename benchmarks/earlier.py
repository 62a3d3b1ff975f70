"""An earlier commit of this repository whose peers take part in a run with those of today."""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = "tests/unit/bootstrap/defaults.json"  # of the wire version and the defaults, which must not change within it
PACKAGES = ("coordinator_free_bootstrap", "peer")


def earlier_commit() -> str | None:
    """Return the last commit before this one that changed `RECORD` in the present wire version; None where git has none.

    The newest that has today's record, unless this commit is the one that wrote it.
    """
    here = _git("rev-parse", "HEAD").decode().strip()
    for commit in _git("log", "--first-parent", "--format=%H", "--", RECORD).decode().split():
        if _wire_version(_git("show", f"{commit}:{RECORD}")) != _wire_version((ROOT / RECORD).read_bytes()):
            return None
        if commit != here:
            return commit
    return None


def _wire_version(record: bytes) -> int | None:
    return json.loads(record)["wire_version"] if record else None


def write_packages(commit: str, place: Path) -> Path:
    """Write the packages of a commit to a folder; the version that its peers tell ends with the commit."""
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit, *PACKAGES))) as archive:
        archive.extractall(place, filter="data")
    version = place / "peer" / "__init__.py"
    version.write_text(re.sub(r'(__version__ = "[^"]*)', rf"\1+{commit[:8]}", version.read_text()))
    return place


def _git(*words: str) -> bytes:
    """Return the output of git; empty where this is no repository."""
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=False).stdout
