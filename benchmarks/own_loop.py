"""A training script with `peer.join` around its loop, beside the same script without.

    python benchmarks/own_loop.py [--rounds 6] [--epochs 20] [--repeats 8] [--save]

Two sites, one thread each: an MLP 784-2048-10 (6.4 MB) on 1,000 random images, batches of 100, SGD with momentum. Both forms
train and evaluate equally often and take turns. Seconds are of the wall clock, from the second round of a site, since the first
imports and connects, to the end of its loop, those of the slower site; processor seconds and peak of resident memory are those
of one process. Medians over the repeats; the speed is the median over pairs, with its quartiles.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

from record import new_parser, record

SITES, SAMPLES, BATCH, AIM = 2, 1000, 100, 0.97


class Cost(NamedTuple):
    """Of the sites of one form: seconds of the slower one, processor seconds and peak MB of the first."""

    wall_s: float
    processor_s: float
    peak_mb: float


def be_a_site(graph: str, site: int, state: str, rounds: int, epochs: int) -> None:
    """Train as a script does; without a graph, alone. Print what it cost."""
    import torch
    from torch import nn
    from torch.nn import functional

    import peer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    draw = torch.Generator().manual_seed(site)
    x, y = torch.rand(SAMPLES, 784, generator=draw), torch.randint(10, (SAMPLES,), generator=draw)

    def evaluate(net: nn.Module) -> float:
        with torch.no_grad():
            return float((net(x[:BATCH]).argmax(1) == y[:BATCH]).float().mean())

    def train_one_round() -> None:
        for _ in range(epochs):
            for batch in torch.randperm(SAMPLES).split(BATCH):  # type: ignore[no-untyped-call]
                optimizer.zero_grad()
                functional.cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()

    joined: Any = nullcontext(range(rounds))
    if graph:
        joined = peer.join(
            graph,
            site,
            model=model,
            evaluate=evaluate,
            samples=SAMPLES,
            keep={"optimizer": optimizer},
            state_dir=state,
            insecure=True,
        )
    began, processor = 0.0, 0.0
    with joined as federation:
        for number, _ in enumerate(federation):
            if number == 1:
                began, processor = time.perf_counter(), time.process_time()
            train_one_round()
            if not graph:
                evaluate(model)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(json.dumps([time.perf_counter() - began, time.process_time() - processor, peak_mb]))


def measure(rounds: int, epochs: int, *, joined: bool) -> Cost:
    """Run all sites at once."""
    import peer
    from peer.bed.testbed.ports import on_free_ports

    with tempfile.TemporaryDirectory() as folder:
        path = ""
        if joined:
            run = {"algorithm": "dfedavg", "rounds": rounds, "timeouts": {"suspicion_s": 60.0}}
            path = f"{folder}/graph.json"
            peer.Graph.of(on_free_ports(peer.Graph.make("line", peers=SITES, run=run))).save(path)
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        sites = [
            subprocess.Popen(
                [sys.executable, __file__, "site", path, str(site), f"{folder}/{site}", str(rounds), str(epochs)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for site in range(SITES)
        ]
        costs = [json.loads(site.communicate()[0].splitlines()[-1]) for site in sites]
    return Cost(max(cost[0] for cost in costs), *costs[0][1:])


def main() -> None:
    """Measure both forms in turn and print a table."""
    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=20, help="of a round")
    parser.add_argument("--repeats", type=int, default=8)
    given = parser.parse_args()
    pairs: list[tuple[Cost, Cost]] = []
    for repeat in range(given.repeats):
        order: list[Callable[[], Cost]] = [
            lambda: measure(given.rounds, given.epochs, joined=False),
            lambda: measure(given.rounds, given.epochs, joined=True),
        ]
        found = [each() for each in (order if repeat % 2 else reversed(order))]
        pairs.append((found[0], found[1]) if repeat % 2 else (found[1], found[0]))
    rows: list[list[object]] = []
    for name, form in (("alone", [alone for alone, _ in pairs]), ("joined", [joined for _, joined in pairs])):
        wall, processor, peak = (statistics.median(values) for values in zip(*form, strict=True))
        rows.append([name, f"{wall:.2f}", f"{processor:.2f}", f"{peak:.0f}", ""])
    low, middle, high = statistics.quantiles((alone.wall_s / joined.wall_s for alone, joined in pairs), n=4)
    rows[1][-1] = f"{middle:.3f} [{low:.3f}, {high:.3f}]"
    columns = ["script", "wall s", "processor s", "peak MB", f"speed (aim {AIM})"]
    record("own-loop", "A training script alone, and with peer.join around its loop", columns, rows, save=given.save)


if __name__ == "__main__":
    if sys.argv[1:2] == ["site"]:
        be_a_site(sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), int(sys.argv[6]))
    else:
        main()
