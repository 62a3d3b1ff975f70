"""Bytes to a target accuracy by encoding: what a user saves on the link, and what it costs in accuracy.

Eight peers on a 3-regular graph average one model (dfedavg, lockstep), an MLP (hidden layers of 256 and 256; MNIST: one of
64), on shards dealt by a Dirichlet distribution with alpha 0.5 (MNIST: at most 500 samples a peer). The peers run in this
process, with the engine, the encodings, the error feedback and the fallback to whole models of a running peer; bytes are
payload bytes that a peer sends to all its neighbors together.

The target of a seed is the final accuracy of float32 minus half a point. The final accuracy is the mean of the last five
rounds; a target counts as reached at the first of three evaluations in a row at or above it. Differences to float32 are taken
seed by seed; +- is half the 95 % interval of a mean (Student's t).

Neither bytes nor accuracy depends on the machine's load. Aim: a tenth of the bytes of float32 for at most 0.5 points.

    python benchmarks/bytes_to_accuracy.py [--tasks digits mnist] [--data-root data] [--rounds 150] [--save]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from record import new_parser, record

from coordinator_free_bootstrap import make_graph
from peer.bed.testbed.directory import with_settings
from peer.core.encoding import ENCODINGS
from peer.lab.comparison import half_width
from peer.lab.simulated import SimulatedSettings, simulate

SHOWN = [name for name in ENCODINGS if name != "float16"]  # as large as bfloat16
NAMES = {
    "int8": "int8, error feedback",
    "delta_int8": "delta, int8",
    "delta_top10": "delta, largest 10 %, error feedback",
    "delta_top1": "delta, largest 1 %, error feedback",
}
SPARSE = {"delta_top10", "delta_top1"}  # they need more rounds, and these cost little
PEERS, DEGREE, LAST, STEADY = 8, 3, 5, 3
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
COMMON = [
    "run.algorithm=dfedavg",
    "run.model=mlp",
    "run.split=dirichlet",
    "run.split_options.alpha=0.5",
    "run.local_epochs=1",
    "run.batch_size=50",
]


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


def measure(task: str, encoding: str, seed: int, rounds: int, data_root: Path | None) -> Curve:
    """Run all peers to the end."""
    settings = [*TASKS[task], *COMMON, f"run.encoding={encoding}", f"run.rounds={rounds}"]
    graph = make_graph("regular", PEERS, degree=DEGREE, seed=seed)
    graph = with_settings(graph, [*settings, f"run.seed={seed}", f"run.data_seed={seed}"])
    peers = simulate(graph, None, SimulatedSettings(data_root=data_root))
    lines = [[fields for kind, fields in peer.recording.lines if kind == "round"] for peer in peers.values()]
    accuracy = np.array([[line["metric_value"] for line in own] for own in lines]).mean(0)
    sent = np.array([[line["payload_bytes_sent"] for line in own] for own in lines]).mean(0).cumsum()
    return Curve(100 * accuracy, sent)


def mean_text(values: list[float]) -> str:
    """Return a mean and half of its 95 % interval."""
    if not np.isfinite(values).all():
        return (
            "not reached"
            if not np.isfinite(values).any()
            else f"not reached by {np.isinf(values).sum()} of {len(values)}"
        )
    half = half_width(values)
    return f"{np.mean(values):.2f}" + ("" if half is None else f" +- {half:.2f}")


def rows_of(task: str, options: argparse.Namespace) -> list[list[object]]:
    """Measure one task: a row for each encoding."""
    seeds, rows = range(1, options.seeds + 1), []
    plain = {seed: measure(task, "float32", seed, options.rounds, options.data_root) for seed in seeds}
    goal = {seed: curve.final - POINTS_ALLOWED for seed, curve in plain.items()}
    for encoding in options.encodings:
        whole = encoding == "float32"
        rounds = options.rounds * (options.longer if encoding in SPARSE else 1)
        found = plain if whole else {s: measure(task, encoding, s, rounds, options.data_root) for s in seeds}
        reached = [found[seed].bytes_to(goal[seed]) for seed in seeds]
        shares = [mine / plain[seed].bytes_to(goal[seed]) for seed, mine in zip(seeds, reached, strict=True)]
        costs = [found[seed].final - plain[seed].final for seed in seeds]
        meets = np.mean(shares) <= SHARE_ALLOWED and np.mean(costs) >= -POINTS_ALLOWED
        rows.append(
            [
                task,
                NAMES.get(encoding, encoding),
                rounds,
                mean_text([curve.final for curve in found.values()]),
                "" if whole else mean_text(costs),
                f"{np.mean([curve.sent[-1] for curve in found.values()]) / 1e6:.1f}",
                mean_text([value / 1e6 for value in reached]),
                "" if whole else mean_text(shares),
                "" if whole else "yes" if meets else "no",
            ]
        )
    return rows


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--data-root", type=Path, help="where MNIST lies")
    parser.add_argument("--encodings", nargs="+", choices=SHOWN, default=SHOWN)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--longer", type=int, default=3, help="so many times the rounds for the largest 10 %% and 1 %%")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    header = [
        "task",
        "encoding",
        "rounds",
        "final accuracy %",
        "to float32, points",
        "MB sent by a peer",
        "MB to the target",
        "of float32's bytes to it",
        "aim met",
    ]
    for task in options.tasks:
        record(f"bytes-{task}", "Bytes to a target accuracy", header, rows_of(task, options), save=options.save)


if __name__ == "__main__":
    main()
