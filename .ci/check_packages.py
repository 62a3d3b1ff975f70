"""Check the contents of a built source package and wheel against the list of the repository's files.

    git ls-files -z | python .ci/check_packages.py dist

The source package holds every tracked file but dot files and what is in dot folders. The wheel holds every tracked file of its
packages. Neither holds anything else, apart from the metadata that the build writes.
"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

PACKAGES = ("peer/", "coordinator_free_bootstrap/")
FILE_BYTES_MAX = 1 << 20


def source_files(path: Path) -> dict[str, int]:
    """Return the size of every file of a source package, by its path below the package's folder."""
    with tarfile.open(path) as archive:
        return {member.name.split("/", 1)[1]: member.size for member in archive.getmembers() if member.isfile()}


def wheel_files(path: Path) -> dict[str, int]:
    """Return the size of every file of a wheel, by its path."""
    with zipfile.ZipFile(path) as archive:
        return {info.filename: info.file_size for info in archive.infolist()}


def differences(found: dict[str, int], expected: set[str], generated: str) -> list[str]:
    """Return a sentence for each file that is missing, unexpected or too large.

    Args:
        found: path and size of each file in the package.
        expected: the tracked paths that the package must hold.
        generated: the folder of metadata that the build writes; its files are not compared.
    """
    kept = {path for path in found if not path.startswith(generated)}
    return [
        *(f"missing: {path}" for path in sorted(expected - kept)),
        *(f"unexpected: {path}" for path in sorted(kept - expected)),
        *(f"over {FILE_BYTES_MAX} bytes: {path}" for path, size in sorted(found.items()) if size > FILE_BYTES_MAX),
    ]


def main() -> None:
    """Compare both packages in a folder with the paths on standard input; end with exit code 1 if they differ."""
    folder = Path(sys.argv[1])
    tracked = {path for path in sys.stdin.read().split("\0") if path and Path(path).exists()}
    (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    public = {path for path in tracked if not any(part.startswith(".") for part in Path(path).parts)}
    in_source, in_wheel = source_files(source), wheel_files(wheel)
    for name in ("PKG-INFO", "setup.cfg"):  # written by the build
        in_source.pop(name, None)
    metadata = "-".join(wheel.name.split("-")[:2]) + ".dist-info/"
    problems = {
        source: differences(in_source, public, "coordinator_free.egg-info/"),
        wheel: differences(in_wheel, {path for path in public if path.startswith(PACKAGES)}, metadata),
    }
    if f"{metadata}licenses/LICENSE" not in in_wheel:
        problems[wheel].append("missing: the license text in the metadata")
    for path, sentences in problems.items():
        for sentence in sentences:
            print(f"{path}: {sentence}")
    if any(problems.values()):
        raise SystemExit(1)
    print(f"{source.name}: {len(in_source)} files; {wheel.name}: {len(in_wheel)} files; all as tracked, with LICENSE")


if __name__ == "__main__":
    main()
