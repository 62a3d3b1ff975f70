"""Goal: a killed, paused, slow or restarted peer delays its neighbors once, by a bounded time, and no model is folded twice.

Faults: kill during handshake, sending, folding, persisting (bit for bit in tests/process/test_resume.py); restart with an
older checkpoint; pause; permanent loss that leaves the graph connected or cuts it; straggler; wall clock; open files;
reconnect storm.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tools import invariants
from tools.beds import Bed
from tools.running import running_command

import peer
from coordinator_free_bootstrap import save_graph
from peer.bed.chaos.faults import FAULTS, FaultEvent
from peer.bed.chaos.script import random_script
from peer.view.report.report import build_report

pytestmark = pytest.mark.chaos

Make = Callable[..., Bed]
QUICK = {"suspicion_s": 6.0}  # on a busy machine a healthy neighbor may be silent for seconds
SEED = 624  # of a random script with every fault and a lost disk


@pytest.mark.parametrize(
    "failpoint", ["hello.end=kill@2", "send.frame=kill@9", "fold.begin=kill@8", "persist.sealed=kill@5"]
)
def test_survivors_finish_and_wait_once_for_a_killed_neighbor(bed: Make, failpoint: str) -> None:
    start = {"wait_for": 0.5, "deadline_s": 5.0}
    run = bed(rounds=20, peers=5, kind="complete", timeouts=QUICK, failpoints={1: failpoint}, start=start)
    assert run.until_ended(1) == -9 and run.fired(1) == 1
    last = run.finish()
    assert last["exit_codes"]["1"] == -9
    ended = build_report(run.directory).values["peers"]
    assert [(row["status"], row["exit_code"]) for row in ended] == [
        ("dead", -9) if p == 1 else ("completed", 0) for p in range(5)
    ]
    survivors = (0, 2, 3, 4)
    invariants.completed(run, *survivors)
    invariants.check(run, *survivors)
    for survivor in survivors:
        if run.saw(survivor, 1, "alive"):  # the quorum may start without it
            invariants.marked_dead_once(run, survivor, 1)


def test_after_an_older_checkpoint_was_restored_no_model_is_folded_twice(bed: Make) -> None:
    run = bed(rounds=100_000, peers=5, kind="complete", timeouts=QUICK)
    run.until_round(3, 1)
    place = run.place(1).checkpoints
    run.do("kill", 1)
    old = run.directory / "old"
    shutil.copytree(place, old)
    run.do("restart", 1)
    run.until_round(12, 1)
    run.do("kill", 1)
    shutil.rmtree(place)
    shutil.copytree(old, place)
    lines = len(run.history(1))
    run.do("restart", 1)
    run.until(lambda: _caught_up(run, 1, lines), "peer 1 catches up and completes a round")
    run.stop()
    resumed = [line["resumed_from"] for line in run.history(1, "start")]
    assert len(resumed) == 3 and resumed[2] is not None and resumed[2] < 12
    for peer_id in run.graph.ids:
        invariants.folded_once(run, peer_id)
        invariants.only_neighbors(run, peer_id)
    incarnations = [line["incarnation"] for line in run.history(1, "start")]
    assert incarnations == sorted(set(incarnations))


def _caught_up(run: Bed, peer_id: int, since: int) -> bool:
    """Return whether a peer has caught up and then completed a round, after so many lines of its history."""
    kinds = [line["kind"] for line in run.history(peer_id)[since:]]
    return "caught_up" in kinds and "round" in kinds[kinds.index("caught_up") :]


@pytest.mark.parametrize("until_dead", [False, True])
def test_a_paused_peer_rejoins_and_marks_no_neighbor_dead(bed: Make, until_dead: bool) -> None:
    run = bed(rounds=60, peers=5, kind="complete", timeouts=QUICK)
    run.until_round(4)
    if until_dead:
        run.do("pause", 1)
        run.until(lambda: run.saw(0, 1, "dead"), "peer 0 marks the paused peer 1 dead")
        run.do("continue", 1)
    else:
        run.do("pause", 1, for_s=1.0)
    run.finish()
    invariants.completed(run)
    invariants.check(run)
    assert not any(run.saw(1, other, "dead") for other in (0, 2, 3, 4)), (
        "the paused peer marked a neighbor dead after its own pause"
    )
    if until_dead:
        changes = [line["state"] for line in run.history(0, "neighbor") if line["neighbor"] == 1]
        assert "alive" in changes[changes.index("dead") :], changes
    else:
        assert not run.saw(0, 1, "dead")
    for peer_id in run.graph.ids:
        assert {line[0] for line in run.last_rounds(peer_id)[59]["folded"]} == set(run.graph.neighbors(peer_id))


def test_after_permanent_losses_each_connected_part_finishes(bed: Make) -> None:
    """Two losses cut a ring of six into two parts; each part finishes, and the histories list the missing neighbors."""
    run = bed(rounds=25, peers=6, timeouts=QUICK, failpoints=dict.fromkeys((0, 3), "train.begin=kill@5"))
    run.finish()
    assert run.fired(0) == run.fired(3) == 1
    survivors = (1, 2, 4, 5)
    invariants.completed(run, *survivors)
    invariants.check(run, *survivors)
    for survivor, lost, partner in ((1, 0, 2), (2, 3, 1), (4, 3, 5), (5, 0, 4)):
        last = run.last_rounds(survivor)[24]
        assert last["missing"] == [lost] and {line[0] for line in last["folded"]} == {partner}
        assert last["neighbors_alive"] == 1


def test_in_async_pace_no_peer_waits_for_a_straggler(bed: Make) -> None:
    """One peer is paused repeatedly; the others complete rounds meanwhile, and fold its newest models when it continues."""
    others = (0, 2, 3, 4)
    run = bed(rounds=120, peers=5, kind="complete", pace="async")
    run.until_round(2)
    for _ in range(3):
        run.do("pause", 1)
        before = {p: run.rounds(p) for p in others}
        run.until(lambda b=before: all(run.rounds(p) >= b[p] + 3 for p in others), "the others do not wait for peer 1")
        run.do("continue", 1)
    run.finish()
    invariants.completed(run)
    for peer_id in others:
        invariants.check(run, peer_id)
        rows = [folded for line in run.history(peer_id, "round") for folded in line["folded"] if folded[0] == 1]
        assert [row[2] for row in rows] == sorted({row[2] for row in rows}), "each model once, none after a newer one"
        late = [
            line for line in run.history(peer_id, "round") if line["folded"] and line["round_index"] > before[peer_id]
        ]
        assert any(row[0] == 1 for line in late for row in line["folded"]), "the straggler takes part again"


def test_all_peers_reconnect_after_all_links_are_reset(bed: Make) -> None:
    """All links of twelve peers are reset at once, three times; no peer is marked dead and no file stays open."""
    run = bed(rounds=40, peers=12, kind="erdos-renyi", proxy=True)
    run.until_round(3)
    pids = run.state()["processes"]
    files = {p: len(os.listdir(f"/proc/{pid}/fd")) for p, pid in pids.items()}
    for number in (5, 10, 15):
        run.until_round(number, 0)
        run.do("cut", edges=run.graph.edges, mode="reset", for_s=0.2)
    run.until_round(30)
    after = {p: len(os.listdir(f"/proc/{pid}/fd")) for p, pid in pids.items()}
    assert all(after[p] <= files[p] + 8 for p in pids), (files, after)
    last = run.finish()
    assert sum(counters["resets"] for counters in last["counters"].values()) >= 3 * len(run.graph.edges)
    invariants.completed(run)
    invariants.check(run)
    for peer_id in run.graph.ids:
        assert "dead" not in [line["state"] for line in run.history(peer_id, "neighbor")]


def _most_rounds(run: Bed) -> int:
    return max(map(run.rounds, run.graph.ids))


def _occurred(run: Bed, event: FaultEvent) -> int:
    """Return how often a fault of edges has stopped or delayed bytes so far, from the counters of the proxies."""
    side = {peer_id: number for number, group in enumerate(event.groups) for peer_id in group}
    edges = event.edges or [
        (a, b) for a, b in run.graph.edges if ({a, b} & {*event.peers} if event.peers else side[a] != side[b])
    ]
    directions = {*edges} if event.do == "one_way" else {pair for a, b in edges for pair in ((a, b), (b, a))}
    counters, name = run.state()["counters"], "delayed" if event.do == "slow" else "held"
    return sum(counters[f"{a}->{b}"][name] for a, b in directions)


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _execute_on_process(run: Bed, event: FaultEvent) -> None:
    """Execute one event on one peer and check its effect."""
    (peer_id,) = event.peers
    pid = run.state()["processes"].get(str(peer_id))
    assert run.do(event.do, peer_id, disk=event.disk) == "done"
    if event.do in ("kill", "leave"):
        assert run.until_ended(peer_id) == (-9 if event.do == "kill" else 0)
    elif event.do == "restart":
        assert run.state()["processes"][str(peer_id)] != pid
    else:
        run.until(lambda: _is_stopped(pid) == (event.do == "pause"), event.text())


def test_a_run_with_random_faults_completes(bed: Make) -> None:
    """The script's seconds are scaled to rounds; no fault ends before a process or a proxy has shown its effect."""
    run = bed(rounds=80, peers=8, kind="erdos-renyi", proxy=True, timeouts={"suspicion_s": 2.0})
    names = {name for name, fault in FAULTS.items() if fault.weight}
    events = random_script(FAULTS, run.graph.ids, run.graph.edges, SEED, 20.0, every_s=2.0).event
    assert {event.do for event in events} == names and "lose" in {event.disk for event in events}
    ends = [(event.at_s + event.for_s, event.undo(), event) for event in events]
    before: dict[FaultEvent, int] = {}
    second_before = 0.0
    for second, event, ending in sorted([*((e.at_s, e, None) for e in events), *ends], key=lambda each: each[0]):
        place = _most_rounds(run) + 2 * (second - second_before)
        before_it = f"the rounds before {event.text()}"
        run.until(lambda rounds=place: _most_rounds(run) >= rounds, before_it, lambda: _most_rounds(run))
        second_before = second
        if not FAULTS[event.do].network:
            _execute_on_process(run, event)
            continue
        if ending is None:
            before[event] = _occurred(run, event)
        else:
            run.until(lambda e=ending: _occurred(run, e) > before[e], f"{ending.text()} has an effect")
        assert run.do(event.do, **event.parameters()) == "done"
    assert run.finish()["failed"] == {}
    invariants.completed(run)
    for peer_id in run.graph.ids:
        invariants.folded_once(run, peer_id)
        invariants.only_neighbors(run, peer_id)


def test_a_peer_with_another_manifest_is_refused_and_the_others_continue(bed: Make, tmp_path: Path) -> None:
    start = {"wait_for": "deadline", "deadline_s": 1.0}
    run = bed(rounds=300, late=(3,), start=start, timeouts={"suspicion_s": 1.0})
    other = replace(run.graph, manifest=run.graph.manifest.model_copy(update={"clusters": 3}))
    save_graph(other, tmp_path / "other.json")
    words = ("run", "--id", 3, "--neighbors", tmp_path / "other.json", "--state-dir", tmp_path / "state", "--insecure")
    with running_command(*words, log=tmp_path / "log"):
        lines = run.until(lambda: run.history(0, "refused"), "peer 0 refuses the handshake")
    assert lines[0]["code"] == "manifest_mismatch" and lines[0]["neighbor"] == 3
    assert "run.clusters: peer 0 has 2, peer 3 has 3" in lines[0]["reason"]
    done = run.rounds(0)
    run.until(lambda: run.rounds(0) > done + 2, "peer 0 continues")
    assert not any(line["kind"] == "neighbor" and line["neighbor"] == 3 for line in run.history(0))


def test_the_wall_clock_is_read_for_timestamps_certificates_and_windows_of_work_only() -> None:
    """A jump of the clock changes no round: only timestamps, the validity of certificates and --when depend on it."""
    stamps = {"store/history.py", "store/audit.py", "runtime/results.py", "wire/security.py", "runtime/schedule.py"}
    root = Path(peer.__file__).parent
    reading = re.compile(r"\btime\.(time|time_ns|gmtime|localtime)\(|\bdatetime\.(now|utcnow|today)\(")
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if reading.search(path.read_text())}
    runtime = {
        name for name in found if name.split("/")[0] in ("core", "algorithms", "host", "store", "wire", "runtime")
    }
    assert runtime <= stamps, f"these modules of a running peer read the wall clock: {sorted(runtime - stamps)}"
