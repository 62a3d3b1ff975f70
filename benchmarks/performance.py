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

Every table was written by the command above it. `python benchmarks/performance.py` writes the whole page again.
Ratios compare values of the same run, measured in turn. A machine of two cores is noisy: a single time says little.

For comparison, measured earlier on such a machine: p2pfl 0.4.4 sends a model at 74 to 103 MB/s with a peak memory of
9 to 10 models, and a round takes 2.5 / 3.5 / 7.2 s at 2 / 4 / 8 peers with 0.25 s of training. Flower sends about 20
to 40 MB/s, and a round takes 9 to 12 s at 2 peers.
"""

NOTES = """### Start in containers

2026-11-23; 2 cores, 24 GB, x86_64, Python 3.11.7; `python benchmarks/compose_start.py --runs 3`: from `docker-compose up`, with
the image there, eight peers listen after 8.3, 8.6 and 8.4 s (aim 15), and have closed the first round 0.4, 0.5 and 0.5 s later
(aim 5). In the image a lone `peer run` has used 1.28 times the processor time of `import torch` at its first step (aim 1.3;
`--in-image`), and 173 MB that are not files.

### Where the processor time of a transfer goes

2026-11-22, machine busy with other work; 8 peers, complete graph, models of 0.34 MB; milliseconds of processor time per
directed transfer, both ends, training excluded: 4.4 to 5.4 before the changes below (bare gRPC in the same runs 1.2 to
1.6). By perf and timers: event loop 3.1, of them 0.67 in the engine (4.7 steps of 0.14 ms), 0.2 in executing its effects,
about 2 in asyncio and gRPC (62 % of the loop's time is the Python interpreter, 17 % the kernel, 9 % gRPC's core); disk
thread 0.43 (one checkpoint of 3 ms a round); folds 0.1; the rest gRPC's own threads and hops between threads.

- **A small model as one message** (kept): a push of 0.34 MB, both ends in one process, in turn: 1.44 and 1.59 ms, as a
  stream 2.26 and 2.33 ms.
- **The engine asks lazily whom a step waits for** (kept): a recorded peer of 8, replayed: 55 us a step, before 82 us; the
  effects are the same.
- **No hop to the fold thread for views and small folds** (kept): a transfer with 4 peers, three runs in turn: 5.04, 4.47,
  4.79 ms, before 5.31, 4.89, 4.88 ms.
- **Acknowledgments that carry the beat** (not built): a peer that has sent anything within the heartbeat interval sends no
  heartbeat, so short rounds have none.
- **History and checkpoint off the critical path** (was so): history 0.02 ms a transfer; the disk thread writes while the
  next round trains.
- **Encode once, send to many** (was so): one payload per snapshot for all neighbors; deltas depend on the neighbor's base.
- **Protobuf objects reused** (not tried): protobuf is 0.8 % of the event loop's time.

### Aims that were missed, and attempts

- **Memory of a testbed's peer beyond its models**: 22 to 23 MB, aim 18 (24 before). Half of it are pages that a peer shares with
  its parent until Python counts a reference in them. Attempts: one malloc arena for all threads (kept; 1.5 to 1.9 MB less,
  pushes as fast); two arenas (1.2 MB less); no padding of the heap's top (no gain); imports moved before the fork (nothing
  is left to move: a peer imports no module of its own).
- **Round overhead at 8 peers**: 0.184 s, aim 0.15 s. The overhead is processor time. Two cores serve eight peers;
  each peer uses about 70 ms of processor time per round, 18 ms of it for training and evaluation, and the other peers
  wait meanwhile. A machine that was nearly twice as fast (raw TCP 2.7 GB/s) had 0.124 s. Attempts: fewer questions to
  the engine (a fifth of the main thread less, 0.230 to 0.19 s); timers that only move earlier, and half-closing
  models of one frame at once (both kept); uvloop in place of asyncio (no gain); no TLS (no gain).
- **Pushes of 1 and 10 MB**: 0.67 and 0.76 of bare gRPC, aim 0.8. Five runs on one day had 0.67 to 0.82 and 0.67 to
  0.76; 100 MB had 0.71 to 0.87. The rest is placing, checking and folding in the receiver, whose core is the busy
  one. Attempts: reusing frame memory in senders too (kept; up to a tenth); checking chunks on a thread beside the
  event loop (a fifth slower: the receiver has no idle core on two cores); folding by a fused operation of PyTorch (40
  % of the fold, 5 % of a push: too little to make the core depend on torch).
- **A tunnel**: 2.1 to 2.4 times the processor time of a dialed push of 100 MB, aim 1.5; a relay 3.3 to 3.8. Ratios of runs
  that alternate, machine busy (load 8 to 28), 2026-11-22. Of a tunneled push the kernel takes 50 % (of a dialed one 33 %),
  copies in libc 17 %, gRPC 16 %, Python 11 % (`perf`). The bytes are encrypted and framed twice, and cross a unix socket at
  each end, since Python's gRPC neither gives its connections away nor takes one. A bare gRPC stream of as many bytes costs
  0.7 of a dialed push. So 1.7 is the floor of this design, before the two sockets, and 2.4 that of a relay. Attempts, each
  in the same run as the code as it is: frames of up to 1 MiB that gather while the one before is written (tunnel from 6 %
  less to 7 % more, relay 3 to 15 % less; not kept, too little for a second buffer); larger reads in gRPC (no gain); HTTP/2
  frames of 1 MiB (no gain); 1 MiB of buffer for all unix sockets (2 % less, and no way to set it but by going through all
  open files); no inner TLS (10 to 20 % less, still 1.8 to 2.1; not kept, since the inner TLS proves identity). Only a tunnel
  that carries calls instead of a connection would be below the floor. It has no gRPC at its inner ends, and needs its own
  deadlines, cancellation, half-closing and limits, and the outer connection as the proof of identity.
- No copy of a model is held by a tunnel or a relay: ends of 100 MB grow as much as on a dialed edge, the relay by 19 MB.
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
