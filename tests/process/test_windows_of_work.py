"""Goal: a peer outside its window leaves and comes back by itself with its state; its neighbors do not wait for it.

Method: real peers; the window is a file that the command of one peer looks for. Every step waits for a line of a history.
"""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tools.histories import lines_of
from tools.running import PATIENCE_S, ends, on_loopback, running_peer, until

from coordinator_free_bootstrap import make_graph, parse_manifest, save_graph
from peer.store.state_dir import StateDir

pytestmark = [pytest.mark.process, pytest.mark.slow]

PART_TIME = 1
RUN = {
    "rounds": 100_000,
    "model_options": {"hidden": 16},
    "start": {"wait_for": "deadline", "deadline_s": 2.0},
    "timeouts": {"suspicion_s": 60.0, "round_deadline_s": 120.0},
}


def test_a_peer_works_only_in_its_windows_and_no_neighbor_waits(tmp_path: Path) -> None:
    graph = on_loopback(make_graph("complete", 3, manifest=parse_manifest(RUN, "test")))
    save_graph(graph, tmp_path / "graph.json")
    window = tmp_path / "window"

    def lines(peer_id: int, kind: str) -> list[dict[str, Any]]:
        return lines_of(StateDir.of_peer(tmp_path, peer_id).history, kind)

    def rounds(peer_id: int) -> int:
        return len(lines(peer_id, "round"))

    logs = [tmp_path / f"{i}.log" for i in graph.ids]
    with ExitStack() as stack:
        peers = {}
        for i in graph.ids:
            options = ("--when", f"test -e {window}") if i == PART_TIME else ()
            peers[i] = stack.enter_context(running_peer(i, tmp_path, "--insecure", *options, goodbye_s=60.0))
        until(lambda: "waiting" in logs[PART_TIME].read_text(), "it waits for its window", logs=logs)
        until(lambda: rounds(0) >= 3 and rounds(2) >= 3, "neighbors work without it", logs=logs)
        assert not lines(PART_TIME, "start")

        window.touch()
        until(lambda: rounds(PART_TIME) >= 3, "it works", logs=logs)
        window.unlink()
        until(lambda: len(lines(PART_TIME, "leave")) == 1, "it leaves", logs=logs)
        done = lines(PART_TIME, "leave")[0]["rounds_completed"]
        for neighbor in (0, 2):
            until(
                lambda n=neighbor: states(lines(n, "neighbor"))[-1] == "left", "a neighbor takes its goodbye", logs=logs
            )
            before = rounds(neighbor)
            until(lambda n=neighbor, b=before: rounds(n) >= b + 3, "a neighbor works without it", logs=logs)
        assert peers[PART_TIME].poll() is None, ends(logs)

        window.touch()
        until(lambda: len(lines(PART_TIME, "start")) == 2, "it comes back", logs=logs)
        assert lines(PART_TIME, "start")[1]["resumed_from"] >= done
        before = rounds(PART_TIME)
        until(lambda: rounds(PART_TIME) >= before + 3, "it works again", logs=logs)
        until(lambda: PART_TIME in {row[0] for row in lines(0, "round")[-1]["folded"]}, "it is folded", logs=logs)

        window.unlink()
        until(lambda: len(lines(PART_TIME, "leave")) == 2, "it leaves again", logs=logs)
        os.kill(peers[PART_TIME].pid, signal.SIGTERM)
        assert peers[PART_TIME].wait(PATIENCE_S) == 0, ends(logs)
        for neighbor in (0, 2):
            found = states(lines(neighbor, "neighbor"))
            assert "suspect" not in found and "dead" not in found


def states(lines: list[dict[str, Any]]) -> list[str]:
    """Return the states of the part-time neighbor, in order."""
    return [line["state"] for line in lines if line["neighbor"] == PART_TIME] or ["unknown"]
