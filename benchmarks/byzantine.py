"""What liars cost honest peers, with each kind of screening, and what screening costs without liars.

    python benchmarks/byzantine.py [--digits SEEDS] [--data-root data] [--split iid] [--save]

One liar of four: all neighbors of each other average one model of scikit-learn's digits (dfedavg, lockstep) in this process.
Peer 3 trains as the others do and turns all signs of what it sends. The number is the accuracy after the last round, averaged
over the three honest peers; then over seeds, with its 95 % interval. `local` sends nothing, so no peer can lie to it.

On MNIST: ten peers on a 6-regular graph average one model (dfedavg, lockstep) in this process, with the functions that a
running peer uses (`clip`, `check_norm`, `ModelStore`). Liars know what an honest neighbor knows; they train too. The number is
the accuracy of the personalized model, averaged over honest peers, each on its own test set.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import new_parser, record
from typing_extensions import override

import peer
from coordinator_free_bootstrap import Graph, Manifest, make_graph
from coordinator_free_bootstrap.seeds import derive_seed, generator
from peer.algorithms.dfedavg import DFedAvg
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector, check_norm, clip, norm_squared
from peer.core.model_store import ModelStore
from peer.lab.comparison import half_width
from peer.tasks.loading import load_task

PEERS, DEGREE = 10, 6
LIARS = {0: (), 1: (3,), 2: (3, 7)}


@dataclass(frozen=True)
class Defense:
    """One row of screening settings."""

    name: str
    norm_bound: float | None = None
    clip: float | None = None
    trim: float | None = None


@dataclass
class Lie:
    """What a liar may use: its start and trained models, the round, and whom it talks to."""

    start: Vector
    trained: Vector
    round_index: int
    neighbor: int
    drift: Vector


def thousandfold(lie: Lie) -> Vector:
    """Send 1000 times the model."""
    return lie.trained * np.float32(1000)


def sign_flip(lie: Lie) -> Vector:
    """Send the model with all signs turned."""
    return -lie.trained


def nan_sometimes(lie: Lie) -> Vector:
    """Send a NaN every third round, and an honest model otherwise."""
    model = lie.trained.copy()
    if lie.round_index % 3 == 2:
        model[0] = np.nan
    return model


def slow_drift(lie: Lie) -> Vector:
    """Send an honest model moved a little further in one direction each round: 0.5 a round."""
    return lie.trained + np.float32(0.5 * (lie.round_index + 1)) * lie.drift


def two_faced(lie: Lie) -> Vector:
    """Be honest to neighbors of even id, turn all signs for the others."""
    return lie.trained if lie.neighbor % 2 == 0 else -lie.trained


def honest(lie: Lie) -> Vector:
    """Send the trained model; for label flipping the lie is in the data."""
    return lie.trained


ATTACKS: dict[str, Callable[[Lie], Vector]] = {
    "x1000": thousandfold,
    "sign flip": sign_flip,
    "NaN every 3rd round": nan_sometimes,
    "slow drift": slow_drift,
    "label flip": honest,
    "two-faced": two_faced,
}


class Peers:
    """All peers' data and local training at once: an MLP 784 - 32 - 10, as one batched matrix product for each layer.

    Args:
        data_root: where MNIST lies.
        samples: training samples of each peer.
        split: iid, or dirichlet with alpha 0.3.
        seed: of the dealing and of the graph.
    """

    HIDDEN, CLASSES, BATCH, LEARNING_RATE = 32, 10, 50, 0.1

    def __init__(self, data_root: Path, samples: int, split: str, seed: int) -> None:
        options: dict[str, Any] = {"alpha": 0.3} if split == "dirichlet" else {}
        manifest = Manifest(task="mnist", split=split, split_options=options, clusters=1, data_seed=seed)
        self.graph: Graph = make_graph("regular", PEERS, seed=seed, degree=DEGREE, manifest=manifest)
        task = load_task(manifest, PEERS, data_root=data_root, shard_path=None, download=False)
        shards = [task.load_shard(peer_id) for peer_id in range(PEERS)]
        count = min(samples, *(len(shard.train_y) for shard in shards)) // self.BATCH * self.BATCH
        self.x = torch.stack([torch.from_numpy(s.train_x[:count]).reshape(count, -1).float() for s in shards])
        self.y = torch.stack([torch.from_numpy(s.train_y[:count]).long() for s in shards])
        self.test = [(torch.from_numpy(s.test_x).reshape(len(s.test_y), -1).float(), s.test_y) for s in shards]
        inputs = self.x.shape[2]
        self.shapes = [(inputs, self.HIDDEN), (1, self.HIDDEN), (self.HIDDEN, self.CLASSES), (1, self.CLASSES)]
        self.size = sum(a * b for a, b in self.shapes)

    def first(self, seed: int) -> Vector:
        """Return the first model of all peers."""
        draw = generator(seed, "initial")
        parts = [draw.standard_normal(a * b) * (np.sqrt(2 / a) if a > 1 else 0) for a, b in self.shapes]
        return np.concatenate(parts).astype(np.float32)

    def train(self, models: Vector, flipped: tuple[int, ...], seed: int) -> Vector:
        """Return all peers' models, float32 [N, d], after an epoch of SGD on their own data."""
        flat, labels = torch.from_numpy(models.copy()), self.y.clone()
        for liar in flipped:
            labels[liar] = 9 - labels[liar]
        w1, b1, w2, b2 = self._layers(flat)
        order = torch.from_numpy(generator(seed, "order").permutation(self.x.shape[1]))
        for start in range(0, len(order), self.BATCH):
            batch = order[start : start + self.BATCH]
            x, y = self.x[:, batch], labels[:, batch]  # (N, B, 784), (N, B)
            hidden = torch.baddbmm(b1, x, w1).relu_()  # (N, B, H)
            slope = torch.baddbmm(b2, hidden, w2).softmax(2)  # (N, B, C)
            slope.scatter_add_(2, y[:, :, None], torch.full((*y.shape, 1), -1.0))
            slope /= self.BATCH
            back = (slope @ w2.transpose(1, 2)) * (hidden > 0)  # (N, B, H)
            for layer, bias, source, step in ((w2, b2, hidden, slope), (w1, b1, x, back)):
                layer.sub_(source.transpose(1, 2) @ step, alpha=self.LEARNING_RATE)
                bias.sub_(step.sum(1, keepdim=True), alpha=self.LEARNING_RATE)
        return flat.numpy()

    def accuracy(self, peer_id: int, model: Vector) -> float:
        """Return one model's accuracy on one peer's test set."""
        w1, b1, w2, b2 = (layer[0] for layer in self._layers(torch.from_numpy(model.copy())[None]))
        x, y = self.test[peer_id]
        scores = torch.relu(x @ w1 + b1) @ w2 + b2
        return float((scores.argmax(1).numpy() == y).mean())

    def _layers(self, flat: torch.Tensor) -> list[torch.Tensor]:
        layers, start = [], 0
        for a, b in self.shapes:
            layers.append(flat[:, start : start + a * b].view(-1, a, b))
            start += a * b
        return layers


def play(
    peers: Peers, attack: str | None, liars: tuple[int, ...], defense: Defense, *, rounds: int, seed: int
) -> tuple[float, float]:
    """Return the honest peers' mean accuracy, and the median distance of honest arrivals from the receiver's model."""
    stores = [ModelStore([peers.first(seed)], trim=defense.trim) for _ in range(PEERS)]
    drift = generator(seed, "drift").standard_normal(peers.size).astype(np.float32)
    drift /= np.linalg.norm(drift)
    lie = ATTACKS[attack] if attack else honest
    distances: list[float] = []
    for round_index in range(rounds):
        starts = np.stack([store.model(0) for store in stores])
        path = derive_seed(seed, "train", round_index)
        trained = peers.train(starts, liars if attack == "label flip" else (), path)
        for peer_id, store in enumerate(stores):
            store.replace(0, trained[peer_id].copy())
            store.begin_round(frozenset({0}))
            own = norm_squared(starts[peer_id])
            for neighbor in peers.graph.neighbors(peer_id):
                arrival = trained[neighbor].copy()
                if neighbor in liars and peer_id not in liars:
                    arrival = lie(Lie(starts[neighbor], arrival, round_index, peer_id, drift))
                if check_norm(norm_squared(arrival), own, defense.norm_bound) is not None:
                    continue
                if neighbor not in liars and round_index >= rounds // 2:
                    distances.append(float(np.linalg.norm(arrival - starts[peer_id])))
                if defense.clip is not None:
                    clip(arrival, starts[peer_id], defense.clip)
                store.fold(0, arrival)
            store.merge(0)
    found = [peers.accuracy(i, stores[i].model(0)) for i in range(PEERS) if i not in liars]
    return statistics.fmean(found), statistics.median(distances) if distances else float("nan")


def shown(found: list[float]) -> str:
    """Return the mean over seeds and their deviation."""
    deviation = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
    return f"{statistics.fmean(found):.1f}{deviation}"


def on_mnist(arguments: argparse.Namespace) -> tuple[list[str], list[list[object]]]:
    """Run all attacks against all defenses; return columns and rows."""
    torch.set_num_threads(1)
    peers = {seed: Peers(arguments.data_root, arguments.samples, arguments.split, seed) for seed in arguments.seeds}
    defenses = [Defense("off"), Defense("norm bound 2", norm_bound=2.0)]
    defenses += [Defense(f"clip {radius:g}", clip=radius) for radius in arguments.radius]
    defenses += [Defense(f"norm bound 2, clip {r:g}", norm_bound=2.0, clip=r) for r in arguments.radius[-2:-1]]
    defenses += [Defense("trimmed mean 0.3", trim=0.3)]
    rows: list[list[object]] = []
    for count, liars in LIARS.items():
        for attack in [None] if not liars else ATTACKS:
            cells = []
            for defense in defenses:
                played = [play(peers[s], attack, liars, defense, rounds=arguments.rounds, seed=s) for s in peers]
                cells.append(shown([100 * accuracy for accuracy, _ in played]))
                if attack is None:
                    distance = statistics.fmean(distance for _, distance in played)
                    print(f"{defense.name}: honest arrivals lie {distance:.2f} away (median, second half)", flush=True)
            rows.append([count, attack or "no liar", *cells])
    return ["liars", "attack", *(defense.name for defense in defenses)], rows


# ---- one liar of four, on digits -------------------------------------------------------------------------------------

FEW, LIAR = 4, 3
RUN = {"rounds": 60, "split": "iid", "clusters": 1, "local_epochs": 2}
SCREENING: dict[str, dict[str, float]] = {
    "screening off (default)": {},
    "`run.screening.norm_bound=2`": {"norm_bound": 2.0},
    "`run.screening.clip=1`": {"clip": 1.0},
    "`run.screening.trimmed_mean=0.25`": {"trimmed_mean": 0.25},
}


class Liar(DFedAvg):
    """DFedAvg, in which one peer changes what it sends."""

    name = "liar"
    factor = 1.0

    @override
    def outgoing(self, workspace: Workspace, slot: int) -> Vector | None:
        """Return the model that neighbors get; None: the present one."""
        if workspace.peer_id != LIAR or self.factor == 1:
            return super().outgoing(workspace, slot)
        return workspace.models.model(slot) * np.float32(self.factor)


class SignFlip(Liar):
    """The liar turns all signs."""

    name = "sign-flip"
    factor = -1.0


ALGORITHMS: dict[str, type[DFedAvg]] = {"none": Liar, "sign flip": SignFlip}


def accuracy(seed: int, algorithm: Any, screening: dict[str, float]) -> float:
    """Return the mean accuracy of the honest peers after one run; 0 if an honest peer's model is no longer finite."""
    run: dict[str, Any] = RUN | {"seed": seed, "data_seed": seed, "screening": screening}
    run |= {"algorithm": algorithm} if isinstance(algorithm, str) else {}
    graph = peer.Graph.make("complete", peers=FEW, run=run)
    result = peer.simulate(graph, algorithm=None if isinstance(algorithm, str) else algorithm, progress=False)
    frame = result.frame()
    last = frame[frame["round_index"] == frame["round_index"].max()]
    return float(last[last["peer_id"] != LIAR]["metric_value"].mean())


def on_digits(seeds: int) -> list[list[object]]:
    """Return a row for each screening: the accuracy without and with a liar, mean and 95 % interval over the seeds."""
    cases: dict[str, tuple[dict[str, float], dict[str, Any]]] = {"`local`": ({}, {"none": "local"})}
    cases |= {f"`dfedavg`, {name}": (screening, ALGORITHMS) for name, screening in SCREENING.items()}
    rows: list[list[object]] = []
    for name, (screening, attacks) in cases.items():
        found = {
            attack: [100 * accuracy(seed, algorithm, screening) for seed in range(1, seeds + 1)]
            for attack, algorithm in attacks.items()
        }
        means = [found.get(attack, found["none"]) for attack in ALGORITHMS]
        rows.append([name, *(f"{statistics.fmean(each):.1f} ± {half_width(each) or 0:.1f}" for each in means)])
        print(*rows[-1], sep=" | ", flush=True)
    return rows


def main() -> None:
    """Measure what is asked for."""
    parser = new_parser(__doc__)
    parser.add_argument(
        "--digits", type=int, default=5, metavar="SEEDS", help="one liar of four on digits; 0: not measured"
    )
    parser.add_argument("--data-root", type=Path, help="of MNIST; without it MNIST is not measured")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--samples", type=int, default=600, help="training samples of each peer")
    parser.add_argument("--split", default="iid")
    parser.add_argument("--radius", type=float, nargs="+", default=[0.3, 1.0, 3.0], help="clip radii to try")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    given = parser.parse_args()
    if given.digits:
        title = f"Accuracy of honest peers in percent, one lying neighbor of {FEW - 1}, digits, {RUN['rounds']} rounds"
        columns = ["algorithm and screening", *(f"attack: {attack}" for attack in ALGORITHMS)]
        record("liar-digits", title, columns, on_digits(given.digits), save=given.save)
    if given.data_root:
        title = f"Accuracy of honest peers in percent, MNIST, split {given.split}, {given.rounds} rounds"
        record(f"liars-{given.split}", title, *on_mnist(given), save=given.save)


if __name__ == "__main__":
    main()
