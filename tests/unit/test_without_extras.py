"""Without the packages of extras every module of the kernel is imported, every verb has its help, and names of the API answer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tools.bare import environment
from unit.test_layering import FLOORS, RINGS, TREES, ring

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]

# Prometheus's own classes are bases and types there; `--metrics` imports these modules.
METRICS = {f"peer.observe.{name}" for name in ("metrics", "metrics_feed", "metrics_http", "metrics_page")}
PROGRAM = """
import importlib, json, sys
import peer
from coordinator_free_bootstrap.extras import EXTRAS, named_packages
from coordinator_free_bootstrap.errors import UsageError
from peer.cli.main import app
from peer.rings import NAMES, VERBS, verb
from typer import Typer
from typer.testing import CliRunner

said, modules = {}, json.load(sys.stdin)
for name in modules:
    try:
        with named_packages():
            importlib.import_module(name)
    except UsageError as error:
        said[name] = str(error)
for name in NAMES:
    getattr(peer, name)
helps = [()]
for name in VERBS:
    found = verb(name)
    helps.append((name,))
    if isinstance(found, Typer):
        helps += [(name, each.name or each.callback.__name__.replace("_", "-")) for each in found.registered_commands]
failed = {" ".join(words): str(done.exception) for words in helps
          if (done := CliRunner().invoke(app, [*words, "--help"])).exit_code != 0}
loaded = sorted(EXTRAS.keys() & sys.modules.keys())
print(json.dumps({"said": said, "failed": failed, "helps": len(helps), "loaded": loaded}))
"""


def run(program, folder, names=()):
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(sorted(names)),
        env=environment(folder),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    kernel = [name for name in TREES if name.startswith(FLOORS) and ring(name) is None and name != "peer.__main__"]
    assert len(kernel) > 150 and len(RINGS) == 7
    return run(PROGRAM, tmp_path_factory.mktemp("bare"), kernel)


def test_every_module_of_the_kernel_is_imported(found):
    assert found["said"].keys() <= METRICS
    for sentence in found["said"].values():
        assert sentence.endswith("pip install 'coordinator-free[metrics]' (docs/trouble.md#missing-package)")


def test_every_verb_has_its_help_and_each_name_of_the_api_is_there(found):
    assert found["failed"] == {}
    assert found["helps"] > 30


def test_nothing_of_an_extra_was_found(found):
    assert found["loaded"] == []


CALLS = """
import json
import peer
from coordinator_free_bootstrap.errors import UsageError

graph = peer.Graph.make("ring", peers=2, run={"rounds": 1, "start": {"deadline_s": 5}})
calls = {
    "digits": lambda: peer.simulate(graph, progress=False),
    "testbed": lambda: peer.Testbed(graph, out="%(out)s/bed").start(),
    "run": lambda: peer.run(0, graph, state_dir="%(out)s/state", insecure=True),
    "metrics": lambda: peer.run(0, graph, state_dir="%(out)s/state", insecure=True, metrics=9),
    "watch": lambda: peer.watch("%(out)s"),
}
said = {}
for name, call in calls.items():
    try:
        call()
    except UsageError as error:
        said[name] = str(error)
print(json.dumps(said))
"""


def test_each_call_of_the_api_names_the_extra_that_it_needs(tmp_path):
    extras = {"digits": "lab", "testbed": "lab", "run": "lab", "metrics": "metrics", "watch": "page"}
    said = run(CALLS % {"out": tmp_path}, tmp_path)
    assert said.keys() == extras.keys()
    for name, extra in extras.items():
        assert said[name].endswith(
            f"install it: pip install 'coordinator-free[{extra}]' (docs/trouble.md#missing-package)"
        ), said[name]
