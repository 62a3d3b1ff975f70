"""The size of an installation: what `pip install coordinator-free` brings, and what its extras add.

    python benchmarks/installed.py [--extras all hf ...] [--before COMMIT] [--save]

Nothing is installed. The script follows the requirements of this project through the metadata of the packages in the running
environment, and sums the sizes of their files, without bytecode and without Python, pip and setuptools. An extra whose packages
are missing here is an error. ``--before`` also follows the requirements of a commit, as its pyproject.toml states them.

torch is the build that is installed here: the one for CUDA is several gigabytes larger than the one for CPUs.
"""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from record import new_parser, record

ROOT = Path(__file__).parents[1]
OWN = ("peer", "coordinator_free_bootstrap")  # an editable installation lists no files
PROJECT = "coordinator-free"
COMPILED = ".pyc"


def requirements_of(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield what an installed package requires here, with these of its extras.

    Raises:
        LookupError: the package is not installed.
    """
    try:
        texts = distribution(name).requires or []
    except PackageNotFoundError:
        raise LookupError(
            f"expected {name} in this environment, got no such package. Install it, or leave its extra out"
        ) from None
    for requirement in map(Requirement, texts):
        markers = [{"extra": extra} for extra in extras or {""}]
        if requirement.marker is None or any(map(requirement.marker.evaluate, markers)):
            yield requirement


def closure(wanted: Iterable[Requirement]) -> set[str]:
    """Return the names of all packages that an installation of these requirements brings."""
    waiting, seen = list(wanted), set[tuple[str, frozenset[str]]]()
    while waiting:
        requirement = waiting.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key not in seen:
            seen.add(key)
            waiting.extend(requirements_of(*key))
    return {name for name, _ in seen}


def megabytes(names: Iterable[str]) -> float:
    """Return the size of the files of packages."""
    return sum(map(size, map(distribution, names))) / 1e6


def size(package: Distribution) -> int:
    """Return the bytes of a package's files."""
    if canonicalize_name(package.metadata["Name"]) == PROJECT:
        paths = [path for folder in OWN for path in (ROOT / folder).rglob("*")]
    else:
        paths = [Path(str(package.locate_file(file))) for file in package.files or []]
    return sum(path.stat().st_size for path in paths if path.suffix != COMPILED and path.is_file())


def requirements_at(commit: str) -> list[Requirement]:
    """Return the requirements that the project had at a commit."""
    command = ["git", "show", f"{commit}:pyproject.toml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return list(map(Requirement, tomllib.loads(done.stdout)["project"]["dependencies"]))


def main() -> None:
    """Print a row for the installation without extras, and one with each extra."""
    parser = new_parser(__doc__)
    extras = distribution(PROJECT).metadata.get_all("Provides-Extra") or []
    parser.add_argument("--extras", nargs="*", default=extras, help="one row each (default: all)")
    parser.add_argument("--before", metavar="COMMIT", help="also a row for the requirements of this commit")
    given = parser.parse_args()
    torch = distribution("torch").version
    installed = {"`coordinator-free`": [Requirement(PROJECT)]}
    installed |= {f"`coordinator-free[{extra}]`": [Requirement(f"{PROJECT}[{extra}]")] for extra in given.extras}
    if given.before:
        installed = {
            f"all requirements of commit {given.before}": [Requirement(PROJECT), *requirements_at(given.before)]
        } | installed
    rows = []
    for what, wanted in installed.items():
        names = closure(wanted)
        rows.append([what, f"{megabytes(names):.0f}", len(names), torch])
    record("installed", "Installed packages", ["environment", "MB", "packages", "torch"], rows, save=given.save)


if __name__ == "__main__":
    main()
