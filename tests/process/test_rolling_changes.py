"""Goal: a running federation takes the next graph file, one peer after the other, and loses no round; no file ends a peer.

Method: real processes in lockstep with a suspicion time longer than the test, so that a neighbor that is given up shows as a
missing one. They take files by SIGHUP or --watch-graph; failpoints kill them at each place of a change.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from test_revisions import Federation
from tools.beds import final_models, same_models
from tools.running import PATIENCE_S, running_peer, until
from tools.warm_parent import Forked, executed

from peer.lab.simulated import simulate
from peer.store.history import read_history

pytestmark = pytest.mark.process
ENDLESS = 100_000
CHANGED = "changed from graph file"


class Rolling(Federation):
    """A federation of running peers."""

    def __init__(self, home: Path, peers: int = 3, **run: Any) -> None:
        super().__init__(home, peers, **{"rounds": ENDLESS, "checkpoint_rounds": 1, **run})
        self.home, self.stack = home, ExitStack()
        self.peers: dict[int, Forked] = {}

    def __enter__(self) -> Rolling:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def start(self, ids: Iterable[int], *options: object, failpoint: str = "", security: str = "--insecure") -> None:
        for i in ids:
            running = running_peer(
                i, self.home, *security.split(), *options, environment={"PEER_FAILPOINTS": failpoint}
            )
            self.peers[i] = self.stack.enter_context(running)

    def hang_up(self, *ids: int) -> None:
        for i in ids:
            self.peers[i].send_signal(signal.SIGHUP)

    def said(self, peer_id: int, text: str, times: int = 1) -> None:
        until(
            lambda: self.log(peer_id).count(text) >= times,
            f"peer {peer_id}: {text!r}",
            evidence=lambda: self.log(peer_id),
        )

    def goes_on(self, *ids: int) -> None:
        """Wait until each of the peers has done more rounds."""
        before = {i: len(self.rounds(i)) for i in ids}
        for i in ids:
            until(lambda i=i: len(self.rounds(i)) > before[i] + 3, f"rounds of {i}", evidence=lambda i=i: self.log(i))

    def finish(self, *ids: int, but: tuple[int, int] = (-1, -1)) -> None:
        """Give the peers a file with few more rounds, and wait for their end; ``but``: a peer, and whom it may have missed."""
        now = max(len(self.rounds(i)) for i in ids)
        self.next("--rounds", str(now + 100))
        self.hang_up(*ids)
        for i in ids:
            assert self.peers[i].wait(PATIENCE_S) == 0, self.log(i)
        for i in ids:
            rounds = sorted(set(self.rounds(i)))  # one that a kill undid is done again
            assert rounds == list(range(len(rounds))), "no round is skipped"
            missing = {n for line in self.lines(i, "round") for n in line["missing"]}
            assert missing <= ({but[1]} if i == but[0] else set()), f"rounds of {i} without {missing}"


def kills(federation: Rolling, peer_id: int) -> Callable[[], None]:
    def check() -> None:
        assert federation.peers[peer_id].wait(PATIENCE_S) == -signal.SIGKILL, federation.log(peer_id)
        assert "failpoint" in federation.log(peer_id)

    return check


def test_peers_change_one_after_the_other_and_exchange_meanwhile(tmp_path: Path) -> None:
    with Rolling(tmp_path, 4) as federation:
        federation.start(range(4))
        federation.goes_on(0, 1, 2, 3)
        federation.next("--set", "run.learning_rate=0.02", "--add-edge", "0-2")
        for i in (1, 3, 0):  # 0 has the edge to 2 before 2 has it
            federation.hang_up(i)
            federation.said(i, CHANGED)
            federation.said(i, "new graph file: edge 0-2 comes")
            federation.goes_on(0, 1, 2, 3)
        federation.said(0, "no exchange with peer 2 yet: revision_ahead: ")
        assert CHANGED not in federation.log(2)
        shown = executed("status", tmp_path / "graph.json").stdout.replace("\n", "")
        digest = federation.graph.run_digest[:12]
        assert f"graph file 2 ({digest}): peer 0, 1, 3; graph file 1 (" in shown, shown
        federation.hang_up(2)
        federation.said(2, CHANGED)
        until(lambda: any(line["neighbors_alive"] == 3 for line in federation.lines(2, "round")), "the new edge")
        federation.finish(0, 1, 2, 3, but=(0, 2))
        for i in range(4):
            assert [line["rounds_completed"] for line in federation.lines(i, "leave")] != []
            assert len({line["incarnation"] for line in federation.lines(i, "round")}) == 3


def test_a_change_with_a_fixed_round_gives_the_bits_of_one_process(tmp_path: Path) -> None:
    rounds = 180
    with Rolling(tmp_path, 4, rounds=rounds, learning_rate=0.05) as federation:
        first = federation.graph
        federation.start(range(4))
        federation.goes_on(0, 1, 2, 3)
        change_in = max(len(federation.rounds(i)) for i in range(4)) + 100
        federation.next(
            *("--remove-edge", "0-1", "--add-edge", "0-2", "--add-edge", "1-3", "--set", "run.local_epochs=1"),
            *("--from-round", change_in),
        )
        federation.hang_up(0, 1, 2, 3)
        for i in range(4):
            assert federation.peers[i].wait(PATIENCE_S) == 0, federation.log(i)
            assert [line["resumed_from"] for line in federation.lines(i, "start")] == [None, change_in], federation.log(
                i
            )
        simulate(first, tmp_path / "simulated", revisions=[federation.graph])
        same_models(final_models(tmp_path, first), final_models(tmp_path / "simulated", first))
        for i in range(4):
            (values, simulated) = (
                [line["metric_value"] for line in lines if line["kind"] == "round"]
                for lines in map(
                    read_history,
                    (place / f"peer-{i}" / "history.jsonl" for place in (tmp_path, tmp_path / "simulated")),
                )
            )
            assert values == simulated and len(values) == rounds


def test_a_watched_file_is_taken_without_a_signal(tmp_path: Path) -> None:
    with Rolling(tmp_path, 2) as federation:
        federation.start(range(2), "--watch-graph")
        federation.goes_on(0, 1)
        federation.next("--set", "run.learning_rate=0.02")
        for i in range(2):
            federation.said(i, CHANGED)
        federation.finish(0, 1)


def test_a_removed_peer_ends_by_its_neighbors_or_by_the_file_and_a_new_one_pulls(tmp_path: Path) -> None:
    with Rolling(tmp_path, 4) as federation:
        federation.start(range(4))
        federation.goes_on(0, 1, 2, 3)
        new = ("--add-peer", f"4={federation.address(4)}", "--add-edge", "4-0", "--add-edge", "4-2")
        federation.next("--remove-peer", 3, "--add-edge", "0-2", *new)
        federation.start([4])
        for neighbor in (0, 2):
            federation.said(4, f"no exchange with peer {neighbor} yet: revision_ahead: ")
        federation.hang_up(0, 1)
        federation.said(0, CHANGED)
        federation.goes_on(3)  # its other neighbor still works with it
        federation.hang_up(2)
        assert federation.peers[3].wait(PATIENCE_S) == 52, federation.log(3)
        sentence = "peer 3 was removed from the federation, says the graph file of peer"
        assert sentence in federation.log(3)
        summary = json.loads((tmp_path / "peer-3" / "summary.json").read_text())
        assert (summary["status"], summary["exit_code"]) == ("removed", 52)
        until(lambda: federation.lines(4, "caught_up"), "the new peer pulls", evidence=lambda: federation.log(4))
        assert "training alone" not in federation.log(4)
        federation.goes_on(0, 1, 2, 4)
        federation.next("--remove-peer", 1)
        federation.hang_up(1)
        assert federation.peers[1].wait(PATIENCE_S) == 52, federation.log(1)
        assert "peer 1 was removed from the federation, says" in federation.log(1)
        federation.start([3])  # with a file without it
        assert federation.peers[3].wait(PATIENCE_S) == 52, federation.log(3)


def test_a_peer_two_revisions_behind_ends_with_both_digests_and_what_to_do(tmp_path: Path) -> None:
    with Rolling(tmp_path, 3) as federation:
        federation.start(range(3))
        federation.goes_on(0, 1, 2)
        first = federation.graph.run_digest
        federation.next("--set", "run.learning_rate=0.02")
        federation.hang_up(0, 1)
        federation.said(0, CHANGED), federation.said(1, CHANGED)
        federation.goes_on(2)
        federation.next("--set", "run.learning_rate=0.03")
        federation.hang_up(0, 1)
        assert federation.peers[2].wait(PATIENCE_S) == 53, federation.log(2)
        for part in (
            first,
            federation.graph.run_digest,
            "2 revisions before that of peer",
            "Copy the later file to peer 2",
        ):
            assert part in federation.log(2)
        federation.start([2])
        federation.goes_on(2)
        federation.goes_on(0, 1)


WRONG = {
    "not JSON": lambda text: text[:-20],
    "empty": lambda text: "",
    "another run": lambda text: re.sub(r'"continues": \[.*?\]', '"continues": []', text, flags=re.DOTALL),
    "an unknown key": lambda text: text.replace('"rounds"', '"runds"'),
    "an option of another algorithm": lambda text: text.replace('"options": {}', '"options": {"nothing": 1}'),
    "a port that is taken": None,
}


@pytest.mark.parametrize("case", WRONG)
def test_a_faulty_file_is_refused_by_a_line_and_the_peer_goes_on(tmp_path: Path, case: str) -> None:
    with Rolling(tmp_path, 2) as federation, ExitStack() as stack:
        federation.start(range(2))
        federation.goes_on(0, 1)
        present = (tmp_path / "graph.json").read_text()
        federation.next("--set", "run.learning_rate=0.02")
        good, change = (tmp_path / "graph.json").read_text(), WRONG[case]
        if change is None:
            import socket

            taken = stack.enter_context(socket.socket())
            taken.bind(("127.0.0.1", 0)), taken.listen()
            federation.next("--move", f"1=127.0.0.1:{taken.getsockname()[1]}")
        else:
            (tmp_path / "graph.json").write_text(change(good))
        federation.hang_up(1)
        federation.said(1, "was not taken, and this peer goes on with the one before")
        federation.goes_on(0, 1)
        (tmp_path / "graph.json").write_text(present)
        federation.hang_up(1)
        federation.said(1, "nothing has changed")
        (tmp_path / "graph.json").write_text(good)
        federation.hang_up(0, 1)
        federation.said(0, CHANGED), federation.said(1, CHANGED)
        federation.finish(0, 1)


def test_two_signals_at_once_and_two_files_in_a_row(tmp_path: Path) -> None:
    with Rolling(tmp_path, 2) as federation:
        federation.start(range(2))
        federation.goes_on(0, 1)
        federation.next("--set", "run.learning_rate=0.02")
        federation.hang_up(0, 0, 1)
        federation.next("--set", "run.learning_rate=0.03")
        federation.hang_up(0, 1, 1)
        last = federation.graph.run_digest[:12]
        for i in range(2):
            federation.said(i, f"to {last}: away for")
        federation.finish(0, 1)


def test_a_file_with_more_rounds_in_the_last_round_goes_on(tmp_path: Path) -> None:
    """Peer 1 is paused in its last round; peer 0, which waits for it, and peer 1 then take a file with more rounds."""
    with Rolling(tmp_path, 2, rounds=5) as federation:
        federation.start([0])
        federation.start([1], failpoint="train.end=pause@5")
        federation.said(1, "failpoint train.end reached 5: pause")
        federation.next("--rounds", "+3")
        federation.hang_up(0, 1)
        federation.said(0, "new graph file: run.rounds was 5, is now 8")
        federation.peers[1].send_signal(signal.SIGCONT)
        for i in range(2):
            assert federation.peers[i].wait(PATIENCE_S) == 0, federation.log(i)
            assert federation.rounds(i) == list(range(8))


def test_a_file_with_fewer_rounds_than_are_done_is_refused(tmp_path: Path) -> None:
    sentence = "run.rounds: expected {} or more, which peer 1 has completed, got 1"
    with Rolling(tmp_path, 2) as federation:
        federation.start(range(2))
        federation.goes_on(0, 1)
        before = (tmp_path / "graph.json").read_text()
        federation.next("--rounds", "1")
        federation.hang_up(1)
        federation.said(1, "was not taken, and this peer goes on with the one before: run.rounds: expected")
        federation.goes_on(0, 1)
        federation.peers[1].terminate()
        assert federation.peers[1].wait(PATIENCE_S) == 0, federation.log(1)
        done = federation.lines(1, "leave")[-1]["rounds_completed"]
        federation.start([1])
        assert federation.peers[1].wait(PATIENCE_S) == 10, federation.log(1)
        assert sentence.format(done) in federation.log(1)
        (tmp_path / "graph.json").write_text(before)
        federation.start([1])
        federation.goes_on(0, 1)


@pytest.mark.parametrize(
    "failpoint",
    ["change.taken=kill", "change.stopped=kill", "change.began=kill", "persist.sealed=kill@{}", "close.end=kill@{}"],
)
def test_a_kill_in_the_middle_of_a_change_loses_no_round(tmp_path: Path, failpoint: str) -> None:
    with Rolling(tmp_path, 3) as federation:
        federation.start([0, 2])
        federation.start([1], failpoint=failpoint.format(30))
        if "change" in failpoint:
            federation.goes_on(0, 1, 2)
            federation.next("--set", "run.learning_rate=0.02", "--remove-edge", "0-1")
            federation.hang_up(1)
        killed = kills(federation, 1)
        killed()
        if "change" not in failpoint:
            federation.next("--set", "run.learning_rate=0.02", "--remove-edge", "0-1")
        federation.start([1])
        federation.hang_up(0, 2)
        federation.said(0, CHANGED), federation.said(2, CHANGED)
        federation.goes_on(0, 1, 2)
        federation.finish(0, 1, 2, but=(0, 1))


def test_a_key_is_replaced_and_a_peer_removed_over_tls(tmp_path: Path) -> None:
    keys = tmp_path / "certs"
    with Rolling(tmp_path, 3) as federation:
        pem = []
        for i in range(3):
            assert executed("keygen", "--id", i, "--out", keys).returncode == 0
            pem.append(keys / f"peer-{i}.pem")
        assert executed("graph", "pin", tmp_path / "graph.json", *pem).returncode == 0
        federation.start(range(3), security=f"--certs {keys}")
        federation.goes_on(0, 1, 2)
        assert executed("keygen", "--id", 1, "--out", tmp_path / "new").returncode == 0
        rotated = executed("graph", "pin", "--rotate", tmp_path / "graph.json", tmp_path / "new" / "peer-1.pem")
        assert rotated.returncode == 0, rotated.stderr
        federation.hang_up(0, 1, 2)
        for i in range(3):
            federation.said(i, "new graph file: peer 1: 1 new pin, 0 removed")
            federation.said(i, CHANGED)
        federation.goes_on(0, 1, 2)
        for name in ("peer-1.pem", "peer-1.key"):
            (tmp_path / "new" / name).replace(keys / name)
        federation.hang_up(1)
        federation.said(1, CHANGED, times=2)
        federation.goes_on(0, 1, 2)
        assert executed("graph", "pin", tmp_path / "graph.json", keys / "peer-1.pem").returncode == 0
        federation.hang_up(0, 1, 2)
        federation.said(0, "new graph file: peer 1: 0 new pins, 1 removed")
        federation.goes_on(0, 1, 2)
        federation.next("--remove-peer", 2)
        federation.hang_up(0, 1)
        assert federation.peers[2].wait(PATIENCE_S) == 52, federation.log(2)
        assert "removed: peer 2 was removed from the federation, says the graph file of peer" in federation.log(2)
        federation.finish(0, 1)


def test_a_peer_with_an_owner_takes_signed_files_only(tmp_path: Path) -> None:
    with Rolling(tmp_path, 2) as federation:
        assert executed("keygen", "--observer", "owner", "--out", tmp_path).returncode == 0
        signing = ("graph", "sign", tmp_path / "graph.json", "--key", tmp_path / "owner.key")
        federation.start([0], "--owner", tmp_path / "owner.pem")
        assert federation.peers[0].wait(PATIENCE_S) == 20, federation.log(0)
        assert executed(*signing).returncode == 0
        federation.start(range(2), "--owner", tmp_path / "owner.pem")
        federation.goes_on(0, 1)
        federation.next("--set", "run.learning_rate=0.02")
        federation.hang_up(0, 1)
        for i in range(2):
            federation.said(i, "signature: expected the signature of an owner")
        assert executed(*signing).returncode == 0
        federation.hang_up(0, 1)
        federation.said(0, CHANGED), federation.said(1, CHANGED)
        federation.goes_on(0, 1)


def test_sigterm_in_the_middle_of_a_change_ends_the_peer_in_peace(tmp_path: Path) -> None:
    with Rolling(tmp_path, 2) as federation:
        federation.start([0])
        federation.start([1], failpoint="change.stopped=leave")
        federation.goes_on(0, 1)
        federation.next("--set", "run.learning_rate=0.02")
        federation.hang_up(1)
        assert federation.peers[1].wait(PATIENCE_S) == 0, federation.log(1)
        assert "failpoint change.stopped reached 1: leave" in federation.log(1)
        federation.start([1])
        federation.goes_on(0, 1)
        assert os.path.exists(tmp_path / "peer-1" / "origin.json")
