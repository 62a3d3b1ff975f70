"""Simulate many seeds, or replay one: ``python -m tests.simulation --seeds 50000`` or ``--seed 7 --trace``."""

from __future__ import annotations

import argparse
import sys

from tests.simulation.options import draw
from tests.simulation.runner import report, run_many, run_one, shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--seed", type=int, help="replay one seed")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every event and effect")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        outcome = run_one(draw(arguments.seed), trace=arguments.trace)
        if arguments.trace:
            print(outcome.tail)
        print(report(outcome) if outcome.error else f"seed {arguments.seed} holds; trace {outcome.fingerprint}")
        return 1 if outcome.error else 0
    summary = run_many(arguments.start, arguments.seeds, told=lambda seed: print(f"{seed} seeds", file=sys.stderr))
    print(summary)
    for outcome in summary.failures:
        smallest = shrink(outcome)
        print("\n" + report(outcome))
        print("\n".join(["  smallest:", *report(smallest).splitlines()[:3]]))
    return 1 if summary.failures else 0


if __name__ == "__main__":
    sys.exit(main())
