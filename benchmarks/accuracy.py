"""Accuracy over seconds, with one slow peer, and over bytes, by encoding, edges and outer step, in one process.

    python benchmarks/accuracy.py [seconds bytes edges] [--seconds 150] [--tasks digits mnist] [--data-root data] [--save]

Eight peers on a 3-regular graph. All use engine, training, encodings, error feedback and timeouts of a running peer, on shards
dealt by a Dirichlet distribution with alpha 0.5, so nothing depends on the load of the machine. Differences are taken seed by
seed; +- is half the 95 % interval of a mean (Student's t).

seconds: what one slow peer costs in lockstep, in lockstep with a short round deadline, and in the async pace. A round's training
takes 1 s at seven peers and 5 s at the eighth, each time up to a tenth more or less, on a virtual clock; all else, messages too,
takes no time. Accuracy is that of the model that a peer has at a moment, on its own test samples; before its first round it
counts as 0. Each peer continues with its rounds until the time is up: there is no last round.

bytes: what a smaller encoding saves on the link, and costs in accuracy. The peers average one model (dfedavg, lockstep), an MLP
(hidden layers of 256 and 256; MNIST: one of 64, at most 500 samples a peer). Bytes are payload bytes that a peer sends to all its
neighbors together. The target of a seed is the final accuracy of float32 minus half a point. The final accuracy is the mean of
the last five rounds; a target counts as reached at the first of three evaluations in a row at or above it. Aim: a tenth of the
bytes of float32 for at most 0.5 points.

edges: the same for one edge a round (`run.edges`) and the outer step (`run.outer`), alone and with smaller encodings.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from record import new_parser, record
from typing_extensions import override

from coordinator_free_bootstrap import make_graph
from peer.bed.testbed.directory import with_settings
from peer.core.encoding import ENCODINGS
from peer.core.events import WorkDone
from peer.lab.comparison import half_width
from peer.lab.network import SimulatedPeer, VirtualNetwork
from peer.lab.simulated import SimulatedSettings, simulate, simulated_peers

PARTS = ("seconds", "bytes", "edges")
PEERS, DEGREE = 8, 3
COMMON = [
    "run.model=mlp",
    "run.split=dirichlet",
    "run.split_options.alpha=0.5",
    "run.local_epochs=1",
    "run.batch_size=50",
]


def text_of(values: Sequence[float], digits: int) -> str:
    """Return a mean and half of its 95 % interval; infinite values were not reached."""
    missing = int((~np.isfinite(values)).sum())
    if missing:
        return "not reached" if missing == len(values) else f"not reached by {missing} of {len(values)}"
    half = half_width(values)
    return f"{np.mean(values):.{digits}f}" + ("" if half is None else f" +- {half:.{digits}f}")


# ---- seconds ----------------------------------------------------------------------------------------------------------

SLOW = 0
FAST_S, SLOW_S, JITTER = 1.0, 5.0, 0.1
SHARE_OF_FINAL = 0.9
ENDLESS = ["run.task=digits", "run.model_options.hidden=[64]", "run.rounds=1000000"]  # the time ends the run
DEADLINE = ["run.timeouts.suspicion_s=1", "run.timeouts.round_deadline_s=2"]
LOCKSTEP, ASYNC = "lockstep", "async"
PACES = {LOCKSTEP: [], "lockstep, `round_deadline_s` 2": DEADLINE, ASYNC: ["run.pace=async"]}
ALGORITHMS = ("dfedavg", "dfca", "local")


class TimeIsUpError(Exception):
    """The virtual clock has come to the end of the run."""


class SlowNetwork(VirtualNetwork):
    """A virtual network in which training takes time, and peers do not wait for each other's.

    Args:
        seconds: when the run ends.
        seed: of the durations.
    """

    def __init__(self, seconds: float, seed: int) -> None:
        super().__init__(on_record=self._note)
        self.began = self.now
        self.rounds: dict[int, list[tuple[float, dict[str, Any]]]] = {p: [] for p in range(PEERS)}  # (second, line)
        self._seconds = seconds
        self._draw = {p: Random(f"{seed}:{p}") for p in range(PEERS)}
        self._under_way: list[tuple[float, int, SimulatedPeer, WorkDone]] = []  # a heap, by when it is done
        self._count = itertools.count()

    @override
    def run(self) -> None:
        """Run until the time is up."""
        try:
            super().run()
        except TimeIsUpError:
            return

    def _note(self, peer: SimulatedPeer, kind: str, fields: dict[str, Any]) -> None:
        if kind == "round":
            self.rounds[peer.peer_id].append((self.now - self.began, fields))

    @override
    def _work(self, pool: ThreadPoolExecutor) -> None:
        works, self.works = self.works, []
        for peer, work in works:
            peer.fold_all()
            lasts_s = 0.0
            if work.kind == "train":
                usual_s = SLOW_S if peer.peer_id == SLOW else FAST_S
                lasts_s = usual_s * self._draw[peer.peer_id].uniform(1 - JITTER, 1 + JITTER)
            entry = (self.now + lasts_s, next(self._count), peer, peer.host.work(work))
            heapq.heappush(self._under_way, entry)

    @override
    def _advance_clock(self, idle: int) -> None:
        timer = self._first_timer()
        done_at = self._under_way[0][0] if self._under_way else float("inf")
        if min(done_at, float("inf") if timer is None else timer) > self.began + self._seconds:
            raise TimeIsUpError
        if timer is not None and timer < done_at:
            super()._advance_clock(idle)
            return
        self.now, _, peer, done = heapq.heappop(self._under_way)
        self.later(peer.host.post, done)


class Run:
    """One run: accuracy of every peer, in percent, as a function of time."""

    def __init__(self, algorithm: str, pace: Sequence[str], seed: int, seconds: float) -> None:
        graph = make_graph("regular", PEERS, degree=DEGREE, seed=seed)
        settings = [*COMMON, *ENDLESS, *pace, f"run.algorithm={algorithm}", f"run.seed={seed}", f"run.data_seed={seed}"]
        network = SlowNetwork(seconds, seed)
        simulated_peers(with_settings(graph, settings), SimulatedSettings(), network)
        network.run()
        self.rounds, self.seconds = network.rounds, seconds
        sent = [sum(line["payload_bytes_sent"] for _, line in lines) for lines in self.rounds.values()]
        self.megabytes = float(np.mean(sent)) / 1e6

    def accuracy(self, at: float) -> list[float]:
        """Return each peer's."""
        known = [[line["metric_value"] for second, line in lines if second <= at] for lines in self.rounds.values()]
        return [100 * own[-1] if own else 0.0 for own in known]

    def mean(self, at: float) -> float:
        """Return the mean over the peers."""
        return float(np.mean(self.accuracy(at)))

    @property
    def worst(self) -> float:
        """The worst peer's, at the end."""
        return min(self.accuracy(self.seconds))

    def seconds_to(self, target: float) -> float:
        """Return the first second at which the mean over the peers is at or above a target; infinity if it never is."""
        moments = sorted(second for lines in self.rounds.values() for second, _ in lines)
        return next((second for second in moments if self.mean(second) >= target), float("inf"))

    def rounds_of(self, peers: Sequence[int]) -> float:
        """Return how many rounds these peers completed, mean."""
        return float(np.mean([len(self.rounds[p]) for p in peers]))


def over_seconds(algorithm: str, seeds: Sequence[int], seconds: float) -> list[list[object]]:
    """Return a row for each pace; one for `local`, which does not wait."""
    paces = [LOCKSTEP] if algorithm == "local" else list(PACES)
    runs_of = {pace: [Run(algorithm, PACES[pace], seed, seconds) for seed in seeds] for pace in paces}
    fast = [p for p in range(PEERS) if p != SLOW]
    rows: list[list[object]] = []
    for pace, runs in runs_of.items():
        apart, worst_apart = [], []
        for other in (LOCKSTEP, ASYNC):
            pairs = list(zip(runs, runs_of[other], strict=True)) if other != pace and other in runs_of else []
            apart.append(text_of([run.mean(seconds) - base.mean(seconds) for run, base in pairs], 1) if pairs else None)
            worst_apart.append(text_of([run.worst - base.worst for run, base in pairs], 1) if pairs else None)
        reached = [
            run.seconds_to(SHARE_OF_FINAL * base.mean(seconds))
            for run, base in zip(runs, runs_of[LOCKSTEP], strict=True)
        ]
        counts = [np.mean([run.rounds_of(peers) for run in runs]) for peers in (fast, [SLOW])]
        rows.append([
            f"`{algorithm}`", "none waits" if algorithm == "local" else pace, f"{counts[0]:.0f} and {counts[1]:.0f}",
            text_of([run.mean(seconds / 10) for run in runs], 1), text_of([run.mean(seconds) for run in runs], 1), *apart,
            text_of([run.worst for run in runs], 1), *worst_apart,
            text_of(reached, 1) if len(runs_of) > 1 else None,
            f"{np.mean([run.megabytes for run in runs]):.1f}",
        ])  # fmt: skip
        print(*rows[-1], sep=" | ", flush=True)
    return rows


# ---- bytes ------------------------------------------------------------------------------------------------------------

SHOWN = [name for name in ENCODINGS if name != "float16"]  # as large as bfloat16
NAMES = {
    "int8": "int8, error feedback",
    "delta_int8": "delta, int8",
    "delta_top10": "delta, largest 10 %, error feedback",
    "delta_top1": "delta, largest 1 %, error feedback",
}
SPARSE = {"delta_top10", "delta_top1"}  # they need more rounds, and these cost little
ALL, ONE, NESTEROV, NOLOCO = "all edges", "one edge", "all edges, nesterov", "one edge, noloco"
WAYS = {
    ALL: [],
    ONE: ["run.edges=one"],
    NESTEROV: ["run.outer.optimizer=nesterov"],
    NOLOCO: ["run.edges=one", "run.outer.optimizer=noloco"],
}
FEW = ("float32", "int8", "delta_int8", "delta_top10")
EDGES = [(ALL, "float32"), *((ONE, each) for each in FEW), (NESTEROV, "float32"), (NESTEROV, "int8")]
EDGES += [(NOLOCO, each) for each in FEW]
LAST, STEADY = 5, 3
POINTS_ALLOWED, SHARE_ALLOWED = 0.5, 0.1
TASKS = {
    "digits": ["run.task=digits", "run.model_options.hidden=[256,256]"],
    "mnist": [
        "run.task=mnist",
        "run.split_options.samples_per_peer=500",
        "run.split_options.test_per_peer=500",
        "run.model_options.hidden=[64]",
    ],
}


@dataclass
class Curve:
    """One run: accuracy in percent, mean over peers, and payload bytes that a peer has sent, by round."""

    accuracy: np.ndarray
    sent: np.ndarray

    @property
    def final(self) -> float:
        """Mean accuracy of the last rounds, percent."""
        return float(self.accuracy[-LAST:].mean())

    def bytes_to(self, target: float) -> float:
        """Return the bytes that a peer has sent when the target is reached; infinity if it is not."""
        there = self.accuracy >= target
        for first in range(len(there) - STEADY + 1):
            if there[first : first + STEADY].all():
                return float(self.sent[first])
        return float("inf")


def measure(task: str, way: str, encoding: str, seed: int, rounds: int, data_root: Path | None) -> Curve:
    """Run all peers to the end."""
    settings = [
        *TASKS[task],
        *COMMON,
        *WAYS[way],
        "run.algorithm=dfedavg",
        f"run.encoding={encoding}",
        f"run.rounds={rounds}",
    ]
    graph = make_graph("regular", PEERS, degree=DEGREE, seed=seed)
    graph = with_settings(graph, [*settings, f"run.seed={seed}", f"run.data_seed={seed}"])
    peers = simulate(graph, None, SimulatedSettings(data_root=data_root))
    lines = [[fields for kind, fields in peer.recording.lines if kind == "round"] for peer in peers.values()]
    accuracy = np.array([[line["metric_value"] for line in own] for own in lines]).mean(0)
    sent = np.array([[line["payload_bytes_sent"] for line in own] for own in lines]).mean(0).cumsum()
    return Curve(100 * accuracy, sent)


def over_bytes(
    task: str, cases: Sequence[tuple[str, str]], seeds: range, options: argparse.Namespace
) -> Iterator[tuple[str, str, list[object]]]:
    """Measure one task: yield for each way and encoding what follows them in their row; all edges and float32 are the base."""
    plain = {seed: measure(task, ALL, "float32", seed, options.rounds, options.data_root) for seed in seeds}
    goal = {seed: curve.final - POINTS_ALLOWED for seed, curve in plain.items()}
    for way, encoding in cases:
        base = (way, encoding) == (ALL, "float32")
        rounds = options.rounds * (options.longer if encoding in SPARSE else 1)
        curves = plain if base else {s: measure(task, way, encoding, s, rounds, options.data_root) for s in seeds}
        reached = [curves[seed].bytes_to(goal[seed]) for seed in seeds]
        shares = [mine / plain[seed].bytes_to(goal[seed]) for seed, mine in zip(seeds, reached, strict=True)]
        costs = [curves[seed].final - plain[seed].final for seed in seeds]
        meets = np.mean(shares) <= SHARE_ALLOWED and np.mean(costs) >= -POINTS_ALLOWED
        row = [
            rounds,
            text_of([curve.final for curve in curves.values()], 2),
            "" if base else text_of(costs, 2),
            f"{np.mean([curve.sent[-1] for curve in curves.values()]) / 1e6:.1f}",
            text_of([value / 1e6 for value in reached], 2),
            "" if base else text_of(shares, 2),
            "" if base else "yes" if meets else "no",
        ]
        print(task, way, encoding, *row, sep=" | ", flush=True)
        yield way, NAMES.get(encoding, encoding), row


def main() -> None:
    """Measure the parts that are named and print a table for each."""
    parser = new_parser(__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS), help="seconds")
    parser.add_argument("--seconds", type=float, default=150.0, help="seconds: of the virtual clock")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="bytes, edges")
    parser.add_argument("--data-root", type=Path, help="bytes, edges: folder of MNIST")
    parser.add_argument("--encodings", nargs="+", choices=SHOWN, default=SHOWN, help="bytes")
    parser.add_argument("--rounds", type=int, default=150, help="bytes, edges")
    parser.add_argument(
        "--longer", type=int, default=3, help="bytes, edges: factor of the rounds for the largest 10 %% and 1 %%"
    )
    parser.add_argument("--seeds", type=int, help="default: 5 over seconds, 3 over bytes and edges")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"expected {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    columns: tuple[str, ...]
    if "seconds" in given.parts:
        logging.getLogger("peer.simulated").setLevel(logging.ERROR)  # a model of a round too far ahead is a warning
        columns = (
            "algorithm", "pace", "rounds of a fast peer and of the slow one", f"accuracy % after {given.seconds / 10:g} s",
            f"after {given.seconds:g} s", "to lockstep, points", "to async, points", "worst peer, %",
            "to lockstep's, points", "to async's, points", "seconds to 90 % of lockstep's last accuracy", "MB sent by a peer",
        )  # fmt: skip
        seeds = range(1, (given.seeds or 5) + 1)
        rows = [row for algorithm in given.algorithms for row in over_seconds(algorithm, seeds, given.seconds)]
        record("stragglers", "One peer of eight is five times slower", columns, rows, save=given.save)
    measured = (
        "rounds", "final accuracy %", "to float32, points", "MB sent by a peer", "MB to the target", "of float32's bytes to it",
        "aim met",
    )  # fmt: skip
    seeds = range(1, (given.seeds or 3) + 1)
    for task in given.tasks:
        if "bytes" in given.parts:
            found = over_bytes(task, [(ALL, encoding) for encoding in given.encodings], seeds, given)
            rows = [[task, encoding, *row] for _, encoding, row in found]
            columns = ("task", "encoding", *measured)
            record(f"bytes-{task}", "Bytes to a target accuracy", columns, rows, save=given.save)
        if "edges" in given.parts:
            rows = [[task, way, encoding, *row] for way, encoding, row in over_bytes(task, EDGES, seeds, given)]
            columns = ("task", "a round", "encoding", *measured)
            record(
                f"edges-{task}",
                "Bytes to a target accuracy, on one edge a round and with an outer step",
                columns,
                rows,
                save=given.save,
            )


if __name__ == "__main__":
    main()
