"""The files of a public project agree with each other: versions, pins and digests."""

import json
import re
import runpy
import tomllib
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

import peer

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CONDA_NAMES = {"pytorch": "torch", "python-xxhash": "xxhash"}  # that differ from those of PyPI
HOSTS = {
    "pypi.org",
    "files.pythonhosted.org",
    "download.pytorch.org",
}  # of package indexes that this repository may name


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path):
    """Return the version of each package that a requirements file pins."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^ \n]+)", (ROOT / path).read_text(), re.MULTILINE)
    return {normalized(name): version for name, version in found}


def test_citation_has_the_version_of_the_package():
    assert f"\nversion: {peer.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_every_package_of_tests_and_linters_is_pinned():
    more = [*PROJECT["optional-dependencies"].values(), *PYPROJECT["dependency-groups"].values()]
    wanted = [*PROJECT["dependencies"], *(each for group in more for each in group if isinstance(each, str))]
    names = {normalized(re.match(r"[A-Za-z0-9._-]+", requirement)[0]) for requirement in wanted}
    assert names - {"coordinator-free"} <= pins("constraints.txt").keys()


def test_the_pins_are_those_of_the_lock_file():
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    locked = {normalized(each["name"]): each for each in packages if "registry" in each["source"]}
    assert pins("constraints.txt") == {name: each["version"] for name, each in locked.items()}
    assert len(packages) == len(locked) + 1  # this project
    for each in locked.values():
        assert all(file["hash"].startswith("sha256:") for file in [*each.get("wheels", ()), each.get("sdist")] if file)


def test_the_license_of_the_package_is_the_text_in_the_repository():
    assert (PROJECT["license"], PROJECT["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert (ROOT / "LICENSE").read_text().lstrip().startswith("Apache License\n                           Version 2.0")


def test_package_check_names_missing_unexpected_and_large_files():
    differences = runpy.run_path(str(ROOT / ".ci" / "check_packages.py"))["differences"]
    found = {"peer/a.py": 10, "peer/junk.pyc": 10, "peer/large": (1 << 20) + 1, "x.dist-info/METADATA": 10}
    assert differences(found, {"peer/a.py", "peer/large", "peer/t/template.yml"}, "x.dist-info/") == [
        "missing: peer/t/template.yml",
        "unexpected: peer/junk.pyc",
        "over 1048576 bytes: peer/large",
    ]


def jobs(path):
    return yaml.safe_load(path.read_text())["jobs"]


def pythons(workflow, *names):
    """Return the versions on which jobs of a workflow run, in their order."""
    found = []
    for job in (jobs(ROOT / ".github" / "workflows" / workflow)[name] for name in names):
        (setup,) = (step["with"] for step in job["steps"] if "setup-python@" in step.get("uses", ""))
        matrix = job.get("strategy", {}).get("matrix", {})
        found += matrix.get("python", [setup["python-version"]])
    return found


def test_the_tests_run_on_every_python_of_the_classifiers():
    prefix = "Programming Language :: Python :: 3."
    listed = [f"3.{each.removeprefix(prefix)}" for each in PROJECT["classifiers"] if each.startswith(prefix)]
    assert PROJECT["requires-python"] == f">={listed[0]}"
    assert pythons("ci.yml", "ci", "tests") == listed
    assert pythons("release.yml", "test") == listed
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{listed[0].replace('.', '')}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_pinned_actions_and_no_right_that_it_does_not_name(path):
    assert yaml.safe_load(path.read_text())["permissions"] == {}
    for line in path.read_text().splitlines():
        if "uses:" in line:
            assert re.search(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line
    for name, job in jobs(path).items():
        assert "permissions" in job and "timeout-minutes" in job, name
        for step in job["steps"]:
            if "checkout@" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False, name


def test_only_the_job_that_publishes_may_ask_for_an_identity():
    asking = {
        name for name, job in jobs(ROOT / ".github/workflows/release.yml").items() if "id-token" in job["permissions"]
    }
    assert asking == {"publish"}


def test_the_conda_recipe_has_the_version_and_the_requirements_of_the_package():
    recipe = (ROOT / "deploy" / "conda" / "meta.yaml").read_text()
    run = re.findall(r"^    - (\S+) >=(\S+)$", recipe.partition("\n  run:\n")[2].partition("\ntest:")[0], re.MULTILINE)
    asked = {CONDA_NAMES.get(name, name): version for name, version in run}
    assert asked.pop("python") == PROJECT["requires-python"].removeprefix(">=")
    assert [f"{name}>={version}" for name, version in asked.items()] == PROJECT["dependencies"]
    assert f'{{% set version = "{peer.__version__}" %}}' in recipe
    scripts = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert re.findall(r"^    - (\S+ = \S+)$", recipe, re.MULTILINE) == scripts


def test_the_development_container_has_the_oldest_python():
    image = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())["image"]
    assert image.partition(":")[2].startswith(PROJECT["requires-python"].removeprefix(">="))


def test_no_other_package_index_is_named():
    paths = [
        *WORKFLOWS,
        *(ROOT / name for name in ("pyproject.toml", "Makefile", "constraints.txt", "uv.lock", "deploy/Dockerfile")),
    ]
    named = {host for path in paths for host in re.findall(r"https://([\w.-]+)", path.read_text())}
    assert named <= HOSTS


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_each_pinned_package_has_a_wheel_for_each_python_of_the_classifiers(machine):
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    glibc = range(5, 29)  # 2.28 at most, as docs/deploy.md says
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in glibc] + [f"manylinux2014_{machine}"]
    for minor in (int(version.partition(".")[2]) for version in pythons("release.yml", "test")):
        works = {*cpython_tags((3, minor), platforms=platforms), *compatible_tags((3, minor), f"cp3{minor}", platforms)}
        for package in packages:
            names = [unquote(wheel["url"].rpartition("/")[2]) for wheel in package.get("wheels", ())]
            found = any(works & parse_wheel_filename(name)[3] for name in names)
            assert found or "registry" not in package["source"], (package["name"], minor)
