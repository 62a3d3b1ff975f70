"""The offline build of the image: deploy/wheels/README.md downloads all that deploy/install.sh installs."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
INSTALL = ROOT / "deploy" / "install.sh"
EXTRAS = re.search(r"^ARG EXTRAS=(.+)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)[1]


def downloaded():
    """Return the words of the documented command."""
    (line,) = re.findall("^    (pip download .*)$", (ROOT / "deploy/wheels/README.md").read_text(), re.MULTILINE)
    return shlex.split(line)


def test_the_documented_wheels_are_those_that_the_image_installs():
    """Before, starlette and uvicorn of the extra `page` were missing, and the build failed."""
    installed = set(EXTRAS.split(","))
    assert installed == {"all", "chaos"}
    (project,) = (word for word in downloaded() if word.startswith("."))
    assert set(project.removeprefix(".[").removesuffix("]").split(",")) == installed
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert installed <= set(extras)
    assert {"torch", "torchvision"} <= set(downloaded())  # which install.sh takes from their own index
    assert "setuptools" in downloaded()  # with which this project itself is built


def named(extras):
    """Return the packages that install.sh installs with these extras."""
    program = re.search(r"<<'END'\n(.+?)^END$", INSTALL.read_text(), re.MULTILINE | re.DOTALL)[1]
    environment = os.environ | {"EXTRAS": extras}
    run = {"cwd": ROOT, "capture_output": True, "text": True, "env": environment}
    done = subprocess.run([sys.executable, "-c", program], check=True, **run)
    return {re.match(r"[\w.-]+", line)[0] for line in done.stdout.splitlines()}


def test_the_image_has_the_packages_of_its_extras_and_of_the_extras_that_they_name():
    found = named(EXTRAS)
    assert {"torch", "torchvision", "scikit-learn", "matplotlib", "prometheus-client", "starlette", "docker"} <= found
    assert not {"coordinator-free", "pandas", "pytest"} & found


def test_the_image_without_extras_has_what_running_peers_need_and_nothing_else():
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert named("") == {re.match(r"[\w.-]+", each)[0] for each in requirements}


def test_the_build_says_what_it_does_and_a_failing_step_ends_it(tmp_path):
    """Before, the build was silent while pip downloaded, unpacked and compiled."""
    script = INSTALL.read_text().replace("sleep 5", "sleep 0.05")
    pip = "/opt/tools/bin/python -m pip --python /opt/peer/bin/python install"
    assert pip in script
    for command, code in (("sleep 0.5;", 0), ("exit 7;", 7)):
        program = tmp_path / "program"
        program.write_text(f"#!/bin/sh\n{command}\n")
        program.chmod(0o755)
        (tmp_path / "install.sh").write_text(script.replace(pip, str(program)))
        done = subprocess.run(
            ["sh", "install.sh", "wheels", "", "prefix"], check=False, cwd=tmp_path, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (code, "")
        assert "s: installing this project\n" in done.stdout
        assert ("installing this project continues" in done.stdout) == (code == 0)
