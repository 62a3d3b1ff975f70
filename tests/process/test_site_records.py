"""Goal: what a site keeps and tells of its peer is complete: audit log, events, and what may be pruned of it.

Method: real processes with keys; one is killed in the middle of a line of its audit log's run, and comes back.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tools.beds import Bed
from tools.running import PATIENCE_S, on_loopback, running_peer
from typer.testing import CliRunner

from coordinator_free_bootstrap import load_graph, make_graph, parse_manifest, save_graph
from peer.cli.main import app
from peer.store.audit import verify
from peer.store.history import read_history

pytestmark = pytest.mark.process
Make = Callable[..., Bed]
VICTIM = 1
RUN: dict[str, Any] = {
    "rounds": 5,
    "algorithm": "dfedavg",
    "model_options": {"hidden": 8},
    "split_options": {"samples_per_peer": 60, "test_per_peer": 20},
}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_audit_log_has_every_model_that_a_neighbor_folded_and_every_key(bed: Make) -> None:
    run = bed(**RUN, insecure=False, failpoints={VICTIM: "audit.write=kill@12"})
    assert run.until_ended(VICTIM) == -signal.SIGKILL and run.fired(VICTIM) == 1
    run.arm(VICTIM, "")
    run.do("restart", VICTIM)
    assert run.finish()["failed"] == {}
    logs = {peer: lines(run.place(peer).audit) for peer in run.graph.ids}
    pins = {node.id: set(node.pins) for node in load_graph(run.directory / "graph.json").nodes}
    for peer in run.graph.ids:
        found = verify(run.place(peer).audit)
        assert not found.problem and found.lines == len(logs[peer])
        starts = [line for line in logs[peer] if line["kind"] == "start"]
        assert len(starts) == 1 + (peer == VICTIM) and logs[peer][-1]["kind"] == "end"
        assert {line["graph"] for line in starts} == {run.graph.digest}
        assert {line["key"] for line in starts} <= pins[peer]
        keys = {
            line["who"]: line["key"] for line in logs[peer] if line["kind"] == "key" and isinstance(line["who"], int)
        }
        assert set(keys) == set(run.graph.neighbors(peer)) and all(key in pins[who] for who, key in keys.items())
    folds = complete = 0
    for peer in run.graph.ids:
        for line in run.history(peer, "round"):
            for sender, _incarnation, round_index, step, slot in line["folded"]:
                place = {"neighbor": peer, "round_index": round_index, "step": step, "slot": slot}
                found = [each for each in logs[sender] if place.items() <= each.items()]
                assert "sending" in {each["kind"] for each in found}, (sender, place)
                complete += any(each["kind"] == "sent" and len(each["xxh3"]) == 32 for each in found)
                folds += 1
    in_flight = len(run.graph.neighbors(VICTIM))
    assert folds - in_flight <= complete <= folds, "only models on their way when the peer was killed have no end"


def test_what_a_peer_pulls_is_in_the_audit_log_of_its_neighbor(bed: Make) -> None:
    """A peer that comes back far behind catches up by pulls."""
    run = bed(**RUN | {"rounds": 12, "timeouts": {"suspicion_s": 1.0}}, failpoints={VICTIM: "train.begin=kill@2"})
    assert run.until_ended(VICTIM) == -signal.SIGKILL and run.fired(VICTIM) == 1
    run.until_round(7, 0, 2, 3)
    run.arm(VICTIM, "")
    run.do("restart", VICTIM)
    run.finish()
    assert run.history(VICTIM, "caught_up")
    served = [line for n in run.graph.neighbors(VICTIM) for line in lines(run.place(n).audit) if line.get("pull")]
    assert {line["kind"] for line in served} == {"sending", "sent"} and {line["neighbor"] for line in served} == {
        VICTIM
    }
    assert {line["answer"] for line in served if line["kind"] == "sent"} == {"complete"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    manifest = parse_manifest(RUN | {"timeouts": {"suspicion_s": 60.0}}, "test")
    save_graph(on_loopback(make_graph("line", 2, manifest=manifest)), tmp_path / "graph.json")
    return tmp_path


def test_the_end_of_a_run_and_of_a_diverged_one_is_told(home: Path) -> None:
    event = home / "event"
    with ExitStack() as stack:
        told = ("--insecure", "--on-event", f"sh -c 'cat >> {event}'")
        peers = [stack.enter_context(running_peer(i, home, *(told if i == 0 else told[:1]))) for i in (0, 1)]
        assert [peer.wait(PATIENCE_S) for peer in peers] == [0, 0], (home / "0.log").read_text()
    (found,) = [json.loads(part + "}") for part in event.read_text().split("}") if part]
    assert found["event"] == "finished" and found["outcome"] == "completed"
    assert (found["exit_code"], found["peer_id"], found["round_index"], found["rounds"]) == (0, 0, 5, 5)


def test_a_full_disk_is_told_while_the_run_goes_on(home: Path) -> None:
    event = home / "event"
    full = {"PEER_FAILPOINTS": "history.write=error:ENOSPC@3-"}
    with ExitStack() as stack:
        told = ("--insecure", "--on-event", f"sh -c 'cat >> {event}'")
        first = stack.enter_context(running_peer(0, home, *told, environment=full))
        second = stack.enter_context(running_peer(1, home, "--insecure"))
        assert (first.wait(PATIENCE_S), second.wait(PATIENCE_S)) == (0, 0), (home / "0.log").read_text()
    assert "failpoint" in (home / "0.log").read_text()
    found = [json.loads(part + "}")["event"] for part in event.read_text().split("}") if part]
    assert found == ["disk_full", "finished"]


def test_a_program_that_does_not_exist_is_refused_at_the_start(home: Path) -> None:
    with running_peer(0, home, "--insecure", "--on-event", "no-such-program --x") as peer:
        assert peer.wait(PATIENCE_S) == 2
    assert "--on-event: expected a program of this machine and its arguments" in (home / "0.log").read_text()


def test_verify_and_prune_on_the_command_line(home: Path) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(running_peer(i, home, "--insecure")) for i in (0, 1)]
        assert [peer.wait(PATIENCE_S) for peer in peers] == [0, 0]
    place, runner = home / "peer-0", CliRunner()
    checked = runner.invoke(app, ["audit", "verify", str(place)])
    assert checked.exit_code == 0 and "lines hold together; the last hash is" in checked.output
    noted = checked.output.split()[-1]
    assert runner.invoke(app, ["audit", "verify", str(place), "--holds", noted]).exit_code == 0
    log = place / "audit.jsonl"
    kept = log.read_text()
    log.write_text("".join(kept.splitlines(keepends=True)[:-1]))
    assert runner.invoke(app, ["audit", "verify", str(place)]).exit_code == 0
    cut = runner.invoke(app, ["audit", "verify", str(place), "--holds", noted])
    assert cut.exit_code == 1 and "the end of the log was removed" in cut.output
    log.write_text(kept.replace('"slot":0', '"slot":1', 1))
    broken = runner.invoke(app, ["audit", "verify", str(place), "--json"])
    assert broken.exit_code == 1 and json.loads(broken.output)["intact"] is False

    assert runner.invoke(app, ["state", "prune", str(place)]).output == "nothing to remove\n"
    (place / "discarded-1").mkdir()
    (place / "discarded-1" / "old.bin").write_bytes(bytes(3_000_000))
    (place / "history.jsonl").rename(place / "history.1.jsonl")
    (place / "history.jsonl").write_text("")
    listed = runner.invoke(app, ["state", "prune", str(home), "--older-than", "0"])
    assert "3.0 MB" in listed.output and "rounds 0 to 4" in listed.output and "Add --yes" in listed.output
    assert (place / "discarded-1").exists() and len(read_history(place / "history.jsonl")) > 5
    runner.invoke(app, ["state", "prune", str(home), "--older-than", "0", "--yes"])
    assert not (place / "discarded-1").exists()
    assert {line["kind"] for line in read_history(place / "history.jsonl")} == {"start", "end"}
    assert runner.invoke(app, ["state", "prune", str(home), "--older-than", "0"]).output == "nothing to remove\n"
