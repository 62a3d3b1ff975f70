"""A run in which nothing can be learned ends at once, with its own exit code: models that diverge, neighbors that all refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tools.running import forked_peer, on_loopback
from tools.warm_parent import Forked

from coordinator_free_bootstrap import Graph, make_graph, parse_manifest, save_graph
from coordinator_free_bootstrap.errors import AloneError, ConfigError, DivergedError
from peer.bed.testbed.ports import free_ports
from peer.core.effects import WriteCheckpoint
from peer.lab.simulated import simulate
from peer.view.report.report import build_report

pytestmark = pytest.mark.process
SMALL = {"rounds": 4, "model_options": {"hidden": 8}, "split_options": {"samples_per_peer": 60, "test_per_peer": 20}}


def graph_of(ports: list[int], **run: object) -> Graph:
    graph = make_graph("complete", len(ports), manifest=parse_manifest(SMALL | run, "test"))
    nodes = (replace(n, address=f"127.0.0.1:{port}") for n, port in zip(graph.nodes, ports, strict=True))
    return replace(graph, nodes=tuple(nodes))


def start(folder: Path, peer_id: int, graph: Graph) -> Forked:
    name = f"graph-{peer_id}.json"
    save_graph(graph, folder / name)
    return forked_peer(peer_id, folder, "--insecure", graph=name)


def ended(process: Forked) -> tuple[int, str]:
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def test_diverged_peers_end_with_their_exit_code_and_leave_no_model(tmp_path: Path) -> None:
    graph = graph_of(free_ports(2), learning_rate=1e30)
    for code, errors in [ended(p) for p in [start(tmp_path, i, graph) for i in graph.ids]]:
        assert code == DivergedError.exit_code == 50
        assert "diverged in round 0: the model of slot" in errors and "lower run.learning_rate (1e+30)" in errors
        assert "(docs/trouble.md#diverged)" in errors
    for peer_id in graph.ids:
        folder = tmp_path / f"peer-{peer_id}"
        summary = json.loads((folder / "summary.json").read_text(), parse_constant=pytest.fail)
        assert summary["status"] == "diverged" and not list(folder.glob("models/*"))


def steep(restores: int) -> dict[str, object]:
    """Return the settings of a regression that overflows at this learning rate and at its half, and learns at an eighth."""
    options = {"features": 3, "samples_per_cluster": 200, "test_per_cluster": 40}
    return {
        **{"task": "linear", "task_options": options, "split": "iid", "split_options": {}, "model_options": {}},
        **{
            "learning_rate": 3.2,
            "local_epochs": 1000,
            "batch_size": "all",
            "clusters": 1,
            "algorithm": "dfedavg",
        },
        **{"rounds": 6, "diverged_restores": restores},
    }


@pytest.mark.slow
def test_diverged_peers_go_back_to_their_last_finite_models_if_the_manifest_says_so() -> None:
    peers = simulate(graph_of([1, 2], **steep(4)), None)
    for peer in peers.values():
        rounds = [fields for kind, fields in peer.recording.lines if kind == "round"]
        restored = [fields["restores"] for fields in rounds if "restores" in fields]
        assert restored == list(range(1, len(restored) + 1)) and 2 <= len(restored) <= 4
        space = peer.host.workspace
        assert space.learning_rate == 3.2 * 0.5 ** len(restored)
        untrained = rounds[0]["metric_value"]  # the squared error of the initial model: the first training was undone
        assert rounds[0]["train_loss"] is None and rounds[-1]["metric_value"] < 0.8 * untrained
        assert peer.host.checkpoint(WriteCheckpoint(5, {})).state["restores"] == len(restored)


def test_a_peer_without_restores_left_ends_as_diverged() -> None:
    with pytest.raises(DivergedError, match=r"diverged in round 1: .* also after 1 restores"):
        simulate(graph_of([1, 2], **steep(1)), None)


@pytest.mark.slow
def test_processes_that_go_back_to_their_last_finite_models_complete_the_run(tmp_path: Path) -> None:
    graph = graph_of(free_ports(2), **steep(4))
    for code, errors in [ended(p) for p in [start(tmp_path, i, graph) for i in graph.ids]]:
        assert code == 0, errors
        assert "went back to the models of the last completed round (1 of 4 restores), learning rate now 1.6" in errors
    for peer_id in graph.ids:
        assert json.loads((tmp_path / f"peer-{peer_id}" / "summary.json").read_text())["status"] == "completed"
        assert (tmp_path / f"peer-{peer_id}" / "models" / "personalized.safetensors").is_file()
    warning = build_report(tmp_path).values["warnings"][0]
    assert warning.startswith("peer 0: diverged and went back to its last finite models ")


def test_simulated_run_that_diverges_ends_with_the_same_error() -> None:
    with pytest.raises(DivergedError, match="diverged in round 0"):
        simulate(graph_of([1, 2], learning_rate=1e30), None)


@pytest.mark.parametrize("wait_for", ["all", "never_alone"])
def test_peers_of_different_manifests_both_end_with_a_configuration_error(tmp_path: Path, wait_for: str) -> None:
    """Also the one that refuses: it has noted that its only neighbor does not agree, though that has ended meanwhile."""
    ports, begin = free_ports(2), {"wait_for": wait_for, "deadline_s": 600.0}
    peers = [start(tmp_path, i, graph_of(ports, rounds=4 + i, start=begin)) for i in (0, 1)]
    for code, errors in map(ended, peers):
        assert code == ConfigError.exit_code, errors
        assert "refused by all neighbors" in errors and "run.rounds" in errors and "4" in errors and "5" in errors
        assert "(docs/trouble.md#refused-by-all)" in errors


def test_peer_that_trained_alone_says_so_everywhere_and_ends_with_its_own_exit_code(tmp_path: Path) -> None:
    code, errors = ended(start(tmp_path, 0, graph_of(free_ports(2), start={"deadline_s": 0.1})))
    assert code == AloneError.exit_code == 51
    assert (
        "round 0 was without any neighbor: training alone (peer 1 unknown) (docs/trouble.md#training-alone)" in errors
    )
    assert (
        "trained alone: 4 of 4 rounds were without any neighbor (peer 1 unknown) (docs/trouble.md#training-alone)"
        in errors
    )
    assert "peer 1 took part in 0 of 4 rounds of this peer" in errors
    summary = json.loads((tmp_path / "peer-0" / "summary.json").read_text())
    assert (summary["status"], summary["exit_code"], summary["totals"]["rounds_alone"]) == ("alone", 51, 4)
    assert (tmp_path / "peer-0" / "models" / "personalized.safetensors").is_file()
    values = build_report(tmp_path).values
    assert (values["state"], values["rounds_alone"]) == ("alone", 4)
    (row,) = values["peers"]
    assert (row["status"], row["exit_code"], row["alone"], row["rounds_alone"]) == ("alone", 51, True, 4)


def test_with_everyone_no_peer_starts_without_a_neighbor_and_the_next_start_with_all_completes(tmp_path: Path) -> None:
    ports = free_ports(3)
    short = graph_of(ports, start={"wait_for": "everyone", "deadline_s": 2.0})
    for code, errors in [ended(p) for p in [start(tmp_path, i, short) for i in (0, 1)]]:
        assert code == AloneError.exit_code
        assert "waiting up to 2 s for neighbors" in errors and "and ends then if one is missing" in errors
        assert "not started: neighbors [" in errors and "peer 2 unknown" in errors
    for peer_id in (0, 1):
        summary = json.loads((tmp_path / f"peer-{peer_id}" / "summary.json").read_text())
        assert (summary["status"], summary["exit_code"], summary["rounds_completed"]) == ("alone", 51, 0)
    whole = graph_of(ports, start={"wait_for": "everyone", "deadline_s": 100.0})
    for code, errors in [ended(p) for p in [start(tmp_path, i, whole) for i in whole.ids]]:
        assert code == 0, errors
        assert "not started" not in errors and "starting without" not in errors


def test_with_everyone_a_peer_that_is_missing_far_away_is_missed_by_all(tmp_path: Path) -> None:
    manifest = graph_of(free_ports(2), start={"wait_for": "everyone", "deadline_s": 6.0}).manifest
    graph = on_loopback(make_graph("line", 4, manifest=manifest))
    logs = []
    for code, errors in [ended(p) for p in [start(tmp_path, i, graph) for i in (0, 1, 2)]]:
        assert code == AloneError.exit_code, errors
        assert "not started: " in errors
        logs.append(errors)
    for peer_id in (0, 1, 2):
        summary = json.loads((tmp_path / f"peer-{peer_id}" / "summary.json").read_text())
        assert (summary["status"], summary["rounds_completed"]) == ("alone", 0)
    # who ends first names peer 3; a later one may name a neighbor that has ended by then
    assert any("[3], beyond the neighbors, were not there in 6 s" in log or "neighbors [3] were" in log for log in logs)


def test_peer_that_must_not_train_alone_ends_without_a_round(tmp_path: Path) -> None:
    never = {"wait_for": "never_alone", "deadline_s": 0.5}
    code, errors = ended(start(tmp_path, 0, graph_of(free_ports(2), start=never)))
    assert code == AloneError.exit_code
    assert "alone: no neighbor was live for 0.5 s, and run.start.wait_for is never_alone (peer 1 unknown)" in errors
    assert json.loads((tmp_path / "peer-0" / "summary.json").read_text())["rounds_completed"] == 0
