"""`peer deploy compose`: one hardened service per peer; the files in the repository are those that it writes."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from coordinator_free_bootstrap import load_graph, make_graph, parse_manifest, save_graph
from coordinator_free_bootstrap.errors import UsageError
from peer.cli.main import app
from peer.ops.deploy.compose import MONITORING, compose_file, write_compose
from peer.ops.deploy.text import verbatim

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "docs" / "deploy.md"


@pytest.fixture
def ring():
    return make_graph("ring", 5)


def services(text):
    return yaml.safe_load(text)["services"]


def test_every_node_is_a_service_with_its_own_volumes(ring):
    content = yaml.safe_load(compose_file(ring))
    peers = {name: row for name, row in content["services"].items() if name.startswith("peer-")}
    assert sorted(peers) == [f"peer-{i}" for i in range(5)]
    for peer_id in range(5):
        row = peers[f"peer-{peer_id}"]
        assert row["command"][:3] == ["run", "--id", str(peer_id)]
        own = [volume.split(":")[0] for volume in row["volumes"]]
        assert own == [f"peer-{peer_id}-state", f"peer-{peer_id}-keys", "graph"]
        assert [volume.endswith(":ro") for volume in row["volumes"]] == [False, True, True]
        assert set(own) <= set(content["volumes"])


def test_a_peer_that_fails_stays_unless_the_user_wants_its_exit_to_end_all(ring):
    for peer_id in range(5):
        row = services(compose_file(ring))[f"peer-{peer_id}"]
        assert row["command"][row["command"].index("--stay") + 1] == "${PEER_STAY:-error}"
        assert row["restart"] == "${PEER_RESTART:-on-failure}"
    others = {name: row for name, row in services(compose_file(ring)).items() if not name.startswith("peer-")}
    assert not any("restart" in row for row in others.values()), "a service that is restarted never ends the run"


def test_every_service_is_hardened_and_only_observers_publish_ports(ring):
    for name, row in services(compose_file(ring)).items():
        if name in ("prometheus", "grafana"):
            assert all(port.startswith("127.0.0.1:") for port in row["ports"])
            continue
        assert row.get("ports", []) == (["127.0.0.1:7480:7480"] if name == "page" else [])
        assert row["read_only"] is True
        assert row["cap_drop"] == ["ALL"]
        assert "user" not in row  # the user of the image, which is not root
        assert ("cap_add" in row) == (name == "report")


def test_the_page_reads_every_state_and_is_not_in_the_network_of_the_peers(ring):
    row = services(compose_file(ring))["page"]
    assert row["networks"] == ["observers"]
    assert row["profiles"] == ["page"]  # without it, `up` ends with the run
    assert [volume for volume in row["volumes"] if not volume.endswith(":ro")] == []
    assert {f"peer-{i}-state:/federation/peer-{i}:ro" for i in range(5)} < set(row["volumes"])


def test_the_federation_network_is_internal(ring):
    content = yaml.safe_load(compose_file(ring))
    assert content["networks"]["federation"] == {"internal": True}
    assert all(
        row.get("networks", []) == ["federation"] for n, row in content["services"].items() if n.startswith("peer-")
    )


def test_shards_are_mounted_read_only(ring):
    row = services(compose_file(ring, shards=True))["peer-3"]
    assert row["command"][-2:] == ["--shard", "/shards/peer-3.safetensors"]
    assert "${SHARDS:-./shards}:/shards:ro" in row["volumes"]


def test_split_shard_mounts_shards_by_default(tmp_path):
    save_graph(make_graph("ring", 3, manifest=parse_manifest({"split": "shard"}, "test")), tmp_path / "graph.json")
    result = CliRunner().invoke(app, ["deploy", "compose", str(tmp_path / "graph.json")])
    assert result.exit_code == 0
    assert "--shard" in services(result.stdout)["peer-0"]["command"]


def test_addresses_are_the_services_and_the_digest_does_not_change(ring, tmp_path):
    write_compose(ring, tmp_path)
    written = load_graph(tmp_path / "deploy" / "graph.json")
    assert [node.address for node in written.nodes] == [f"peer-{i}:7400" for i in range(5)]
    assert written.digest == ring.digest


def test_more_peers_than_the_image_has_folders_for_are_refused():
    with pytest.raises(UsageError, match="expected peer ids from 0 to 255 in containers, got 256"):
        compose_file(make_graph("ring", 257))
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    assert re.search(r"seq 0 255\)", dockerfile)


def test_the_files_in_the_repository_are_what_the_documented_commands_write(tmp_path, monkeypatch):
    """The monitoring files are not in the repository: the same command writes them beside the others."""
    block = re.search(r"is written by\n\n((?:    peer .*\n)+)", DEPLOY.read_text())[1]
    monkeypatch.chdir(tmp_path)
    for line in block.splitlines():
        result = CliRunner().invoke(app, shlex.split(line, comments=True)[1:])
        assert result.exit_code == 0, result.output
    for name in ("docker-compose.yml", "deploy/graph.json"):
        assert (ROOT / name).read_text() == (tmp_path / name).read_text(), f"{name}: run\n{block}"
    assert {path.name for path in (tmp_path / "deploy" / "monitoring").iterdir()} == {*MONITORING, "peers.json"}


def test_the_documentation_lists_every_alert():
    """docs/deploy.md says for each alert what it means and what to do."""
    rules = yaml.safe_load(verbatim("alerts.yml"))["groups"][0]["rules"]
    documented = re.findall(r"^\| `([A-Z]\w+)` \|", DEPLOY.read_text(), re.MULTILINE)
    assert documented == [rule["alert"] for rule in rules]


def test_an_unwritable_folder_is_an_error(ring, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--out: expected a path that can be written"):
        write_compose(ring, tmp_path / "file")


def test_a_task_file_is_copied_and_mounted_where_the_peers_start(own_task, tmp_path):
    """Before, no container had the task file, and every peer ended with exit code 12."""
    out = tmp_path / "out"
    assert out / "deploy" / "task" / "code" / "mine.py" in write_compose(make_graph("ring", 3, manifest=own_task), out)
    assert (out / "deploy" / "task" / "code" / "mine.py").read_bytes() == (tmp_path / "code" / "mine.py").read_bytes()
    row = services((out / "docker-compose.yml").read_text())["peer-2"]
    assert "./deploy/task:/task:ro" in row["volumes"]
    assert row["working_dir"] == "/task"


def test_an_algorithm_file_is_copied_and_mounted_where_the_peers_start(own_algorithm, tmp_path):
    out = tmp_path / "out"
    for manifest in (own_algorithm, own_algorithm.model_copy(update={"task": "digits"})):
        write_compose(make_graph("ring", 3, manifest=manifest), out)
        copied = out / "deploy" / "task" / "code" / "half.py"
        assert copied.read_bytes() == (tmp_path / "code" / "half.py").read_bytes()
        row = services((out / "docker-compose.yml").read_text())["peer-2"]
        assert "./deploy/task:/task:ro" in row["volumes"]
        assert row["working_dir"] == "/task"
        copied.unlink()


def test_a_file_of_both_task_and_algorithm_is_copied_once(own_task, tmp_path):
    both = own_task.model_copy(update={"algorithm": "code/mine.py:Half"})
    paths = write_compose(make_graph("ring", 3, manifest=both), tmp_path / "out")
    assert len(paths) == len(set(paths))
    assert tmp_path / "out" / "deploy" / "task" / "code" / "mine.py" in paths


def test_an_algorithm_file_outside_of_the_working_directory_is_refused(tmp_path):
    graph = make_graph("ring", 3, manifest=parse_manifest({"algorithm": "/home/me/half.py:Half"}, "test"))
    with pytest.raises(UsageError, match=r"run.algorithm: expected a relative path without .*, got '/home/me/half.py'"):
        write_compose(graph, tmp_path)


def test_without_a_task_file_no_working_directory_is_set(ring):
    assert "working_dir" not in compose_file(ring)


@pytest.mark.parametrize("path", ["/home/me/mine.py", "../mine.py"])
def test_a_task_file_outside_of_the_working_directory_is_refused(tmp_path, path):
    graph = make_graph("ring", 3, manifest=parse_manifest({"task": f"{path}:task"}, "test"))
    with pytest.raises(UsageError, match="a relative path without"):
        write_compose(graph, tmp_path)


def test_a_missing_task_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graph = make_graph("ring", 3, manifest=parse_manifest({"task": "none.py:task"}, "test"))
    with pytest.raises(UsageError, match=r"run\.task: expected a file at none\.py, got none"):
        write_compose(graph, tmp_path / "out")


def test_a_task_file_that_imports_modules_beside_it_gives_a_warning(own_task, tmp_path, caplog):
    write_compose(make_graph("ring", 3, manifest=own_task), tmp_path / "out")
    assert not caplog.text
    (tmp_path / "code" / "helper.py").touch()
    (tmp_path / "code" / "layers").mkdir()
    with (tmp_path / "code" / "mine.py").open("a") as file:
        file.write("import helper\nfrom layers.wide import Wide\n")
    write_compose(make_graph("ring", 3, manifest=own_task), tmp_path / "out")
    assert "code/mine.py imports helper, layers" in caplog.text


def test_a_large_task_file_gives_a_warning(own_task, tmp_path, caplog):
    with (tmp_path / "code" / "mine.py").open("a") as file:
        file.write("#" * (1 << 20))
    write_compose(make_graph("ring", 3, manifest=own_task), tmp_path / "out")
    assert "the task file is large" in caplog.text and "code/mine.py" in caplog.text
