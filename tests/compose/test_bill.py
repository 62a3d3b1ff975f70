"""The bill of materials names what is in the image, by asking the image."""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest
from engine import IMAGE, ROOT

pytestmark = pytest.mark.compose


def test_the_bill_of_the_image_names_its_python_and_debian_packages(host, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", host)
    command = [sys.executable, ROOT / "deploy" / "sbom.py", IMAGE]
    made = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)
    assert (made["bomFormat"], made["metadata"]["component"]["type"]) == ("CycloneDX", "container")
    found = {component["purl"].split("?")[0] for component in made["components"]}
    assert f"pkg:pypi/grpcio@{version('grpcio')}" in found
    assert {"torch", "coordinator-free"} <= {name.removeprefix("pkg:pypi/").split("@")[0] for name in found}
    assert any(name.startswith("pkg:deb/debian/libc6@") for name in found)
    assert not any(name.startswith(("pkg:pypi/pytest@", "pkg:pypi/ruff@")) for name in found), "tools are in the image"


def test_the_bill_of_an_image_that_is_not_there_is_a_sentence(host, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", host)
    command = [sys.executable, ROOT / "deploy" / "sbom.py", "no-such-image"]
    failed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert failed.returncode == 1 and "no-such-image" in failed.stderr and "Traceback" not in failed.stderr
