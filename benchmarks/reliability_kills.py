"""kill -9 of 1 of 4, 2 of 8 and 5 of 16 peers in the middle of training, sending, folding and persisting.

For each: the seconds that the survivors lost (rounds longer than usual), their final accuracy against a run without faults, and
how soon the restarted peers were alive at their neighbors again and had finished a round. Each victim dies when it gets to
its failpoint: one that dies after the wait for the first costs a wait of its own, so the table tells how far apart they died.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import show
from faults import FaultyRun, back_after, faulty_run, pauses

SIZES = {4: ((1,), 160), 8: ((2, 5), 110), 16: ((1, 4, 7, 10, 13), 120)}
POINTS = {
    "training": "train.step=kill@{0}",
    "sending": "send.frame=kill@{1}",
    "folding": "fold.begin=kill@{1}",
    "persisting": "persist.sealed=kill@{2}",
}
STEPS_PER_ROUND = 16  # 719 samples in batches of 100, two epochs
KILL_ROUND = 12
AWAY_S = 7.0  # from death to restart: longer than the suspicion time


def graph_of(peers: int) -> tuple[str, dict[str, Any]]:
    return ("ring", {}) if peers == 4 else ("erdos-renyi", {"degree": 4.0, "seed": 1})


def accuracy(run: FaultyRun, peers: list[int]) -> float:
    return float(np.mean([run.history(p, "end")[-1]["accuracy"] for p in peers]))


def undisturbed(peers: int, rounds: int) -> tuple[dict[int, float], float]:
    kind, shape = graph_of(peers)
    with faulty_run(kind, peers, [f"run.rounds={rounds}"], **shape) as run:
        run.drive(300)
        lost = float(np.mean([pauses(run.history(p, "round"))[0] for p in run.graph.ids]))
        return {p: run.history(p, "end")[-1]["accuracy"] for p in run.graph.ids}, lost


def killed(peers: int, victims: tuple[int, ...], rounds: int, point: str) -> list[Any]:
    kind, shape = graph_of(peers)
    with faulty_run(kind, peers, [f"run.rounds={rounds}"], **shape) as probe:
        degrees = {p: probe.graph.degree(p) for p in victims}
    texts = {
        p: POINTS[point].format(KILL_ROUND * STEPS_PER_ROUND, KILL_ROUND * degrees[p] + 1, KILL_ROUND) for p in victims
    }
    with faulty_run(kind, peers, [f"run.rounds={rounds}"], failpoints=texts, **shape) as run:
        deaths: dict[int, float] = {}

        def all_dead() -> bool:
            for p in set(victims) & set(run.bed.exit_codes):
                deaths.setdefault(p, time.monotonic())
            return len(deaths) == len(victims)

        run.drive(120, all_dead)
        died = [run.bed.exit_codes.get(p) for p in victims]
        run.drive(AWAY_S)
        run.bed.failpoints.clear()
        for p in victims:
            run.bed.start([p])
        run.drive(300)
        survivors = [p for p in run.graph.ids if p not in victims]
        lost = [pauses(run.history(p, "round")) for p in survivors]
        back, first = [], []
        for p in victims:
            start = run.history(p, "start")[-1]
            back.append(back_after(run, p, start["at"]))
            done = [line["at"] for line in run.history(p, "round") if line["incarnation"] == start["incarnation"]]
            first.append(done[0] - start["at"] if done else float("nan"))
        known = [b for b in back if b is not None]
        return [
            f"{len(victims)} of {peers}", point, f"{died.count(-9)} of {len(died)}",
            f"{max(deaths.values()) - min(deaths.values()):.1f}",
            f"{np.mean([s for s, _ in lost]):.1f} ({max(s for s, _ in lost):.1f})", max(n for _, n in lost),
            accuracy(run, survivors), f"{max(known):.1f}" if len(known) == len(back) else "not all",
            f"{max(first):.1f}", survivors,
        ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    rows = []
    for peers in arguments.peers:
        victims, rounds = SIZES[peers]
        reference, noise = undisturbed(peers, rounds)
        for point in POINTS:
            *shown, survivors = killed(peers, victims, rounds, point)
            free = float(np.mean([reference[p] for p in survivors]))
            shown[6] = f"{shown[6]:.3f} ({100 * (shown[6] - free):+.1f} points)"
            rows.append([*shown, f"{noise:.1f}"])
            print(rows[-1], flush=True)
    header = (
        "killed", "in the middle of", "fired", "killed within, s", "seconds lost, mean (worst) survivor", "long rounds, at most",
        "survivors' accuracy (against fault-free)", "alive at all neighbors after, s", "first round after, s",
        "seconds lost without faults",
    )  # fmt: skip
    show("kill -9 and restart, suspicion time 5 s", header, rows, arguments.markdown)


if __name__ == "__main__":
    main()
