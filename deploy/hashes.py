"""Print a requirements file with the SHA-256 digests of downloaded packages, for ``pip install --require-hashes``.

    pip download --no-deps -r constraints.txt -d wheels
    python deploy/hashes.py wheels > deploy/requirements-hashed.txt
    pip install --require-hashes --no-deps -r deploy/requirements-hashed.txt

Digests are of files, not of an index: every index with the same files fits. For another platform, Python or build of torch,
download there and name both folders: a package may have several digests.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import defaultdict
from pathlib import Path

_FILE = re.compile(r"(?P<name>[A-Za-z0-9_.]+?)-(?P<version>[0-9][^-]*?)(\+[^-]+)?(-.*\.whl|\.tar\.gz)")


def digests(folders: list[Path]) -> dict[str, set[str]]:
    """Return the digests of each ``name==version`` in the folders.

    Raises:
        SystemExit: a file name is not that of a package.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(path for folder in folders for path in folder.iterdir()):
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise SystemExit(f"{path}: expected a wheel or a source package. Remove the file.")
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
