"""The bill of materials lists the packages that are installed in the image."""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest
from engine import IMAGE, ROOT, run

pytestmark = pytest.mark.compose


def test_the_bill_of_the_image_names_its_python_and_debian_packages(host, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", host)
    command = [sys.executable, ROOT / "deploy" / "sbom.py", IMAGE]
    made = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert (made["bomFormat"], made["metadata"]["component"]["type"]) == ("CycloneDX", "container")
    found = {component["purl"].split("?")[0] for component in made["components"]}
    assert f"pkg:pypi/grpcio@{version('grpcio')}" in found
    assert {"torch", "coordinator-free"} <= {name.removeprefix("pkg:pypi/").split("@")[0] for name in found}
    assert any(name.startswith("pkg:deb/debian/libc6@") for name in found)
    assert not any(name.startswith(("pkg:pypi/pytest@", "pkg:pypi/ruff@")) for name in found), "tools are in the image"


def test_image_holds_the_licenses_of_its_python_packages(host):
    command = [
        "docker",
        "run",
        "--rm",
        "--network",
        "none",
        "--entrypoint",
        "cat",
        IMAGE,
        "/usr/share/licenses/index.tsv",
    ]
    rows = [line.split("\t") for line in run(*command, env={"DOCKER_HOST": host}).splitlines()[1:]]
    texts = {name: int(count) for name, _, _, count in rows}
    assert texts["coordinator-free"] == 1 and texts["torch"] > 0 and texts["numpy"] > 0


def test_the_bill_of_a_missing_image_is_an_error(host, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", host)
    command = [sys.executable, ROOT / "deploy" / "sbom.py", "no-such-image"]
    failed = subprocess.run(command, check=False, capture_output=True, text=True)
    assert failed.returncode == 1 and "no-such-image" in failed.stderr and "Traceback" not in failed.stderr
