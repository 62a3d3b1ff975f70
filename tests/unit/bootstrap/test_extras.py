"""Packages of extras: the table agrees with pyproject.toml, and a missing one is one sentence."""

import re
import tomllib
from pathlib import Path

import pytest

from coordinator_free_bootstrap import extras
from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.extras import EXTRAS, missing_package, named_packages, require

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = {  # of modules that have another name
    "PIL": "pillow",
    "grpc_reflection": "grpcio-reflection",
    "mlflow": "mlflow-skinny",
    "prometheus_client": "prometheus-client",
    "sklearn": "scikit-learn",
}
OWN = re.compile(r"coordinator-free\[(.+)\]")
KERNEL = {
    *("torch", "numpy", "grpcio", "grpcio-health-checking", "protobuf", "pydantic", "safetensors", "cryptography"),
    *("typing-extensions", "xxhash", "typer", "rich", "networkx"),
}


def name_of(requirement):
    return re.match(r"[A-Za-z0-9._-]+", requirement)[0]


def packages_of(extra):
    """Return the distributions of an extra, also those of extras that it names."""
    found = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        own = OWN.fullmatch(requirement)
        found |= set().union(*map(packages_of, own[1].split(","))) if own else {name_of(requirement)}
    return found


def test_a_bare_installation_brings_what_the_kernel_needs_and_nothing_else():
    assert {name_of(requirement) for requirement in PROJECT["dependencies"]} == KERNEL


def test_the_table_and_the_extras_have_the_same_packages():
    for module, extra in EXTRAS.items():
        assert DISTRIBUTIONS.get(module, module) in packages_of(extra), module
    listed = {DISTRIBUTIONS.get(module, module) for module in EXTRAS}
    assert listed == set().union(*map(packages_of, PROJECT["optional-dependencies"].keys()))


def test_each_extra_has_packages_of_its_own_in_the_table_but_all():
    assert set(EXTRAS.values()) == PROJECT["optional-dependencies"].keys() - {"all"}


def test_all_is_a_list_of_other_extras():
    (requirement,) = PROJECT["optional-dependencies"]["all"]
    assert set(OWN.fullmatch(requirement)[1].split(",")) <= set(EXTRAS.values())


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("sklearn", "package sklearn is not installed; install it: pip install 'coordinator-free[lab]'"),
        ("scipy.spatial", "package scipy is not installed; install it: pip install 'coordinator-free[lab]'"),
        ("another", None),
    ],
)
def test_a_missing_package_of_an_extra_is_one_sentence(name, sentence):
    error = ModuleNotFoundError(f"No module named {name!r}", name=name)
    found = missing_package(error)
    assert (found and str(found)) == (sentence and f"{sentence} (docs/trouble.md#missing-package)")
    with pytest.raises(UsageError if sentence else ModuleNotFoundError), named_packages():
        raise error


def test_a_step_is_refused_before_it_begins(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    row = r"\(docs/trouble\.md#missing-package\)$"
    with pytest.raises(UsageError, match=rf"^--export a: package pandas is not .*'coordinator-free\[tabular\]' {row}"):
        require(("pandas", "pyarrow"), "--export a")
    with pytest.raises(
        UsageError, match=rf"^algorithm 'mine': package gurobi is not installed; .*: pip install gurobi {row}"
    ):
        require(("gurobi",), "algorithm 'mine'")
