"""Testbeds of real peer processes for tests: start them, inject faults, wait for conditions, compare models."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tools.histories import lines_of
from tools.running import ends, on_loopback, until
from tools.warm_parent import WarmParent

from coordinator_free_bootstrap import Graph, make_graph, parse_manifest, save_graph
from peer.bed.chaos.control import ask
from peer.store.model_file import load_model
from peer.store.state_dir import StateDir

POLL_S = 0.02
Models = dict[str, dict[str, np.ndarray]]


class Bed:
    """One testbed in a directory. Options beyond the named ones are manifest keys; the default suspicion time is long.

    A neighbor that gets no time of the processor for 2 s has not taken a goodbye: a test of goodbyes sets ``goodbye_s``.
    """

    def __init__(
        self,
        parent: WarmParent,
        directory: Path,
        *,
        peers: int = 4,
        kind: str = "ring",
        graph: Graph | None = None,
        late: tuple[int, ...] = (),
        host: str = "127.0.0.1",
        proxy: bool = False,
        insecure: bool = True,
        failpoints: dict[int, str] | None = None,
        script: list[dict[str, Any]] | None = None,
        goodbye_s: float | None = None,
        checkpoint_minutes: float | None = None,
        **manifest: Any,
    ) -> None:
        self.directory = directory
        self._parent = parent
        self.pid: int | None = None
        if graph is None:
            timeouts = {"suspicion_s": 60.0, "round_deadline_s": 120.0}
            start = {"deadline_s": 20.0}  # a restarted peer waits so long for neighbors that have finished
            run = {"rounds": 8, "start": start, **manifest, "timeouts": timeouts | manifest.get("timeouts", {})}
            graph = make_graph(kind, peers, seed=1, **({"degree": 3.0} if kind == "erdos-renyi" else {}))
            graph = replace(graph, manifest=parse_manifest(run, "test"))
        self.graph = on_loopback(graph, host=host)
        self._options = {
            "late": late,
            "proxy": proxy,
            "insecure": insecure,
            "failpoints": dict(failpoints or {}),
            "script": {"event": script or []},
            "goodbye_s": goodbye_s,
            "checkpoint_minutes": checkpoint_minutes,
        }

    def __enter__(self) -> Bed:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the testbed, or resume it in the same directory."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "bed.json").unlink(missing_ok=True)
        save_graph(self.graph, self.directory / "graph.json")
        self.pid = self._parent.ask(do="fork", directory=str(self.directory), **self._options)["pid"]
        self.until(
            lambda: (self.directory / "control.sock").exists() or self._ended(), "the testbed has a control socket"
        )

    def stop(self) -> None:
        """Stop all peers and wait for the end of the testbed."""
        if self.pid is not None and not self._ended():
            ask(self.directory, {"do": "stop"})
            self.until(self._ended, "the testbed ends")

    def finish(self) -> dict[str, Any]:
        """Wait until all peers have ended; return the testbed's result (failed, exit_codes, counters)."""
        self.until(self._ended, "all peers end", self._done)
        return json.loads((self.directory / "bed.json").read_text())

    def do(self, do: str, *peers: int, **fields: Any) -> str:
        """Execute one event of a chaos script now."""
        event = {"do": do, **({"peers": peers} if peers else {}), **fields}
        return ask(self.directory, {"do": "event", "event": event})

    def arm(self, peer_id: int, text: str) -> None:
        """Set the failpoints of a peer for its next start, also in a resumed testbed."""
        self._options["failpoints"][peer_id] = text
        ask(self.directory, {"do": "failpoints", "peer": peer_id, "text": text})

    def state(self) -> dict[str, Any]:
        return ask(self.directory, {"do": "state"})

    def until(self, holds: Callable[[], Any], what: str, progress: Callable[[], Any] = lambda: None) -> Any:
        """Poll until a function returns a true value; fail with the logs after `PATIENCE_S` without progress."""
        return until(holds, what, logs=self._logs(), progress=progress, poll_s=POLL_S)

    def until_round(self, rounds: int, *peers: int) -> None:
        """Wait until these peers (default: all) have completed a number of rounds."""
        waited_for = peers or self.graph.ids
        text = f"{rounds} rounds at {waited_for}"
        self.until(lambda: all(self.rounds(p) >= rounds for p in waited_for), text, self._done)

    def until_ended(self, peer_id: int) -> int:
        """Wait for the end of a peer's process and return its exit code."""
        key = str(peer_id)
        self.until(lambda: key in self.state()["exit_codes"], f"the end of peer {peer_id}")
        return self.state()["exit_codes"][key]

    # ---- files of the peers -----------------------------------------------------------------------------------

    def place(self, peer_id: int) -> StateDir:
        return StateDir.of_peer(self.directory, peer_id)

    def history(self, peer_id: int, kind: str | None = None) -> list[dict[str, Any]]:
        return lines_of(self.place(peer_id).history, kind)

    def rounds(self, peer_id: int) -> int:
        return max((line["round_index"] + 1 for line in self.history(peer_id, "round")), default=0)

    def last_rounds(self, peer_id: int) -> dict[int, dict[str, Any]]:
        """Return round_index -> its last line; a resumed peer repeats a round, and the last line counts."""
        return {line["round_index"]: line for line in self.history(peer_id, "round")}

    def saw(self, peer_id: int, neighbor: int, state: str) -> bool:
        """Return whether a neighbor was ever in this state for a peer."""
        return any(
            line["neighbor"] == neighbor and line["state"] == state for line in self.history(peer_id, "neighbor")
        )

    def log(self, peer_id: int) -> str:
        path = self.place(peer_id).log
        return path.read_text(errors="replace") if path.exists() else ""

    def fired(self, peer_id: int) -> int:
        """Return how often failpoints fired in a peer, over all its starts."""
        return self.log(peer_id).count("failpoint ")

    def summary(self, peer_id: int) -> dict[str, Any]:
        return json.loads(self.place(peer_id).summary.read_text())

    def persisted(self, peer_id: int) -> dict[str, np.ndarray]:
        """Return the arrays of a peer's newest checkpoint; a running peer may remove the one that was found."""

        def found() -> dict[str, np.ndarray] | None:
            try:
                return load_file(max(self.place(peer_id).checkpoints.glob("checkpoint-*")) / "arrays.safetensors")
            except FileNotFoundError:
                return None

        return self.until(found, f"a checkpoint of peer {peer_id}")

    def models(self) -> dict[int, Models]:
        """Return the final models of all peers; fail with the logs where one has none."""
        found = final_models(self.directory, self.graph)
        assert all(found.values()), f"no model of {[p for p in found if not found[p]]}\n{self.logs()}"
        return found

    def logs(self) -> str:
        """Return the end of each log, for error messages."""
        return ends(self._logs())

    def _logs(self) -> list[Path]:
        return [self.directory / "bed.log", *(self.place(p).log for p in self.graph.ids)]

    def _done(self) -> list[int]:
        return [self.rounds(p) for p in self.graph.ids]

    def _ended(self) -> bool:
        if (self.directory / "bed.json").exists():
            return True
        if self._parent.ask(do="wait", pid=self.pid)["code"] is not None:
            if not (self.directory / "bed.json").exists():
                raise AssertionError(f"the testbed crashed\n{self.logs()}")
            return True
        return False


def final_models(directory: Path, graph: Graph) -> dict[int, Models]:
    """Return the final models of a run directory."""
    places = {peer_id: StateDir.of_peer(directory, peer_id).models for peer_id in graph.ids}
    return {p: {file.name: load_model(file)[0] for file in place.glob("*.safetensors")} for p, place in places.items()}


def same_models(left: dict[int, Models], right: dict[int, Models]) -> None:
    """Assert that the final models of two runs are equal bit for bit."""
    assert left.keys() == right.keys()
    for peer_id, files in left.items():
        assert files.keys() == right[peer_id].keys() and files, f"peer {peer_id}: {sorted(files)}"
        for name, tensors in files.items():
            for key, values in tensors.items():
                assert np.array_equal(values, right[peer_id][name][key]), f"peer {peer_id}: {name}: {key} differs"
