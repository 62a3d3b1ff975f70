"""What one slow peer costs: lockstep, lockstep with a short round deadline, and the async pace, at equal seconds.

Eight peers on a 3-regular graph learn `digits` (an MLP, shards by a Dirichlet distribution with alpha 0.5). A round's training
takes 1 s at seven of them and 5 s at the eighth, each time up to a tenth more or less. These seconds are those of a virtual
clock: engine, training, encodings and timeouts are those of a running peer, but all else, messages too, takes no time. So
nothing depends on the load of the machine.

Accuracy is that of the model that a peer has at a moment, on its own test samples; before its first round it counts as 0. Each
peer goes on with its rounds until the time is up: there is no last round. Differences are taken seed by seed; +- is half
the 95 % interval of a mean (Student's t).

    python benchmarks/stragglers.py [--seconds 150] [--seeds 5] [--save]
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import numpy as np
from record import new_parser, record

from coordinator_free_bootstrap import make_graph
from peer.bed.testbed.directory import with_settings
from peer.core.events import WorkDone
from peer.lab.comparison import half_width
from peer.lab.network import SimulatedPeer, VirtualNetwork
from peer.lab.simulated import SimulatedSettings, simulated_peers

PEERS, DEGREE, SLOW = 8, 3, 0
FAST_S, SLOW_S, JITTER = 1.0, 5.0, 0.1
SHARE_OF_FINAL = 0.9
COMMON = [
    "run.task=digits",
    "run.model=mlp",
    "run.model_options.hidden=[64]",
    "run.split=dirichlet",
    "run.split_options.alpha=0.5",
    "run.local_epochs=1",
    "run.batch_size=50",
    "run.rounds=1000000",  # the time ends the run
]
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

    def run(self) -> None:
        """Run until the time is up."""
        try:
            super().run()
        except TimeIsUpError:
            return

    def _note(self, peer: SimulatedPeer, kind: str, fields: dict[str, Any]) -> None:
        if kind == "round":
            self.rounds[peer.peer_id].append((self.now - self.began, fields))

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
        settings = [*COMMON, *pace, f"run.algorithm={algorithm}", f"run.seed={seed}", f"run.data_seed={seed}"]
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


def text_of(values: Sequence[float]) -> str:
    """Return a mean and half of its 95 % interval."""
    if not np.isfinite(values).all():
        return f"not reached by {int(np.isinf(values).sum())} of {len(values)}"
    half = half_width(values)
    return f"{np.mean(values):.1f}" + ("" if half is None else f" +- {half:.1f}")


def rows_of(algorithm: str, seeds: Sequence[int], seconds: float) -> list[list[object]]:
    """Return a row for each pace; one for `local`, which waits for nobody."""
    paces = [LOCKSTEP] if algorithm == "local" else list(PACES)
    found = {pace: [Run(algorithm, PACES[pace], seed, seconds) for seed in seeds] for pace in paces}
    fast = [p for p in range(PEERS) if p != SLOW]
    rows: list[list[object]] = []
    for pace, runs in found.items():
        apart, worst_apart = [], []
        for other in (LOCKSTEP, ASYNC):
            pairs = list(zip(runs, found[other], strict=True)) if other != pace and other in found else []
            apart.append(text_of([run.mean(seconds) - base.mean(seconds) for run, base in pairs]) if pairs else None)
            worst_apart.append(text_of([run.worst - base.worst for run, base in pairs]) if pairs else None)
        reached = [
            run.seconds_to(SHARE_OF_FINAL * base.mean(seconds)) for run, base in zip(runs, found[LOCKSTEP], strict=True)
        ]
        counts = [np.mean([run.rounds_of(peers) for run in runs]) for peers in (fast, [SLOW])]
        rows.append([
            f"`{algorithm}`", "none waits" if algorithm == "local" else pace, f"{counts[0]:.0f} and {counts[1]:.0f}",
            text_of([run.mean(seconds / 10) for run in runs]), text_of([run.mean(seconds) for run in runs]), *apart,
            text_of([run.worst for run in runs]), *worst_apart,
            text_of(reached) if len(found) > 1 else None,
            f"{np.mean([run.megabytes for run in runs]):.1f}",
        ])  # fmt: skip
        print(*rows[-1], sep=" | ", flush=True)
    return rows


def main() -> None:
    """Measure all paces with all algorithms."""
    parser = new_parser(__doc__)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--seconds", type=float, default=150.0, help="of the virtual clock")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    logging.getLogger("peer.simulated").setLevel(logging.ERROR)  # a model of a round too far ahead is a warning
    columns = (
        "algorithm", "pace", "rounds of a fast peer and of the slow one", f"accuracy % after {given.seconds / 10:g} s",
        f"after {given.seconds:g} s", "to lockstep, points", "to async, points", "worst peer, %", "to lockstep's, points",
        "to async's, points", "seconds to 90 % of lockstep's last accuracy", "MB sent by a peer",
    )  # fmt: skip
    seeds = range(1, given.seeds + 1)
    rows = [row for algorithm in given.algorithms for row in rows_of(algorithm, seeds, given.seconds)]
    record("stragglers", "One peer of eight is five times slower", columns, rows, save=given.save)


if __name__ == "__main__":
    main()
