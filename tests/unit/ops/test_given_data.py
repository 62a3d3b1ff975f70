"""`peer deploy --data`: on every target a peer finds the data where its task looks, read-only; what cannot work is refused."""

import re
import tarfile

import kubernetes_validate
import pytest
import yaml
from manifest_walk import problems
from typer.testing import CliRunner

from coordinator_free_bootstrap import make_graph, parse_manifest, save_graph
from coordinator_free_bootstrap.errors import GraphError, UsageError
from peer.cli.main import app

PROBE = ["peer", "health", "--state-dir", "/state", "--certs", "/keys"]
BUILTIN = {"task": "mnist"}


@pytest.fixture
def deploy(tmp_path, own_task):
    """Return a function that runs `peer deploy TARGET` on a graph with a task file, or another one; it gives the folder --out."""
    for site in range(3):
        (tmp_path / "sites" / str(site)).mkdir(parents=True)

    def run(target, *options, task=None, refused=False):
        manifest = parse_manifest(task, "test") if task else own_task
        graph = make_graph("ring", 3, address_template="device-{id}.example:7400", manifest=manifest)
        save_graph(graph, tmp_path / "g.json")
        words = ["deploy", target, str(tmp_path / "g.json"), "--out", str(tmp_path / "out"), *options]
        done = CliRunner().invoke(app, words)
        if refused:
            assert done.exception is not None
            raise done.exception
        assert done.exit_code == 0, done.output
        return tmp_path / "out"

    return run


def services(folder, name):
    return yaml.safe_load((folder / name).read_text())


@pytest.mark.parametrize(("target", "name"), [("compose", "docker-compose.yml"), ("swarm", "stack.yml")])
def test_each_container_has_a_temporary_folder_its_data_and_a_probe_of_its_state(deploy, tmp_path, target, name):
    """Before, data had no way in; a peer with a task file had nowhere to write; a finished peer was never healthy."""
    content = services(deploy(target, "--data", str(tmp_path / "sites" / "{id}")), name)
    for peer_id in range(3):
        row = content["services"][f"peer-{peer_id}"]
        assert row["working_dir"] == "/task" and "--data-root" not in row["command"]
        mounts = [volume for volume in row["volumes"] if isinstance(volume, dict)]
        (data,) = [mount for mount in mounts if mount["target"] == "/task/data"]
        assert (data["type"], data["source"], data["read_only"]) == ("bind", f"{tmp_path}/sites/{peer_id}", True)
        temporary = [*row.get("tmpfs", []), *(mount["target"] for mount in mounts if mount["type"] == "tmpfs")]
        assert [place.partition(":")[0] for place in temporary] == ["/tmp"]
        assert row["healthcheck"]["test"] == ["CMD", *PROBE]


def test_a_folder_of_this_machine_needs_no_slash_and_another_word_is_a_volume(deploy, tmp_path):
    out = deploy("compose", "--data", "sites")
    assert services(out, "docker-compose.yml")["services"]["peer-2"]["volumes"][-1]["source"] == f"{tmp_path}/sites"
    assert (out / "deploy" / "task" / "data").is_dir()  # what the data are mounted on, in a read-only mount
    content = services(deploy("compose", "--data", "patients-{id+1}:/srv/patients"), "docker-compose.yml")
    data = content["services"]["peer-2"]["volumes"][-1]
    assert (data["type"], data["source"], data["target"]) == ("volume", "patients-3", "/srv/patients")
    assert content["volumes"]["patients-1"] == {"external": True}
    assert services(deploy("swarm", "--data", "patients"), "stack.yml")["volumes"]["patients"] == {"external": True}


def test_a_file_and_a_name_with_a_dollar_are_mounted_as_they_are(deploy, tmp_path):
    for site in range(3):
        (tmp_path / f"a$b-{site}.csv").touch()
    out = deploy("compose", "--data", "./a$b-{id}.csv:rows-{id}.csv")
    data = services(out, "docker-compose.yml")["services"]["peer-1"]["volumes"][-1]
    assert data["source"].endswith("/a$$b-1.csv") and data["target"] == "/task/rows-1.csv"
    assert (out / "deploy" / "task" / "rows-1.csv").is_file()


def test_what_the_containers_cannot_read_is_a_warning(deploy, tmp_path, caplog):
    deploy("compose", "--data", "sites/{id}")
    assert not caplog.text
    (tmp_path / "sites" / "1").chmod(0o700)
    deploy("compose", "--data", "sites/{id}")
    assert "user 10001 cannot read" in caplog.text and "sites/1" in caplog.text


@pytest.mark.parametrize("target", ["compose", "swarm", "kubernetes", "systemd"])
def test_a_built_in_task_reads_the_data_by_an_option(deploy, tmp_path, target):
    out = deploy(target, "--data", "sets" if target == "kubernetes" else str(tmp_path), task=BUILTIN)
    if target == "systemd":
        with tarfile.open(out / "peer-1.tar.gz") as archive:
            assert archive.getmember("etc/coordinator-free/task").isdir()
            settings = archive.extractfile("etc/coordinator-free/peer.env").read().decode()
        assert "PEER_OPTIONS=--data-root /etc/coordinator-free/task/data\n" in settings
    elif target == "kubernetes":
        assert "--data-root /task/data" in (out / "peer.yaml").read_text()
    else:
        row = services(out, {"compose": "docker-compose.yml", "swarm": "stack.yml"}[target])["services"]["peer-1"]
        assert row["command"][-2:] == ["--data-root", "/task/data"]


@pytest.mark.parametrize("data", ["patients", "patients/site-{id}", "patients/all:/srv/all"])
def test_pods_mount_a_claim_beside_the_task_file(deploy, data):
    documents = list(yaml.safe_load_all((deploy("kubernetes", "--data", data) / "peer.yaml").read_text()))
    documents += yaml.safe_load_all((deploy("kubernetes", "--data", data) / "secret.yaml").read_text())
    assert problems(documents) == []
    for document in documents:
        kubernetes_validate.validate(document, "1.34", strict=True)
    (pod,) = [d["spec"]["template"]["spec"] for d in documents if d["kind"] == "StatefulSet"]
    (peer,) = pod["containers"]
    mounts = {mount["name"]: mount for mount in peer["volumeMounts"]}
    assert mounts["tmp"]["mountPath"] == "/tmp" and peer["workingDir"] == "/task"
    assert (mounts["task"]["mountPath"], mounts["task"]["subPath"]) == ("/task/code/mine.py", "code/mine.py")
    folder = data.partition(":")[0].partition("/")[2]
    assert mounts["data"]["mountPath"] == ("/srv/all" if ":" in data else "/task/data") and mounts["data"]["readOnly"]
    assert mounts["data"].get("subPathExpr", "") == folder.replace("{id}", "$(PEER_ID)")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert peer[probe]["exec"]["command"] == PROBE


def test_a_unit_mounts_the_data_of_its_device(deploy):
    unit = (deploy("systemd", "--data", "/srv/readings") / "coordinator-free.service").read_text()
    assert "BindReadOnlyPaths=/srv/readings:/etc/coordinator-free/task/data\n" in unit
    assert re.search("^WorkingDirectory=/etc/coordinator-free/task$", unit, re.MULTILINE)


@pytest.mark.parametrize(
    ("target", "data", "task", "words"),
    [
        ("compose", "./nowhere", None, "expected an existing .*nowhere, got none. Make it, or name a volume"),
        ("compose", "sites/{id+1}", None, "expected an existing .*sites/3"),
        ("compose", "sites", {"task": "digits"}, "task 'digits' does not use it"),
        ("compose", "sites:../x", None, "expected a PATH below /task"),
        ("compose", "sites:/state", None, "expected a PATH below /task"),
        ("compose", "sites:.", None, "expected a PATH below /task"),
        ("compose", "/", None, "such as ./sites:data"),
        ("compose", "sites:code", None, "which hides the file code/mine.py"),
        ("compose", "sites:data-{id}", BUILTIN, "one PATH for all peers"),
        ("swarm", "./sites", None, "expected an absolute path that is valid on every node, or a volume"),
        ("swarm", "/srv/../x", None, "expected an absolute path"),
        ("kubernetes", "/srv/sites", None, "expected CLAIM, CLAIM/FOLDER or CLAIM/FOLDER-{id}"),
        ("kubernetes", "Claim_1", None, "expected CLAIM"),
        ("kubernetes", "claim/{id+1}", None, "expected CLAIM"),
        ("kubernetes", "claim:data-{id}", None, "one path in pods for all peers"),
        ("systemd", "volume", None, "expected one absolute path for all devices"),
        ("systemd", "/srv/{id}", None, "expected one absolute path for all devices"),
        ("systemd", "/srv/a b", None, "expected one absolute path for all devices"),
    ],
)
def test_data_that_cannot_be_given_are_refused(deploy, target, data, task, words):
    with pytest.raises(UsageError, match=words):
        deploy(target, "--data", data, task=task, refused=True)


def test_another_placeholder_is_refused(deploy):
    with pytest.raises(GraphError, match=r"--data: expected placeholders of \{id\}, \{id\+1\}.*, got "):
        deploy("swarm", "--data", "/srv/{peer}", refused=True)
