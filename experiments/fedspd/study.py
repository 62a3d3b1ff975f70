"""One method on one setting over several seeds, in one process: a JSON line per seed.

    python experiments/fedspd/study.py --data-root DATA --method fedspd --task mnist --samples 250 --degree 6 --out rows.jsonl

``METHODS`` names the algorithms and the options that the tables of docs/fedspd.md compare. The graph, the split and all random
choices follow from ``--seed``; every method meets the same ones.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from peer.experiment.in_process import InProcess, LocalPeer
from peer.observe.soft_clusters import collapse, mixture_error_of, sample_accuracy

METHODS: dict[str, dict[str, Any]] = {
    "local": {"algorithm": "local"},
    "dfedavg": {"algorithm": "dfedavg"},
    "dfedavg+final": {"algorithm": "dfedavg", "options": {"final_epochs": 10}},
    "dfca": {"algorithm": "dfca"},
    "fedem": {"algorithm": "fedem"},
    "fedspd": {"algorithm": "fedspd"},
}


def graph_of(arguments: argparse.Namespace, seed: int) -> Graph:
    """Return the graph and the manifest of one run."""
    method = dict(METHODS[arguments.method])
    options = method.pop("options", {}) | json.loads(arguments.options)
    split = {"rotation": arguments.rotation, "samples_per_peer": arguments.samples, "test_per_peer": arguments.test}
    manifest = Manifest(
        task=arguments.task,
        model=arguments.model,
        model_options={"hidden": arguments.hidden} if arguments.model == "mlp" else {},
        split="rotated_soft",
        split_options=split,
        data_seed=seed,
        seed=seed,
        clusters=arguments.clusters,
        rounds=arguments.rounds,
        local_epochs=arguments.epochs,
        batch_size=arguments.batch,
        learning_rate=arguments.rate,
        learning_rate_decay=arguments.decay,
        learning_rate_decay_rounds=5,
        momentum=arguments.momentum,
        evaluate_every=arguments.evaluate_every,
        options=options,
        mix=arguments.mix,
        **method,
    )
    graph = make_graph("erdos-renyi", arguments.peers, seed=seed, degree=arguments.degree)
    return Graph(graph.nodes, graph.edges, manifest)


def numbers_of(peers: dict[int, LocalPeer]) -> dict[str, Any]:
    """Return what a finished run achieved and sent."""
    last = [peer.history[-1] for peer in peers.values()]
    final = np.array([peer.result["accuracy"] for peer in peers.values()])
    found: dict[str, Any] = {
        "accuracy": float(np.mean([row["accuracy"] for row in last])),
        "accuracy_final": float(final.mean()),
        "std_final": float(final.std()),
        "worst_final": float(final.min()),
        "models_sent": sum(peer.totals["models_sent"] for peer in peers.values()),
        "payload_bytes_sent": sum(peer.totals["payload_bytes_sent"] for peer in peers.values()),
        "announcements_sent": sum(peer.totals["announcements_sent"] for peer in peers.values()),
        "label_conflicts": sum(peer.totals["label_conflicts"] for peer in peers.values()),
    }
    facts = [row.get("facts", {}) for row in last]
    tables = [np.array(told["confusion"]) for told in facts if "confusion" in told]
    if tables:
        found |= {"mix_err": mixture_error_of(facts), "sample_accuracy": sample_accuracy(tables)}
    mixtures = [told["mixture"] for told in facts if "mixture" in told]
    if mixtures:
        found["collapsed"] = collapse(mixtures)
    return found


def curve_of(peers: dict[int, LocalPeer]) -> list[list[float]]:
    """Return [round, mean accuracy] of every evaluated round."""
    rows: dict[int, list[float]] = {}
    for peer in peers.values():
        for row in peer.history:
            if row.get("accuracy") is not None:
                rows.setdefault(row["round_index"], []).append(row["accuracy"])
    return [[t, float(np.mean(found))] for t, found in sorted(rows.items())]


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--options", default="{}", help="JSON; added to the method's options")
    parser.add_argument("--label", help="name in the row; default: the method's")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--task", default="mnist")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--hidden", type=int, default=200)
    parser.add_argument("--peers", type=int, default=20)
    parser.add_argument("--degree", type=float, default=6)
    parser.add_argument("--clusters", type=int, default=2)
    parser.add_argument("--rotation", type=int, default=180)
    parser.add_argument("--samples", type=int, default=250)
    parser.add_argument("--test", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--decay", type=float, default=0.8)
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--mix", choices=["uniform", "metropolis"])
    parser.add_argument("--evaluate-every", type=int, default=10)
    return parser.parse_args()


def main() -> None:
    """Run every seed and append its row."""
    arguments = parse()
    setting = {k: v for k, v in vars(arguments).items() if k not in ("data_root", "out", "seeds", "label", "method")}
    for seed in arguments.seeds:
        began = time.monotonic()
        peers = InProcess(graph_of(arguments, seed), data_root=arguments.data_root).run()
        row = {"method": arguments.label or arguments.method, "seed": seed, **numbers_of(peers)}
        row |= {"seconds": time.monotonic() - began, "curve": curve_of(peers), "setting": setting}
        with arguments.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items() if k not in ("curve", "setting")}
        print(shown, flush=True)


if __name__ == "__main__":
    main()
