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
    ("memory.py",),
    ("scale.py",),
    ("training.py",),
]
THOUSAND = ("scale.py", "--peers", "1000", "--degree", "4", "--kind", "regular")
INTRODUCTION = """# Performance

Every table was written by the command above it; `python benchmarks/performance.py` writes the whole page again. Ratios
compare what was measured in the same run, interleaved; a machine of two cores is noisy, so single times say little.

For scale, measured earlier on such a machine: p2pfl 0.4.4 moves a model at 74 to 103 MB/s with 9 to 10 models of peak
memory, and takes 2.5 / 3.5 / 7.2 s a round at 2 / 4 / 8 peers with 0.25 s of training; Flower moves about 20 to 40 MB/s
and takes 9 to 12 s a round at 2.
"""

NOTES = """### What these numbers do not reach, and what was tried

- **Round overhead at 8 peers**, aim 0.15 s. It is processor time: two cores serve eight peers, each of which uses
  about 70 ms of them a round, 18 of these for training and evaluation, which the others wait for. A machine that was
  nearly twice as fast (raw TCP 2.7 GB/s) had 0.124 s. Tried: asking the engine fewer questions (a fifth of the main
  thread less, 0.230 to 0.19 s); timers that only move earlier; half-closing models of one frame at once (both are
  in); uvloop in place of asyncio (no gain); no TLS (no gain).
- **Pushes of 1 and 10 MB** against bare grpcio, aim 0.8: five runs on one day had 0.67 to 0.82 and 0.67 to 0.76; 100
  MB had 0.71 to 0.87. The rest is placing, checking and folding in the receiver, whose core is the busy one. Tried:
  keeping frame memory in senders too (in; up to a tenth); checking chunks on a thread beside the event loop (a fifth
  slower: the receiver has no idle core on two); folding by a fused operation of PyTorch (40 % of the fold, 5 % of a
  push: not worth torch in the core).
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--thousand", action="store_true", help="also 1,000 peers: 24 GB of memory, some minutes")
    options = parser.parse_args()
    texts = [INTRODUCTION]
    for script, *arguments in [*PARTS, THOUSAND] if options.thousand else PARTS:
        with tempfile.TemporaryDirectory() as place:
            section = Path(place) / "section.md"
            command = [sys.executable, str(HERE / script), *arguments, "--markdown", str(section)]
            subprocess.run(command, check=True)
            texts.append(section.read_text(encoding="utf-8").replace(f" --markdown {section}", ""))
    TARGET.write_text("\n".join([*texts, NOTES]), encoding="utf-8")


if __name__ == "__main__":
    main()
