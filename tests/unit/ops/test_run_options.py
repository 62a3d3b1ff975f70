"""`peer deploy --options`: on every target each peer gets further options of `peer run`; what it would not take is refused."""

import re
import shlex
import tarfile

import pytest
import yaml
from typer.testing import CliRunner

from coordinator_free_bootstrap import make_graph, save_graph
from coordinator_free_bootstrap.errors import UsageError
from peer.cli.main import app

OPTIONS = "--discard-state --log debug --when 'test $HOME = $(pwd)'"
WORDS = ["--discard-state", "--log", "debug", "--when", "test $HOME = $(pwd)"]
TARGETS = ("compose", "swarm", "kubernetes", "systemd")


@pytest.fixture
def deploy(tmp_path):
    """Return a function that runs `peer deploy TARGET --options`; it gives the folder --out."""
    graph = make_graph("ring", 3, address_template="device-{id}.example:7400")
    save_graph(graph, tmp_path / "g.json")

    def run(target, options):
        words = ["deploy", target, str(tmp_path / "g.json"), "--out", str(tmp_path / "out"), "--options", options]
        done = CliRunner().invoke(app, words)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output
        return tmp_path / "out"

    return run


@pytest.mark.parametrize(("target", "name"), [("compose", "docker-compose.yml"), ("swarm", "stack.yml")])
def test_containers(deploy, target, name):
    """Before, only systemd took options, so that a changed run could not discard the state of the earlier one elsewhere."""
    content = yaml.safe_load((deploy(target, OPTIONS) / name).read_text())
    for peer_id in range(3):
        command = content["services"][f"peer-{peer_id}"]["command"]
        assert [word.replace("$$", "$") for word in command[-len(WORDS) :]] == WORDS  # "$$" is "$" to Docker
        assert not re.search(r"(?<!\$)\$(?!\$)", " ".join(command[-len(WORDS) :]))


def test_kubernetes(deploy):
    documents = yaml.safe_load_all((deploy("kubernetes", OPTIONS) / "peer.yaml").read_text())
    (pods,) = [each for each in documents if each and each["kind"] == "StatefulSet"]
    (container,) = [c for c in pods["spec"]["template"]["spec"]["containers"] if c["name"] == "peer"]
    words = shlex.split(container["args"][0])
    assert [word.replace("$$(", "$(") for word in words[-len(WORDS) :]] == WORDS  # "$$(" is "$(" to Kubernetes


def test_systemd(deploy):
    with tarfile.open(deploy("systemd", "--discard-state --listen 0.0.0.0:7400") / "peer-1.tar.gz") as archive:
        text = archive.extractfile("etc/coordinator-free/peer.env").read().decode()
    assert "\nPEER_OPTIONS=--discard-state --listen 0.0.0.0:7400\n" in text


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--discard-sate", "expected an option of peer run, got --discard-sate"),
        ("--certs x", "peer deploy sets --certs"),
        ("--id 3", "peer deploy sets --id for each peer. Remove it"),
        ("--state-dir=/x", "peer deploy sets --state-dir"),
        ("--log 'debug", "No closing quotation"),
        ("--when 'a\nb'", "line break|without blanks"),
    ],
)
def test_what_a_peer_would_not_take_is_refused(deploy, tmp_path, target, options, words):
    with pytest.raises(UsageError, match=words):
        deploy(target, options)
    assert not (tmp_path / "out").exists()


def test_words_that_systemd_would_split_are_refused(deploy):
    with pytest.raises(UsageError, match="expected words without blanks, quotes and backslashes on devices"):
        deploy("systemd", "--when '22:00-06:00 Europe/Berlin'")
    with pytest.raises(UsageError, match="peer deploy sets --listen"):
        deploy("compose", "--listen 0.0.0.0:1")
