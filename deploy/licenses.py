"""Collect the licenses of all installed Python packages into a folder.

    python deploy/licenses.py /usr/share/licenses

The folder gets one subfolder for each package, with the license, copying, notice and author files of its metadata, and
``index.tsv``: name, version, declared license and number of files of each package. deploy/Dockerfile runs this during the build.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, PackagePath, distributions
from pathlib import Path

_TEXT = re.compile(r"(licen[cs]e|copying|notice|authors|copyright)", re.IGNORECASE)
_METADATA = re.compile(r".*\.(dist|egg)-info")


def declared_license(package: Distribution) -> str:
    """Return the license that a package's metadata declares, in one line; empty if it declares none."""
    fields = {name: package.metadata.get_all(name) or [] for name in ("License-Expression", "License", "Classifier")}
    stated = "\n".join(fields["License-Expression"] or fields["License"])
    first = next((line.strip() for line in stated.splitlines() if line.strip()), "")
    classifiers = [value for value in fields["Classifier"] if value.startswith("License ::")]
    return first or "; ".join(value.rsplit(" :: ", 1)[-1] for value in classifiers)


def license_files(package: Distribution) -> list[PackagePath]:
    """Return the paths of a package's license texts: those in its metadata folder, as its file list gives them."""
    found: list[PackagePath] = []
    for path in package.files or []:
        inside = path.parts[1:] if _METADATA.fullmatch(path.parts[0]) else ()
        if inside and (inside[0] == "licenses" or (len(inside) == 1 and _TEXT.match(inside[0]))):
            found.append(path)
    return found


def collect(packages: Iterable[Distribution], out: Path) -> list[str]:
    """Write the licenses of some packages and their index into a folder; return the names of packages without any license."""
    rows, without = ["name\tversion\tdeclared license\tfiles"], []
    for package in sorted(packages, key=lambda package: package.name.lower()):
        texts, declared = license_files(package), declared_license(package)
        if not texts and not declared:
            without.append(package.name)
        for path in texts:
            inside = path.parts[2:] if path.parts[1] == "licenses" else path.parts[1:]
            target = out / package.name / Path(*inside)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(Path(str(package.locate_file(path))).read_bytes())
        rows.append(f"{package.name}\t{package.version}\t{declared}\t{len(texts)}")
    out.mkdir(parents=True, exist_ok=True)
    (out / "index.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return without


def main() -> None:
    """Collect into the folder of the command line.

    Raises:
        SystemExit: no folder was given, or a package has neither a license file nor a declared license.
    """
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    if without := collect(distributions(), Path(sys.argv[1])):
        raise SystemExit(f"packages with neither a license file nor a declared license: {', '.join(without)}")


if __name__ == "__main__":
    main()
