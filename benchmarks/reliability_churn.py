"""100 peers, one killed or restarted every second for two minutes: rounds of the survivors, memory, files and threads."""

from __future__ import annotations

import argparse
import os
import random
import time
from pathlib import Path

import numpy as np
from common import show
from faults import FaultyRun, faulty_run

from peer.bed.chaos.faults import Event

SAMPLE = 8  # untouched peers that are looked at meanwhile: to look at all of them would be a load of its own


def resources(run: FaultyRun, peers: list[int]) -> tuple[float, float, float]:
    """Return private memory in MB, open files and threads: means over the peers."""
    rows = []
    for p in peers:
        try:
            place = Path(f"/proc/{run.bed.pid(p)}")
            sizes = dict(line.split()[:2] for line in (place / "smaps_rollup").read_text().splitlines()[1:])
            private_mb = (int(sizes["Private_Dirty:"]) + int(sizes["Private_Clean:"])) / 1e3
            rows.append((private_mb, len(os.listdir(place / "fd")), len(os.listdir(place / "task"))))
        except (OSError, KeyError):
            continue
    return tuple(np.mean(rows, axis=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--suspicion", type=float, default=5.0)
    parser.add_argument("--markdown", type=Path)
    a = parser.parse_args()
    draw = random.Random(1)
    settings = [
        "run.rounds=100000",
        "run.local_epochs=1",
        "run.evaluate_every=10",
        f"run.timeouts.suspicion_s={a.suspicion}",
        "run.timeouts.round_deadline_s=120",
        "run.start.deadline_s=600",
    ]
    with faulty_run("erdos-renyi", a.peers, settings, degree=4.0, seed=1) as run:
        run.drive(240, lambda: all(len(run.history(p, "round")) >= 2 for p in run.graph.ids), every_s=2.0)
        never, rows, events = set(run.graph.ids), [], 0
        down: list[int] = []
        began, sampled = time.monotonic(), -1e9
        while (now := time.monotonic() - began) < a.seconds:
            if down and (len(down) >= a.peers // 10 or draw.random() < 0.5):
                run.runner.execute(Event(do="restart", peers=(down.pop(0),)))
            else:
                victim = draw.choice(sorted(set(run.graph.ids) - set(down)))
                run.runner.execute(Event(do="kill", peers=(victim,)))
                never.discard(victim)
                down.append(victim)
            events += 1
            if now - sampled >= 15:
                sampled = now
                done = (run.history(p, "round")[-1]["round_index"] + 1 for p in sorted(never)[:SAMPLE])
                rounds = sorted(done)
                memory, files, threads = resources(run, sorted(never)[:SAMPLE])
                rows.append(
                    [
                        f"{now:.0f}",
                        events,
                        len(down),
                        f"{rounds[0]} to {rounds[-1]}",
                        f"{memory:.1f}",
                        f"{files:.1f}",
                        f"{threads:.1f}",
                    ]
                )
                print(rows[-1], flush=True)
            run.drive(max(0.0, 1.0 - (time.monotonic() - began - now)))
        lost = skipped = wrong = 0
        for p in sorted(never):
            indices = [line["round_index"] for line in run.history(p, "round")]
            lost += indices != list(range(len(indices)))
            skipped += len(run.history(p, "caught_up"))
            wrong += sum(line["state"] == "dead" and line["neighbor"] in never for line in run.history(p, "neighbor"))
        alive = sum(p in run.bed.processes for p in never)
    header = (
        "second",
        "kills and restarts so far",
        "down now",
        "rounds done by survivors",
        "private MB",
        "open files",
        "threads",
    )
    show(f"{a.peers} peers under churn; means over eight that were never touched", header, rows, a.markdown)
    print(f"{len(never)} peers were never touched, {alive} of them still run")
    print(
        f"{lost} of them have a gap in their rounds; {skipped} catch-ups; {wrong} times one held another one of them dead"
    )


if __name__ == "__main__":
    main()
