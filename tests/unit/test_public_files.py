"""The files of a public project agree with each other: versions, pins and digests."""

import re
import runpy
import tomllib
from pathlib import Path

import peer

ROOT = Path(__file__).parents[2]


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path):
    """Return the version of each package that a requirements file pins."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^ \n]+)", (ROOT / path).read_text(), re.MULTILINE)
    return {normalized(name): version for name, version in found}


def test_citation_has_the_version_of_the_package():
    assert f"\nversion: {peer.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_every_package_of_tests_and_linters_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(package for extra in extras.values() for package in extra)]
    names = {normalized(re.match(r"[A-Za-z0-9._-]+", requirement)[0]) for requirement in wanted}
    assert names - {"coordinator-free"} <= pins("constraints.txt").keys()


def test_every_pinned_package_has_digests_of_that_version():
    assert pins("deploy/requirements-hashed.txt") == pins("constraints.txt")


def test_the_license_of_the_package_is_the_text_in_the_repository():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert (ROOT / "LICENSE").read_text().lstrip().startswith("Apache License\n                           Version 2.0")


def test_package_check_names_missing_unexpected_and_large_files():
    differences = runpy.run_path(str(ROOT / ".ci" / "check_packages.py"))["differences"]
    found = {"peer/a.py": 10, "peer/junk.pyc": 10, "peer/large": (1 << 20) + 1, "x.dist-info/METADATA": 10}
    assert differences(found, {"peer/a.py", "peer/large", "peer/t/template.yml"}, "x.dist-info/") == [
        "missing: peer/t/template.yml",
        "unexpected: peer/junk.pyc",
        "over 1048576 bytes: peer/large",
    ]
