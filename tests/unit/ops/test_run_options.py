"""`peer deploy --options FILE`: on every target each peer gets the file; what `peer run` would not take is refused."""

import shlex
import tarfile

import pytest
import yaml
from manifest_walk import problems
from typer.testing import CliRunner

from coordinator_free_bootstrap import make_graph, save_graph
from coordinator_free_bootstrap.errors import UsageError
from peer.cli.main import app

OPTIONS = """\
discard_state = true
log = "debug"
threads = 2
when = ["22:00-06:00 Europe/Berlin", "test $HOME = '$(pwd)'"]
"""
TARGETS = ("compose", "swarm", "kubernetes", "systemd")


@pytest.fixture
def deploy(tmp_path):
    """Return a function that runs `peer deploy TARGET --options FILE`; it gives the folder --out."""
    graph = make_graph("ring", 3, address_template="device-{id}.example:7400")
    save_graph(graph, tmp_path / "g.json")

    def run(target, options, *more):
        (tmp_path / "mine.toml").write_text(options)
        words = ["deploy", target, str(tmp_path / "g.json"), "--out", str(tmp_path / "out"), *more]
        done = CliRunner().invoke(app, [*words, "--options", str(tmp_path / "mine.toml")])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output
        return tmp_path / "out"

    return run


def test_compose(deploy):
    out = deploy("compose", OPTIONS)
    assert (out / "deploy" / "task" / "options.toml").read_text() == OPTIONS
    for peer_id in range(3):
        service = yaml.safe_load((out / "docker-compose.yml").read_text())["services"][f"peer-{peer_id}"]
        assert service["command"][-2:] == ["--options", "/task/options.toml"]
        assert "./deploy/task:/task:ro" in service["volumes"]


def test_swarm(deploy):
    out = deploy("swarm", OPTIONS)
    content = yaml.safe_load((out / "stack.yml").read_text())
    service = content["services"]["peer-1"]
    assert service["command"][-2:] == ["--options", "/task/options.toml"]
    (config,) = [each for each in service["configs"] if each["target"] == "/task/options.toml"]
    assert (out / content["configs"][config["source"]]["file"]).read_text() == OPTIONS


def pods(out):
    documents = [each for each in yaml.safe_load_all((out / "peer.yaml").read_text()) if each]
    (found,) = [each for each in documents if each["kind"] == "StatefulSet"]
    (container,) = [each for each in found["spec"]["template"]["spec"]["containers"] if each["name"] == "peer"]
    return documents, shlex.split(container["args"][0])


def test_kubernetes(deploy, tmp_path):
    out = deploy("kubernetes", OPTIONS, "--pod", "gpus=1")
    documents, words = pods(out)
    assert words[-2:] == ["--options", "/task/options.toml"]
    assert problems([*documents, *yaml.safe_load_all((out / "secret.yaml").read_text())]) == []
    (config,) = [each for each in documents if each["metadata"]["name"] == "peer-options"]
    assert list(config["binaryData"]) == ["options.toml"]


def test_the_file_wins_over_what_kubernetes_would_choose(deploy):
    """The log is JSON there, and the device a GPU where pods have one: unless the file says otherwise."""
    chosen = pods(deploy("kubernetes", "threads = 2", "--pod", "gpus=1"))[1]
    assert {"--log", "info,json", "--device", "cuda"} <= set(chosen)
    assert not {"--log", "--device"} & set(
        pods(deploy("kubernetes", 'log = "debug"\ndevice = "cuda:0"', "--pod", "gpus=1"))[1]
    )


def test_systemd(deploy):
    with tarfile.open(deploy("systemd", OPTIONS) / "peer-1.tar.gz") as archive:
        env = archive.extractfile("etc/coordinator-free/peer.env").read().decode()
        assert archive.extractfile("etc/coordinator-free/options.toml").read().decode() == OPTIONS
    assert "\nPEER_OPTIONS=--options /etc/coordinator-free/options.toml\n" in env


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("discard_sate = true", r"expected options of peer run as keys, got discard_sate in .*mine.toml"),
        ("certs = 'x'", "expected options that peer deploy does not set .*, got certs in .*mine.toml. Remove it."),
        ("state-dir = '/x'", "expected options that peer deploy does not set .*, got state_dir in"),
        ("insecure = true", "expected options that peer deploy does not set .*, got insecure in"),
        ("--log debug", "expected a file of options"),
        ("threads = 0", r"^threads in .*mine.toml: expected at least 1, got 0"),
    ],
)
def test_what_a_peer_would_not_take_is_refused(deploy, tmp_path, target, options, words):
    with pytest.raises(UsageError, match=words):
        deploy(target, options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("target", "options"),
    [
        *((target, option) for target in TARGETS[:3] for option in ("listen = '0.0.0.0:1'", "stay = 'never'")),
        ("compose", "require_own_address = false"),
    ],
)
def test_what_a_target_sets_itself_is_refused(deploy, target, options):
    with pytest.raises(UsageError, match="expected options that peer deploy does not set for each peer, got"):
        deploy(target, options)
    deploy("systemd", options)
