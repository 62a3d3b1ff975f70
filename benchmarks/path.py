"""What one arriving model passes through in a peer: files in the order of their first call, and calls.

    python benchmarks/path.py [--save]

Two peers as processes, gRPC over loopback, plaintext; `dfedavg` in lockstep, an MLP of one hidden layer on the bundled digits.
The functions of this project that peer 0 enters are counted, in all its threads, by a profile hook.

- The count begins when gRPC calls the handler of `PushModel` for the model of the third round: nothing of it is read yet.
- It ends when the round's line is in the history: the model is folded and answered, the round merged, evaluated and closed.
  "until answered" is the part of it until the peer answers the sender that the model is folded.
- In between peer 0 has nothing else to do: it has trained and delivered its own model, since peer 1 trains 3 s longer in this
  round, and no heartbeat is due. The count is refused if peer 0 called a file of the sending side.

A call is one entry of a function; a coroutine or generator that continues is not another one. The two peers' earlier rounds have
imported and cached what a round needs.
"""

from __future__ import annotations

import dis
import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from record import new_parser, record
from testbeds import loopback_graph, run

import peer
from peer.host import PeerHost
from peer.runtime.world import AsyncioWorld
from peer.wire.service import PeerServicer

if TYPE_CHECKING:
    from peer.core.arrivals import Arrival
    from peer.core.messages import PushReply

ROOT = Path(peer.__file__).parents[1]
PACKAGES = tuple(f"{ROOT / name}/" for name in ("peer", "coordinator_free_bootstrap", "proto"))
SETTINGS = ["run.algorithm=dfedavg", "run.model=mlp", "run.model_options.hidden=16", "run.local_epochs=1"]
SETTINGS += ["run.rounds=4", "run.timeouts.round_deadline_s=400", "run.timeouts.suspicion_s=225"]
ROUND, LONGER_S = 2, 3.0
SENDING = "peer/wire/client.py"


class Trace:
    """Counts the calls of one process by file while ``on``; a file is counted from its first call on."""

    def __init__(self) -> None:
        self.on, self.calls, self._lock = False, Counter[str](), threading.Lock()
        self.until_answered = Counter[str]()

    def hook(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Count a call, as `sys.setprofile` reports it."""
        if self.on and event == "call" and frame.f_code.co_filename.startswith(PACKAGES) and entered(frame):
            with self._lock:
                self.calls[frame.f_code.co_filename.removeprefix(f"{ROOT}/")] += 1


def entered(frame: FrameType) -> bool:
    """Return whether a frame begins, and is no coroutine or generator that continues: ``RESUME 0`` is where functions begin."""
    code, at = frame.f_code.co_code, max(frame.f_lasti, 0)
    return dis.opname[code[at]] != "RESUME" or code[at + 1] == 0


def watch_arrival() -> None:
    """Let peer 0 of those forked from now on write ``path.json``, and peer 1 train longer in the measured round."""
    path, pushes = Trace(), [0]
    start, push, work = AsyncioWorld.run, PeerServicer.push, PeerHost.work
    answer, note = AsyncioWorld.answer_arrival, AsyncioWorld.record

    def hooked_run(self: AsyncioWorld, *arguments: Any) -> Any:
        threading.setprofile(path.hook)  # the pools start their threads later
        sys.setprofile(path.hook)
        return start(self, *arguments)

    async def counted_push(self: PeerServicer, requests: Any, context: Any) -> bytes:
        path.on = pushes[0] == ROUND
        pushes[0] += 1
        return await push(self, requests, context)

    def longer_work(self: PeerHost, effect: Any) -> Any:
        if self.peer_id == 1 and effect.kind == "train" and effect.round_index == ROUND:
            time.sleep(LONGER_S)
        return work(self, effect)

    def noted_answer(self: AsyncioWorld, arrival: Arrival, reply: PushReply) -> None:
        path.until_answered = path.calls.copy()
        answer(self, arrival, reply)

    def noted_record(self: AsyncioWorld, kind: str, fields: dict[str, Any]) -> None:
        note(self, kind, fields)
        if kind == "round" and path.on:
            path.on = False
            written = self.parts.state_dir.root / "path.json"
            written.with_suffix(".new").write_text(json.dumps([path.calls, path.until_answered]))
            written.with_suffix(".new").rename(written)

    AsyncioWorld.run, PeerServicer.push = hooked_run, counted_push  # type: ignore[method-assign, assignment]
    AsyncioWorld.answer_arrival = noted_answer  # type: ignore[method-assign]
    PeerHost.work, AsyncioWorld.record = longer_work, noted_record  # type: ignore[method-assign]


def measure() -> dict[str, tuple[int, int]]:
    """Return the calls of each file, in the order of first calls: all, and those until the sender is answered.

    Raises:
        RuntimeError: the round was not traced, or peer 0 was still sending.
    """
    watch_arrival()
    found: dict[str, tuple[int, int]] = {}

    def collect(_bed: Any, out: Path) -> None:
        for path in out.glob("peer-0/path.json"):
            calls, until_answered = json.loads(path.read_text())
            found.update({name: (count, until_answered.get(name, 0)) for name, count in calls.items()})

    run(loopback_graph("complete", 2, SETTINGS), while_running=collect, insecure=True, threads=1)
    if SENDING in found or not any(until_answered for _, until_answered in found.values()):
        raise RuntimeError(f"expected the path of an arrival alone, got {list(found) or 'nothing'}")
    return found


def package(path: str) -> str:
    """Return the package that a file belongs to."""
    return "/".join(path.split("/")[: 2 if path.startswith("peer/") else 1])


def totals(calls: dict[str, tuple[int, int]]) -> list[object]:
    """Return files and calls of a part of the path, all and those until the sender is answered."""
    whole, answered = zip(*calls.values(), strict=True)
    return [len(whole), sum(whole), sum(map(bool, answered)), sum(answered)]


def main() -> None:
    """Measure and print two tables."""
    given = new_parser(__doc__).parse_args()
    calls = measure()
    rows: list[list[object]] = [[order, f"`{path}`", *calls[path]] for order, path in enumerate(calls, 1)]
    columns = ["order", "file", "calls", "calls until answered"]
    record("path", "Path of an arriving model", columns, rows, save=given.save)
    parts = {name: {p: c for p, c in calls.items() if package(p) == name} for name in map(package, calls)}
    packages: list[list[object]] = [[f"`{name}`", *totals(part)] for name, part in parts.items()]
    columns = ["package", "files", "calls", "files until answered", "calls until answered"]
    title = "Path of an arriving model, by package"
    record("path-packages", title, columns, [*packages, ["all", *totals(calls)]], save=given.save)


if __name__ == "__main__":
    main()
