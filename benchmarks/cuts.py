"""A partition into halves, an edge that is cut in one direction, and peers that are stopped for some seconds.

    python benchmarks/cuts.py [--cut 60] [--one-way 60] [--stops 1 10 30] [--save]

Consensus distance is computed from the peers' newest checkpoints while they run: mean over peers of the squared distance to the
mean model, over the mean model's squared norm, averaged over the cluster models.
"""

from __future__ import annotations

import signal
import time

import numpy as np
from record import new_parser, record
from safetensors import SafetensorError
from safetensors.numpy import load_file
from testbeds import FaultyRun, back_after, faulty_run, pauses

from peer.bed.chaos.faults import FaultEvent
from peer.store.state_dir import StateDir

FOREVER = ["run.rounds=100000"]


def consensus(run: FaultyRun) -> float:
    models = []
    for p in run.graph.ids:
        for path in sorted(StateDir.of_peer(run.bed.directory, p).checkpoints.glob("checkpoint-*"), reverse=True):
            try:
                models.append(load_file(path / "arrays.safetensors"))
                break
            except (OSError, SafetensorError):  # it was removed while we looked
                continue
    if len(models) < len(run.graph.ids):
        return float("nan")
    found = []
    for name in models[0]:
        if name.startswith("slot/"):
            stack = np.stack([model[name] for model in models]).astype(np.float64)  # [peers, d]
            mean = stack.mean(axis=0)
            found.append(((stack - mean) ** 2).sum(axis=1).mean() / (mean**2).sum())
    return float(np.mean(found))


def partition(cut_s: float) -> list[list[object]]:
    with faulty_run("erdos-renyi", 8, FOREVER, proxy=True, degree=4.0, seed=1) as run:
        curve: list[tuple[float, float]] = []
        began = time.monotonic()

        def watch(seconds: float, until: float | None = None) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                run.drive(1.0)
                curve.append((time.monotonic() - began, consensus(run)))
                if until is not None and curve[-1][1] < until:
                    return

        watch(30)
        before = float(np.nanmean([d for _, d in curve[-10:]]))
        rounds = {p: len(run.history(p, "round")) for p in run.graph.ids}
        halves = (run.graph.ids[:4], run.graph.ids[4:])
        run.runner.execute(FaultEvent(do="partition", groups=halves))
        cut_at = time.time()
        watch(cut_s)
        trained = [len(run.history(p, "round")) - rounds[p] for p in run.graph.ids]
        worst = float(np.nanmax([d for _, d in curve]))
        run.runner.execute(FaultEvent(do="heal"))
        healed = time.monotonic()
        watch(60, until=before)
        below = time.monotonic() - healed if curve[-1][1] < before else float("nan")
        lost = [
            pauses([line for line in run.history(p, "round") if line["at"] < cut_at + cut_s])[0] for p in run.graph.ids
        ]
        held = run.runner.network.total().held if run.runner.network else 0
    row = [
        f"{cut_s:g} s",
        held,
        f"{min(trained)} to {max(trained)}",
        f"{np.mean(lost):.1f}",
        f"{before:.2e}",
        f"{worst:.2e}",
        f"{below:.1f}",
    ]
    return [row]


def one_way(cut_s: float) -> list[object]:
    with faulty_run("erdos-renyi", 8, FOREVER, proxy=True, degree=4.0, seed=1) as run:
        run.drive(60, lambda: all(len(run.history(p, "round")) >= 15 for p in run.graph.ids), every_s=0.5)
        one, other = run.graph.edges[0]
        before = [len(run.history(p, "round")) for p in run.graph.ids]
        run.drive(cut_s)
        quiet = [len(run.history(p, "round")) - n for p, n in zip(run.graph.ids, before, strict=True)]
        cut_at = time.time()
        run.runner.execute(FaultEvent(do="one_way", edges=((one, other),)))
        run.drive(cut_s)
        total = [len(run.history(p, "round")) - n for p, n in zip(run.graph.ids, before, strict=True)]
        deaths = [
            sum(line["neighbor"] == b and line["state"] == "dead" for line in run.history(a, "neighbor"))
            for a, b in ((one, other), (other, one))
        ]
        lost = [pauses([line for line in run.history(p, "round") if line["at"] > cut_at - 5])[0] for p in run.graph.ids]
        run.runner.execute(FaultEvent(do="heal"))
        healed = time.time()
        run.drive(10.0)
        back = [
            line["at"] - healed
            for a, b in ((one, other), (other, one))
            for line in run.history(a, "neighbor")
            if line["at"] > healed and line["neighbor"] == b and line["state"] == "alive"
        ]
    during = [t - q for t, q in zip(total, quiet, strict=True)]
    return [
        f"{cut_s:g} s", f"{min(quiet)} to {max(quiet)}", f"{min(during)} to {max(during)}",
        f"{np.mean(lost):.1f} ({max(lost):.1f})", " and ".join(map(str, deaths)),
        f"{max(back):.1f}" if len(back) > 1 else "not both",
    ]  # fmt: skip


def stopped(seconds: float) -> list[object]:
    with faulty_run("erdos-renyi", 8, FOREVER, degree=4.0, seed=1) as run:
        run.drive(60, lambda: all(len(run.history(p, "round")) >= 15 for p in run.graph.ids), every_s=0.5)
        run.runner.execute(FaultEvent(do="pause", peers=(3,)))
        run.drive(seconds)
        run.runner.execute(FaultEvent(do="continue", peers=(3,)))
        woke = time.time()
        run.drive(15.0)
        others = [p for p in run.graph.ids if p != 3]
        lost = [
            pauses([line for line in run.history(p, "round") if line["at"] < woke + 0.5])[0]
            for p in run.graph.neighbors(3)
        ]
        buried = [
            p
            for p in run.graph.neighbors(3)
            if any(line["neighbor"] == 3 and line["state"] == "dead" for line in run.history(p, "neighbor"))
        ]
        wrong = sum(line["state"] == "dead" for line in run.history(3, "neighbor"))
        back = back_after(run, 3, woke)
        after = [
            line["at"] - woke
            for line in run.history(3, "round")
            if line["at"] > woke + 0.2 and len(line["folded"]) == run.graph.degree(3)
        ]
        behind = [max(line["round_index"] for line in run.history(p, "round")) for p in (3, others[0])]
    return [
        f"{seconds:g} s", f"{np.mean(lost):.1f} ({max(lost):.1f})", f"{len(buried)} of {run.graph.degree(3)}", wrong,
        "not all" if back is None else f"{back:.1f}", f"{after[0]:.1f}" if after else "never", behind[1] - behind[0],
    ]  # fmt: skip


def main() -> None:
    """Measure all three and print three tables; 0 leaves one out."""
    parser = new_parser(__doc__)
    parser.add_argument("--cut", type=float, default=60.0)
    parser.add_argument("--one-way", type=float, default=60.0)
    parser.add_argument("--stops", type=float, nargs="*", default=[1.0, 10.0, 30.0])
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    columns: tuple[str, ...]
    if given.cut:
        columns = (
            "cut", "chunks held", "rounds trained during the cut", "seconds lost, mean peer", "consensus distance before",
            "worst", "below its value before, s after healing",
        )  # fmt: skip
        record("partition", "8 peers, partitioned into halves", columns, partition(given.cut), save=given.save)
    if given.one_way:
        columns = (
            "cut", "rounds in as long a time before", "rounds during the cut", "seconds lost, mean (worst) peer",
            "times that its ends marked each other dead", "alive to each other after, s",
        )  # fmt: skip
        record("one-way", "8 peers, one edge cut in one direction", columns, [one_way(given.one_way)], save=given.save)
    if given.stops:
        columns = (
            "stopped for", "seconds lost, mean (worst) neighbor", "marked dead by", "neighbors it marked dead",
            "alive at all neighbors after, s", "full round after, s", "rounds behind at the end",
        )  # fmt: skip
        title = "8 peers, one stopped (SIGSTOP) and continued, suspicion time 5 s"
        record("stopped", title, columns, [stopped(seconds) for seconds in given.stops], save=given.save)


if __name__ == "__main__":
    main()
