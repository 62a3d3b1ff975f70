"""Write the software bill of materials of an image: CycloneDX JSON with its Python and Debian packages.

    python deploy/sbom.py coordinator-free > sbom.json      # the image's name; needs the docker client
    pip-audit, grype, trivy and the like read it

The packages are listed in a container of the image, without network: the bill has what is installed, not what was requested.
"""

from __future__ import annotations

import json
import subprocess
import sys

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

# Runs inside the image: rows of (kind, name, version).
_LIST = """
import json, subprocess
from importlib.metadata import distributions
rows = {("pypi", d.name, d.version) for d in distributions()}
listed = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}\\n"], check=True, capture_output=True, text=True).stdout
rows |= {("deb", *line.split()) for line in listed.splitlines()}
print(json.dumps(sorted(rows)))
"""


def packages_of(image: str) -> list[tuple[str, str, str]]:
    """List the packages of an image: kind (``pypi`` or ``deb``), name and version of each.

    Raises:
        SystemExit: the container cannot run; the message is the docker client's.
    """
    command = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "python", image, "-c", _LIST]
    listed = subprocess.run(command, check=False, capture_output=True, text=True)
    if listed.returncode:
        raise SystemExit(f"{image}: {listed.stderr.strip()}")
    return [tuple(row) for row in json.loads(listed.stdout)]


def bill(image: str, packages: list[tuple[str, str, str]]) -> str:
    """Return the CycloneDX JSON of an image with these packages."""
    bom = Bom()
    bom.metadata.component = whole = Component(name=image, type=ComponentType.CONTAINER)
    for kind, name, version in packages:
        url = PackageURL(kind, "debian" if kind == "deb" else None, name, version)
        bom.components.add(
            Component(name=name, version=version, type=ComponentType.LIBRARY, purl=url, bom_ref=str(url))
        )
    bom.register_dependency(whole, bom.components)
    return JsonV1Dot6(bom).output_as_string(indent=1)


def main() -> None:
    """Print the bill of materials of the named image."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(bill(sys.argv[1], packages_of(sys.argv[1])))


if __name__ == "__main__":
    main()
