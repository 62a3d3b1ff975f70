"""Run the performance benchmarks one after another and write docs/performance.md: about ten minutes on two quiet cores.

python benchmarks/performance.py [--thousand]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parent / "docs" / "performance.md"
PARTS = [
    ("transport.py",),
    ("round_overhead.py",),
    ("startup.py",),
    ("memory.py",),
    ("scale.py",),
    ("training.py",),
    ("stacked.py",),
    ("tunnel.py",),
    ("large_model.py",),
    ("bytes_to_accuracy.py", "--tasks", "digits"),
]
THOUSAND = ("scale.py", "--peers", "1000", "--degree", "4", "--kind", "regular")
INTRODUCTION = """# Performance

Every table was written by the command above it. `python benchmarks/performance.py` writes all before
"Start in containers" again.
Ratios compare values of the same run, measured in turn. A machine of two cores is noisy: a single time says little.

For comparison, measured earlier on such a machine: p2pfl 0.4.4 sends a model at 74 to 103 MB/s with a peak memory of
9 to 10 models, and a round takes 2.5 / 3.5 / 7.2 s at 2 / 4 / 8 peers with 0.25 s of training. Flower sends about 20
to 40 MB/s, and a round takes 9 to 12 s at 2 peers.
"""

NOTES = "### Start in containers"  # from this heading on people write the document, and its text stays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--thousand", action="store_true", help="also 1,000 peers: 24 GB of memory, some minutes")
    options = parser.parse_args()
    before = TARGET.read_text(encoding="utf-8")
    texts, notes = [INTRODUCTION], before[before.index(NOTES) :]
    for script, *arguments in [*PARTS, THOUSAND] if options.thousand else PARTS:
        with tempfile.TemporaryDirectory() as place:
            section = Path(place) / "section.md"
            command = [sys.executable, str(HERE / script), *arguments, "--markdown", str(section)]
            subprocess.run(command, check=True)
            texts.append(section.read_text(encoding="utf-8").replace(f" --markdown {section}", ""))
    TARGET.write_text("\n".join([*texts, notes]), encoding="utf-8")


if __name__ == "__main__":
    main()
