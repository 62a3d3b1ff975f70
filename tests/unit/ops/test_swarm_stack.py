"""`peer deploy swarm`: one hardened service per peer with its own key, and names that change with the content."""

import re

import pytest
import yaml
from typer.testing import CliRunner

from coordinator_free_bootstrap import load_graph, make_graph, parse_manifest, save_graph
from coordinator_free_bootstrap.errors import UsageError
from peer.cli.main import app
from peer.identity.files import KeyFiles, load_key_pair
from peer.identity.pinning import pin
from peer.ops.deploy.swarm import CONFIG_BYTES_MAX, Stack, write_swarm


def written(out, stack=None, graph=None):
    """Return the content of a stack file that was written now."""
    write_swarm(graph or make_graph("ring", 3), out, stack or Stack())
    return yaml.safe_load((out / "stack.yml").read_text())


def peers(content):
    return [content["services"][f"peer-{i}"] for i in range(len(content["services"]) - ("page" in content["services"]))]


def file_of(content, kind, entry):
    """Return the file of a config or secret that a service names."""
    return content[kind][entry["source"]]["file"]


def test_each_peer_is_a_service_with_its_own_key_and_state(tmp_path):
    content = written(tmp_path)
    for peer_id, row in enumerate(peers(content)):
        assert row["command"][:3] == ["run", "--id", str(peer_id)]
        assert row["volumes"] == [
            {"type": "volume", "source": f"peer-{peer_id}-state", "target": "/state"},
            {"type": "tmpfs", "target": "/tmp"},  # the root file system and a task's folder cannot be written
        ]
        (secret,) = row["secrets"]
        assert file_of(content, "secrets", secret) == f"./keys/peer-{peer_id}/peer-{peer_id}.key"
        assert (secret["uid"], secret["mode"]) == ("10001", 0o400)
        graph, certificate = row["configs"]
        assert (file_of(content, "configs", graph), graph["target"]) == ("./graph.json", "/graph/graph.json")
        files = KeyFiles.of(tmp_path / "keys" / f"peer-{peer_id}", peer_id)
        assert (tmp_path / file_of(content, "configs", certificate)).samefile(files.certificate)
        assert load_key_pair(files).certificate.fingerprint in load_graph(tmp_path / "graph.json").node(peer_id).pins
    assert set(content["volumes"]) == {"peer-0-state", "peer-1-state", "peer-2-state", "page"}


def test_names_and_files_that_services_use_exist(tmp_path, own_task):
    content = written(tmp_path / "out", Stack(), make_graph("ring", 3, manifest=own_task))
    for kind in ("configs", "secrets"):
        used = {entry["source"] for row in content["services"].values() for entry in row[kind]}
        assert used == set(content[kind])
        assert all((tmp_path / "out" / entry["file"]).is_file() for entry in content[kind].values())
    named = {v["source"] for row in content["services"].values() for v in row["volumes"] if v["type"] == "volume"}
    assert named == set(content["volumes"])
    assert {name for row in content["services"].values() for name in row["networks"]} == set(content["networks"])


def test_addresses_are_the_services_and_the_digest_does_not_change(tmp_path):
    graph = make_graph("ring", 3)
    written(tmp_path, graph=graph)
    found = load_graph(tmp_path / "graph.json")
    assert [node.address for node in found.nodes] == [f"peer-{i}:7400" for i in range(3)]
    assert found.digest == graph.digest


def test_every_service_is_hardened_and_only_the_page_publishes_a_port(tmp_path):
    content = written(tmp_path)
    assert content["networks"]["federation"] == {"driver": "overlay", "internal": True}
    for name, row in content["services"].items():
        assert row["read_only"] is True and row["cap_drop"] == ["ALL"]
        assert row["deploy"]["endpoint_mode"] == "dnsrr"
        assert row["deploy"]["update_config"]["order"] == "stop-first"  # never two processes with one state
        assert ("ports" in row) == (name == "page")
    page = content["services"]["page"]
    port = "${PAGE_PORT:-7480}"
    assert page["ports"] == [{"target": port, "published": port, "mode": "host"}]
    assert page["command"][-1] == f"0.0.0.0:{port}"
    assert file_of(content, "secrets", page["secrets"][0]) == "./keys/page/page.key"
    assert [each.name for each in load_graph(tmp_path / "graph.json").observers] == ["page"]


def test_peers_with_a_folder_of_all_nodes_have_no_volumes(tmp_path):
    assert list(written(tmp_path, Stack(state="/srv"))["volumes"]) == ["page"]


def test_writing_again_changes_nothing(tmp_path):
    assert written(tmp_path) == written(tmp_path)


def test_a_changed_graph_or_key_gets_a_new_name(tmp_path):
    """Docker refuses to change a config or secret that exists."""
    first = written(tmp_path)
    second = written(tmp_path, graph=make_graph("ring", 3, manifest=parse_manifest({"rounds": 7}, "test")))
    assert {n.split("-")[0] for n in first["configs"].keys() - second["configs"].keys()} == {"graph"}
    for path in (tmp_path / "keys" / "peer-1").iterdir():
        path.unlink()
    third = written(tmp_path, graph=make_graph("ring", 3, manifest=parse_manifest({"rounds": 7}, "test")))
    assert [name[:7] for name in second["secrets"].keys() - third["secrets"].keys()] == ["peer-1-"]


def test_peers_are_dealt_to_nodes_within_the_constraints(tmp_path):
    content = written(tmp_path, Stack(nodes=("a", "b"), constraints=("node.labels.site==x",)))
    found = [row["deploy"]["placement"]["constraints"] for row in peers(content)]
    assert found == [["node.labels.site==x", f"node.hostname=={node}"] for node in ("a", "b", "a")]
    assert written(tmp_path)["services"]["peer-0"]["deploy"]["placement"] == {"constraints": []}


def test_shared_state_and_shards_are_folders_of_the_nodes(tmp_path):
    shard = make_graph("ring", 3, manifest=parse_manifest({"split": "shard"}, "test"))
    result = deploy(tmp_path, shard, "--state", "/srv/state", "--shards", "/srv/shards")
    assert result.exit_code == 0, result.output
    content = yaml.safe_load((tmp_path / "out" / "stack.yml").read_text())
    state, _, own = peers(content)[2]["volumes"]
    assert state == {"type": "bind", "source": "/srv/state/peer-2", "target": "/state"}
    assert own["source"] == "/srv/shards/peer-2.safetensors" and own["read_only"] is True
    assert peers(content)[2]["command"][-2:] == ["--shard", own["target"]]


def test_a_task_file_is_a_config_in_the_working_directory(tmp_path, own_task):
    row = peers(written(tmp_path / "out", Stack(), make_graph("ring", 3, manifest=own_task)))[0]
    assert row["working_dir"] == "/task"
    assert row["configs"][1]["target"] == "/task/code/mine.py"


def test_an_algorithm_file_is_a_config_beside_that_of_the_task(tmp_path, own_algorithm):
    row = peers(written(tmp_path / "out", Stack(), make_graph("ring", 3, manifest=own_algorithm)))[0]
    assert [each["target"] for each in row["configs"][1:3]] == ["/task/code/mine.py", "/task/code/half.py"]
    assert (tmp_path / "out" / "task" / "code" / "half.py").read_bytes() == (tmp_path / "code" / "half.py").read_bytes()


def test_private_keys_are_among_the_written_files(tmp_path):
    result = deploy(tmp_path, make_graph("ring", 3))
    found = re.findall(r"keys/(\S+)\.key \(private key\)", result.stderr)
    assert found == ["peer-0/peer-0", "peer-1/peer-1", "peer-2/peer-2", "page/page"]


def deploy(folder, graph, *options):
    """Run the command on a graph."""
    save_graph(graph, folder / "g.json")
    return CliRunner().invoke(app, ["deploy", "swarm", str(folder / "g.json"), "--out", str(folder / "out"), *options])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"constraints": ("gpu",)},
            "--node: expected a host name, KEY==VALUE or KEY!=VALUE, such as node.role==worker",
        ),
        ({"nodes": ("a b",)}, "--node: expected a host name as docker node ls shows it, got 'a b'"),
        ({"state": "srv"}, "--state: expected an absolute path that is valid on every node, got srv"),
        ({"shards": "/srv/../x"}, "--shards: expected an absolute path that is valid on every node, got /srv/../x"),
        ({"image": "a b"}, "--image: expected the name of an image, such as registry.example/peer:1, got 'a b'"),
    ],
)
def test_values_that_docker_refuses_are_errors(values, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        Stack(**values)


def test_split_shard_without_a_folder_is_refused(tmp_path):
    shard = make_graph("ring", 3, manifest=parse_manifest({"split": "shard"}, "test"))
    with pytest.raises(UsageError, match="--shards: expected FOLDER"):
        write_swarm(shard, tmp_path, Stack())


def test_a_task_file_beyond_the_size_of_a_config_is_refused(tmp_path, own_task):
    with (tmp_path / "code" / "mine.py").open("a") as file:
        file.write("#" * CONFIG_BYTES_MAX)
    with pytest.raises(UsageError, match=r"run\.task: code/mine\.py: expected at most 1023999 bytes, .*, got"):
        write_swarm(make_graph("ring", 3, manifest=own_task), tmp_path / "out", Stack())
    assert not (tmp_path / "out" / "stack.yml").exists()


def test_a_second_pin_of_the_page_does_not_repeat_it(tmp_path):
    """A graph file that was written by this verb can be given again."""
    written(tmp_path)
    again = load_graph(tmp_path / "graph.json")
    assert written(tmp_path, graph=again)["services"]["page"]
    assert pin(again, []).observers == load_graph(tmp_path / "graph.json").observers
