"""Turn a folder of downloaded packages into a requirements file with their SHA-256 digests, for ``pip install --require-hashes``.

    pip download --no-deps -r constraints.txt -d wheels
    python deploy/hashes.py wheels > deploy/requirements-hashed.txt
    pip install --require-hashes --no-deps -r deploy/requirements-hashed.txt

Digests belong to files, not to an index: any index that has the same files will do. For another platform, Python, or build of
torch, download there and give both folders: a package may have several digests.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import defaultdict
from pathlib import Path

_FILE = re.compile(r"(?P<name>[A-Za-z0-9_.]+?)-(?P<version>[0-9][^-]*?)(\+[^-]+)?(-.*\.whl|\.tar\.gz)")


def digests(folders: list[Path]) -> dict[str, set[str]]:
    """Return ``name==version`` of every package file in the folders, with its digests.

    Raises:
        SystemExit: a file's name is no package's.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(path for folder in folders for path in folder.iterdir()):
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise SystemExit(f"{path}: no wheel and no source package")
        name = re.sub(r"[-_.]+", "-", match["name"]).lower()
        found[f"{name}=={match['version']}"].add(hashlib.sha256(path.read_bytes()).hexdigest())
    return found


def main() -> None:
    """Print the requirements."""
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    for requirement, hashes in sorted(digests([Path(name) for name in sys.argv[1:]]).items()):
        print(" \\\n".join([requirement, *(f"    --hash=sha256:{digest}" for digest in sorted(hashes))]))


if __name__ == "__main__":
    main()
