"""What one lying neighbor of four costs honest peers, by what `run.screening` says.

    python benchmarks/untrusted.py [--seeds 5] [--json FILE] [--markdown FILE]

Four peers, all neighbors of each other, average one model of scikit-learn's digits (dfedavg, lockstep) in this process. Peer 3
trains as the others do and lies in what it sends: it turns all signs. The number is the accuracy after the last round, averaged
over the three honest peers; then over seeds, with its 95 % interval. `local` sends nothing, so nobody can lie to it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from common import command, machine, show

import peer
from peer.algorithms.dfedavg import DFedAvg
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector

PEERS, LIAR = 4, 3
RUN = {"rounds": 60, "split": "iid", "clusters": 1, "local_epochs": 2}
STUDENT_T = {
    1: 12.706,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    6: 2.447,
    7: 2.365,
    8: 2.306,
    9: 2.262,
}  # 97.5 %, by freedom
SCREENING: dict[str, dict[str, float]] = {
    "off (default)": {},
    "norm_bound 2": {"norm_bound": 2.0},
    "clip 1": {"clip": 1.0},
    "trimmed_mean 0.25": {"trimmed_mean": 0.25},
}


class Liar(DFedAvg):
    """DFedAvg, in which one peer changes what it sends."""

    name = "liar"
    factor = 1.0

    def outgoing(self, workspace: Workspace, slot: int) -> Vector | None:
        """Return the model that neighbors get; None: the present one."""
        if workspace.peer_id != LIAR or self.factor == 1:
            return super().outgoing(workspace, slot)
        return workspace.models.model(slot) * np.float32(self.factor)


class SignFlip(Liar):
    """The liar turns all signs."""

    name = "sign-flip"
    factor = -1.0


ATTACKS: dict[str, type[DFedAvg]] = {"none": Liar, "sign flip": SignFlip}


def accuracy(seed: int, algorithm: Any, screening: dict[str, float]) -> float:
    """Return the mean accuracy of the honest peers after one run; 0 if an honest peer's model is no longer finite."""
    run: dict[str, Any] = RUN | {"seed": seed, "data_seed": seed, "screening": screening}
    run |= {"algorithm": algorithm} if isinstance(algorithm, str) else {}
    graph = peer.Graph.make("complete", peers=PEERS, run=run)
    result = peer.simulate(graph, algorithm=None if isinstance(algorithm, str) else algorithm, progress=False)
    frame = result.frame()
    last = frame[frame["round_index"] == frame["round_index"].max()]
    return float(last[last["peer_id"] != LIAR]["accuracy"].mean())


def interval(values: list[float]) -> tuple[float, float]:
    """Return mean and half width of the 95 % interval."""
    half = STUDENT_T[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), half


def main() -> None:
    """Measure all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, choices=range(2, 11), metavar="2..10")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    cases: dict[str, tuple[dict[str, float], dict[str, Any]]] = {"local": ({}, {"none": "local"})}
    cases |= {f"dfedavg, {name}": (screening, ATTACKS) for name, screening in SCREENING.items()}
    measured: dict[str, dict[str, list[float]]] = {}
    for name, (screening, attacks) in cases.items():
        measured[name] = {
            attack: [100 * accuracy(seed, algorithm, screening) for seed in range(1, given.seeds + 1)]
            for attack, algorithm in attacks.items()
        }
        print(
            name, {attack: round(statistics.fmean(values), 1) for attack, values in measured[name].items()}, flush=True
        )
    rows = [[name, *(cell(found.get(attack, found["none"])) for attack in ATTACKS)] for name, found in measured.items()]
    title = f"One lying neighbor of {PEERS - 1}, digits, {RUN['rounds']} rounds, {given.seeds} seeds: accuracy of honest peers, %"
    show(title, ["algorithm, run.screening", *(f"attack: {attack}" for attack in ATTACKS)], rows, given.markdown)
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        facts = {"command": command(), "machine": machine(), "run": RUN, "accuracy": measured}
        given.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def cell(values: list[float]) -> str:
    """Return mean and half width, %."""
    mean, half = interval(values)
    return f"{mean:.1f} ± {half:.1f}"


if __name__ == "__main__":
    main()
