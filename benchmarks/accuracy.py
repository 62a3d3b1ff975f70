"""Accuracy over seconds, with a slow peer and a slow link, and over bytes, by encoding, edges and outer step, in one process.

    python benchmarks/accuracy.py [seconds bytes edges] [--seconds 150] [--tasks digits mnist] [--data-root data] [--save]

Eight peers on a 3-regular graph. All use engine, training, encodings, error feedback and timeouts of a running peer, on shards
dealt by a Dirichlet distribution with alpha 0.5, so nothing depends on the load of the machine. Differences are taken seed by
seed; +- is half the 95 % interval of a mean (Student's t).

seconds: what one slow peer and one slow link cost in lockstep, in lockstep with a short round deadline, in the async pace, and
with one edge a round. On a virtual clock a round's training takes 1 s at seven peers and 5 s at the eighth, each time up to a
tenth more or less. Models to and from another peer pass its link of 1 MB/s in each direction, one after the other; all else
takes no time. Accuracy is that of the model that a peer has at a moment, on its own test samples; before its first round it
counts as 0. Each peer continues with its rounds until the time is up: there is no last round. With ``--save`` the mean curves
are drawn in docs/figures/stragglers.svg.

bytes: what smaller encodings save on the link, and cost in accuracy. edges: the same for one edge a round (`run.edges`) and the
outer step (`run.outer`), alone and with smaller encodings. The peers average one model (dfedavg, lockstep): an MLP on images
(hidden layers of 256 and 256 on digits; else one of 64, and at most 500 samples a peer), LoRA adapters on texts
(`text_task.py`). Bytes are payload bytes that a peer sends to all its neighbors together. The target of a seed is the final
accuracy of float32 on all edges minus half a point. The final accuracy is the mean of the last five rounds; a target counts as
reached at the first of three evaluations in a row at or above it. Aim: a tenth of the bytes of float32 for at most 0.5 points.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from drawn import lines_as_svg
from record import new_parser, record
from text_task import TwoClauses
from typing_extensions import override

from coordinator_free_bootstrap import make_graph
from peer.bed.testbed.directory import with_settings
from peer.core.arrivals import Arrival
from peer.core.encoding import ENCODINGS
from peer.core.messages import PushReply
from peer.host import PeerHost
from peer.lab.comparison import half_width
from peer.lab.network import SimulatedPeer, VirtualNetwork
from peer.lab.simulated import SimulatedSettings, simulate, simulated_peers

PARTS = ("seconds", "bytes", "edges")
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "stragglers.svg"
PEERS, DEGREE = 8, 3
IMAGES = [
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

SLOW, THIN = 0, 4  # the peer that trains slowly, and the one behind a slow link
FAST_S, SLOW_S, JITTER = 1.0, 5.0, 0.1
THIN_BYTES_S = 1e6  # in each direction
SHARE_OF_FINAL = 0.9
ENDLESS = ["run.task=digits", "run.model_options.hidden=[256,256]", "run.rounds=1000000"]  # the time ends the run
LOCKSTEP, ONE_EDGE, ASYNC, ALONE = "lockstep", "one edge a round", "async", "alone"
PACES = {
    LOCKSTEP: [],
    "lockstep, deadline 2.5 s": ["run.timeouts.suspicion_s=1", "run.timeouts.round_deadline_s=2.5"],
    ASYNC: ["run.pace=async"],
    ONE_EDGE: ["run.edges=one"],
    ALONE: ["run.algorithm=local"],
}


class TimeIsUpError(Exception):
    """The virtual clock has come to the end of the run."""


class Line:
    """One direction of a slow link: transfers pass one after the other.

    Args:
        network: with the clock.
    """

    def __init__(self, network: SlowNetwork) -> None:
        self._network = network
        self._queue: list[tuple[Arrival, Callable[[], None]]] = []
        self._turn = 0  # of the transfer under way

    def carry(self, arrival: Arrival, done: Callable[[], None]) -> None:
        """Carry a model, and call a function when it has arrived."""
        self._queue.append((arrival, done))
        if len(self._queue) == 1:
            self._begin()

    def give_up(self, arrival: Arrival) -> None:
        """Carry a model no further, if it is under way or waits."""
        first = self._queue[:1]
        self._queue = [each for each in self._queue if each[0] is not arrival]
        if first and first != self._queue[:1]:
            self._begin()

    def _begin(self) -> None:
        self._turn += 1
        if self._queue:
            seconds = self._queue[0][0].header.size_bytes / THIN_BYTES_S
            self._network.after(seconds, partial(self._arrived, self._turn))

    def _arrived(self, turn: int) -> None:
        if turn == self._turn:  # else it was given up
            _, done = self._queue.pop(0)
            self._begin()
            done()


class PeerOnLine(SimulatedPeer):
    """A peer whose models may have to pass a slow link."""

    network: SlowNetwork

    @override
    def read_arrival(self, arrival: Arrival) -> None:
        """Read a model when its bytes have passed."""
        line = self.network.line(arrival.sender, self.peer_id)
        if line is None:
            super().read_arrival(arrival)
        else:
            line.carry(arrival, partial(self._arrived, arrival))

    def _arrived(self, arrival: Arrival) -> None:
        if arrival in self.arrivals:
            super().read_arrival(arrival)

    @override
    def answer_arrival(self, arrival: Arrival, reply: PushReply) -> None:
        """Answer a push, which ends its transfer."""
        line = self.network.line(arrival.sender, self.peer_id)
        if line is not None:
            line.give_up(arrival)
        super().answer_arrival(arrival, reply)


class SlowNetwork(VirtualNetwork):
    """A virtual network in which training and the models of one peer take time, and peers do not wait for each other's.

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
        self._later: list[tuple[float, int, Callable[[], None]]] = []  # a heap, by when it is due
        self._count = itertools.count()
        self._to_thin, self._from_thin = Line(self), Line(self)

    def line(self, sender: int, receiver: int) -> Line | None:
        """Return the slow line between two peers, if there is one."""
        return {receiver: self._to_thin, sender: self._from_thin}.get(THIN)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something after some seconds of the virtual clock."""
        heapq.heappush(self._later, (self.now + seconds, next(self._count), action))

    @override
    def add(self, host: PeerHost) -> SimulatedPeer:
        """Connect a host to this network."""
        peer = self.peers[host.peer_id] = PeerOnLine(host, self)
        host.connect(peer)
        return peer

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
            self.after(lasts_s, partial(peer.host.post, peer.host.work(work)))

    @override
    def _advance_clock(self, idle: int) -> None:
        timer = self._first_timer()
        due = self._later[0][0] if self._later else float("inf")
        if min(due, float("inf") if timer is None else timer) > self.began + self._seconds:
            raise TimeIsUpError
        if timer is not None and timer < due:
            super()._advance_clock(idle)
            return
        self.now, _, action = heapq.heappop(self._later)
        self.later(action)


class Run:
    """One run: accuracy of every peer, in percent, as a function of time."""

    def __init__(self, pace: Sequence[str], seed: int, seconds: float) -> None:
        graph = make_graph("regular", PEERS, degree=DEGREE, seed=seed)
        settings = [*IMAGES, *ENDLESS, "run.algorithm=dfedavg", *pace, f"run.seed={seed}", f"run.data_seed={seed}"]
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


def over_seconds(seeds: Sequence[int], seconds: float) -> tuple[list[list[object]], dict[str, list[float]]]:
    """Return a row for each pace, and its mean accuracy at each second."""
    rows: list[list[object]] = []
    curves: dict[str, list[float]] = {}
    usual = [p for p in range(PEERS) if p not in (SLOW, THIN)]
    plain: list[Run] = []
    for pace, settings in PACES.items():
        runs = [Run(settings, seed, seconds) for seed in seeds]
        plain = plain or runs  # lockstep is the first
        pairs = list(zip(runs, plain, strict=True))
        counts = [np.mean([run.rounds_of(peers) for run in runs]) for peers in (usual, [SLOW], [THIN])]
        rows.append([
            pace, ", ".join(f"{count:.0f}" for count in counts),
            text_of([run.mean(seconds / 10) for run in runs], 1), text_of([run.mean(seconds) for run in runs], 1),
            text_of([run.mean(seconds) - base.mean(seconds) for run, base in pairs], 1) if runs is not plain else None,
            text_of([run.worst for run in runs], 1),
            text_of([run.seconds_to(SHARE_OF_FINAL * base.mean(seconds)) for run, base in pairs], 1),
            f"{np.mean([run.megabytes for run in runs]):.1f}",
        ])  # fmt: skip
        print(*rows[-1], sep=" | ", flush=True)
        curves[pace] = [float(np.mean([run.mean(at) for run in runs])) for at in range(int(seconds) + 1)]
    return rows, curves


# ---- bytes ------------------------------------------------------------------------------------------------------------

NAMES = {
    "int8": "int8, error feedback",
    "delta_int8": "delta, int8",
    "delta_top10": "delta, largest 10 %, error feedback",
    "delta_top1": "delta, largest 1 %, error feedback",
}
ALL, ONE, NESTEROV, NOLOCO = "all edges", "one edge", "all edges, nesterov", "one edge, noloco"
WAYS = {
    ALL: [],
    ONE: ["run.edges=one"],
    NESTEROV: ["run.outer.optimizer=nesterov"],
    NOLOCO: ["run.edges=one", "run.outer.optimizer=noloco"],
}
FEW = ("float32", "int8", "delta_int8", "delta_top10")
BASE = (ALL, "float32")
CASES = {
    "bytes": [(ALL, name) for name in ENCODINGS if name != "float16"],  # as large as bfloat16
    "edges": [BASE, *((way, name) for way in (ONE, NESTEROV, NOLOCO) for name in FEW)],
}
LAST, STEADY = 5, 3
POINTS_ALLOWED, SHARE_ALLOWED = 0.5, 0.1
SMALL = [
    *IMAGES,
    "run.split_options.samples_per_peer=500",
    "run.split_options.test_per_peer=500",
    "run.model_options.hidden=[64]",
]
TASKS = {
    "digits": [*IMAGES, "run.task=digits", "run.model_options.hidden=[256,256]", "run.rounds=150"],
    "mnist": [*SMALL, "run.task=mnist", "run.rounds=80"],
    "emnist": [*SMALL, "run.task=emnist", "run.task_options.split=letters", "run.rounds=80"],
    "texts": ["run.optimizer=adam", "run.learning_rate=0.02", "run.batch_size=40", "run.rounds=30"],
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


def measure(task: str, way: str, encoding: str, seed: int, data_root: Path | None) -> Curve:
    """Run all peers to the end."""
    settings = [*TASKS[task], *WAYS[way], "run.algorithm=dfedavg", f"run.encoding={encoding}"]
    graph = make_graph("regular", PEERS, degree=DEGREE, seed=seed)
    graph = with_settings(graph, [*settings, f"run.seed={seed}", f"run.data_seed={seed}"])
    texts = TwoClauses(seed) if task == "texts" else None
    peers = simulate(graph, None, SimulatedSettings(data_root=data_root, task=texts))
    lines = [[fields for kind, fields in peer.recording.lines if kind == "round"] for peer in peers.values()]
    accuracy = np.array([[line["metric_value"] for line in own] for own in lines]).mean(0)
    sent = np.array([[line["payload_bytes_sent"] for line in own] for own in lines]).mean(0).cumsum()
    return Curve(100 * accuracy, sent)


def over_bytes(
    task: str, cases: Sequence[tuple[str, str]], seeds: range, data_root: Path | None
) -> Iterator[list[object]]:
    """Measure one task; yield a row for each way and encoding, of which `BASE` is the first."""
    curves_of: dict[tuple[str, str], dict[int, Curve]] = {}
    for way, encoding in cases:
        case = way, encoding
        curves = curves_of[case] = {seed: measure(task, way, encoding, seed, data_root) for seed in seeds}
        plain = curves_of[BASE]
        goal = {seed: curve.final - POINTS_ALLOWED for seed, curve in plain.items()}
        reached = [curves[seed].bytes_to(goal[seed]) for seed in seeds]
        shares = [mine / plain[seed].bytes_to(goal[seed]) for seed, mine in zip(seeds, reached, strict=True)]
        costs = [curves[seed].final - plain[seed].final for seed in seeds]
        meets = np.mean(shares) <= SHARE_ALLOWED and np.mean(costs) >= -POINTS_ALLOWED
        row: list[object] = [
            task,
            way,
            NAMES.get(encoding, encoding),
            text_of([curve.final for curve in curves.values()], 2),
            "" if case == BASE else text_of(costs, 2),
            f"{np.mean([curve.sent[-1] for curve in curves.values()]) / 1e6:.1f}",
            text_of([value / 1e6 for value in reached], 2),
            "" if case == BASE else text_of(shares, 2),
            "" if case == BASE else "yes" if meets else "no",
        ]
        print(*row, sep=" | ", flush=True)
        yield row


def main() -> None:
    """Measure the parts that are named and print a table for each."""
    parser = new_parser(__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=150.0, help="seconds: of the virtual clock")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="bytes, edges")
    parser.add_argument("--data-root", type=Path, help="bytes, edges: folder of MNIST and EMNIST")
    parser.add_argument("--seeds", type=int, help="default: 5 over seconds, 3 over bytes and edges")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"expected {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    columns: tuple[str, ...]
    if "seconds" in given.parts:
        logging.getLogger("peer.simulated").setLevel(logging.ERROR)  # a model of a round too far ahead is a warning
        columns = (
            "pace", "rounds of a usual peer, the slow one, the one behind the link", f"accuracy % after {given.seconds / 10:g} s",
            f"after {given.seconds:g} s", "to lockstep, points", "worst peer, %", "seconds to 90 % of lockstep's last accuracy",
            "MB sent by a peer",
        )  # fmt: skip
        rows, curves = over_seconds(range(1, (given.seeds or 5) + 1), given.seconds)
        title = "One peer of eight is five times slower, another one behind a link of 1 MB/s"
        record("stragglers", title, columns, rows, save=given.save)
        if given.save:
            FIGURE.write_text(lines_as_svg(curves, "seconds", "accuracy, %"), encoding="utf-8")
    columns = (
        "task", "a round", "encoding", "final accuracy %", "to float32, points", "MB sent by a peer", "MB to the target",
        "of float32's bytes to it", "aim met",
    )  # fmt: skip
    for task in given.tasks:
        for part in CASES.keys() & given.parts:
            rows = list(over_bytes(task, CASES[part], range(1, (given.seeds or 3) + 1), given.data_root))
            record(
                f"bytes-{task}" if part == "bytes" else f"edges-{task}",
                "Bytes to a target accuracy",
                columns,
                rows,
                save=given.save,
            )


if __name__ == "__main__":
    main()
