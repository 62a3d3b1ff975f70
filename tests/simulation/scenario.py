"""Scripted runs as readable text: commands, each followed by the trace that it must leave (as in etcd raft's interaction tests).

A file is a list of blocks: a command, ``----``, what happened. Rewrite the traces with
``python -m tests.simulation.scenario --rewrite``, and commit only a difference that you understand.

Commands (times in seconds, peers by id):
    run GRAPH PEERS [key=value ...]   the graph and settings of the manifest; the first command
    start PEER ... | all              begin a life
    step SECONDS                      let time pass
    until PEER STAGE [ROUND]          let time pass until a peer is there (at most 60 s)
    crash PEER                        lose power            wipe PEER   lose the disk as well
    pause PEER | resume PEER          stop the process, continue
    cut A B | heal A B                both directions of an edge; ``cut A > B`` one of them
    leave PEER                        ask it to leave
    slow PEER FACTOR                  let its work take so many times longer
    show                              stage, round and what is waited for, of every peer
    finish                            let time pass until all running peers have completed
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from coordinator_free_bootstrap import make_graph
from coordinator_free_bootstrap.errors import Refusal
from peer.core import effects as do
from peer.core import events as ev
from peer.core.messages import Outcome
from tests.simulation.network import Weather
from tests.simulation.options import Options, manifest
from tests.simulation.process import Process
from tests.simulation.world import EPOCH_S, World

FOLDER = Path(__file__).parent / "scenarios"
NO_DELAY = Weather(delay_s=1e-6, delay_min_s=0.01, bytes_per_s=1e9)


class TracedWorld(World):
    """A world that prints what a reader wants to know: stages, folds, answers, changes of neighbors."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.told: list[str] = []

    def tell(self, peer_id: int, text: str) -> None:
        """Add a line to the trace."""
        self.told.append(f"{self.now - EPOCH_S:6.2f}  peer {peer_id}  {text}")

    def note(self, process: Process, event: ev.Event, effects: list[do.Effect]) -> None:
        """Tell about the effects of one step."""
        super().note(process, event, effects)
        engine = process.engine
        for effect in effects:
            text = self._text(effect)
            if text:
                self.tell(process.peer_id, text)
        if isinstance(event, ev.ArrivalLost):
            self.tell(process.peer_id, f"stream cut in round {engine.round_index}")

    def _text(self, effect: do.Effect) -> str:
        match effect:
            case do.Work(kind, round_index, step) if kind != "train":
                return f"{kind} round {round_index}" + (f" step {step}" if step else "")
            case do.FoldArrival():
                header = effect.header
                return f"folds {header.sender}'s slot {header.slot} of round {header.round_index}"
            case do.AnswerArrival(_, reply) if reply is not Outcome.FOLDED:
                return f"answers {reply.code if isinstance(reply, Refusal) else reply}"
            case do.Pull(neighbor):
                return f"pulls from {neighbor}"
            case do.Record("neighbor", fields):
                return f"holds {fields['neighbor']} {fields['state']}"
            case do.Record("round", {"rounds_alone": 1}):
                return "closed alone"
            case do.Record("round", {"missing": [*missing]}) if missing:
                return f"closed without {missing}"
            case do.Stop(status):
                return f"stops: {status}"
        return ""


class Script:
    """Carries out the commands of one file."""

    def __init__(self) -> None:
        self.world: TracedWorld | None = None

    def do(self, line: str) -> list[str]:
        """Carry out one command and return its trace."""
        name, *words = line.split()
        action: Callable[..., None] = getattr(self, f"_{name}")
        action(*words)
        assert self.world is not None
        told, self.world.told = self.world.told, []
        return told

    def _run(self, kind: str, peers: str, *settings: str) -> None:
        changes: dict[str, Any] = {"rounds": 3, "clusters": 1}
        for setting in settings:
            key, value = setting.split("=")
            changes[key] = float(value) if "." in value else int(value) if value.isdigit() else value
        deadline = float(changes.pop("round_deadline_s", 600))
        if "relay_steps" in changes:
            changes["options"] = {"warmup_rounds": 1, "relay_steps": changes.pop("relay_steps")}
        if "wait_for" in changes:
            changes["start"] = {"wait_for": changes.pop("wait_for"), "deadline_s": changes.pop("start_deadline_s")}
        timeouts = {
            "suspicion_s": float(changes.pop("suspicion_s", 2.0)),
            "round_deadline_s": deadline,
        }
        graph = make_graph(kind, int(peers), manifest=manifest(**changes, timeouts=timeouts))  # type: ignore[arg-type]
        self.world = TracedWorld(Options(1, graph, weather=NO_DELAY, train_s=(1.0, 1.0)))

    @property
    def _stage(self) -> TracedWorld:
        assert self.world is not None, "the first command is run"
        return self.world

    def _machines(self, words: tuple[str, ...]) -> list[Any]:
        machines = self._stage.machines
        return list(machines.values()) if words == ("all",) else [machines[int(word)] for word in words]

    def _start(self, *peers: str) -> None:
        for machine in self._machines(peers):
            machine.start()

    def _step(self, seconds: str) -> None:
        self._stage.run_until(self._stage.now + float(seconds))

    def _until(self, peer: str, stage: str, round_index: str = "") -> None:
        machine = self._machines((peer,))[0]

        def there() -> bool:
            engine = machine.process.engine if machine.process else None
            return engine is not None and engine.stage == stage and round_index in ("", str(engine.round_index))

        self._stage.run_until(self._stage.now + 60, there)
        assert there(), f"peer {peer} did not come to {stage} {round_index}"

    def _crash(self, peer: str) -> None:
        self._machines((peer,))[0].crash()

    def _wipe(self, peer: str) -> None:
        self._crash(peer)
        self._machines((peer,))[0].disk.wipe()

    def _pause(self, peer: str) -> None:
        self._machines((peer,))[0].process.paused = True

    def _resume(self, peer: str) -> None:
        self._machines((peer,))[0].process.resume()

    def _edges(self, words: tuple[str, ...]) -> list[tuple[int, int]]:
        if words[1] == ">":
            return [(int(words[0]), int(words[2]))]
        a, b = map(int, words)
        return [(a, b), (b, a)]

    def _cut(self, *words: str) -> None:
        self._stage.network.take_down(self._edges(words))

    def _heal(self, *words: str) -> None:
        self._stage.network.bring_up(self._edges(words))

    def _leave(self, peer: str) -> None:
        self._machines((peer,))[0].process.host.post(ev.LeaveRequested())

    def _slow(self, peer: str, factor: str) -> None:
        self._machines((peer,))[0].slowness = float(factor)

    def _show(self) -> None:
        for i, machine in self._stage.machines.items():
            if machine.process is None:
                self._stage.tell(i, "completed" if machine.completed else "down")
                continue
            engine = machine.process.engine
            waits = f", waits for {engine.waits.undelivered()}" if engine.waits.undelivered() else ""
            self._stage.tell(i, f"is {engine.stage} in round {engine.round_index}{waits}")

    def _finish(self) -> None:
        def done() -> bool:
            return all(m.process is None for m in self._stage.machines.values())

        self._stage.run_until(self._stage.now + 120, done)
        assert done(), self._stage.checker.where()


def blocks(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (comment lines, command, expected trace) of a file."""
    for block in text.strip().split("\n\n"):
        comments = "".join(line + "\n" for line in block.splitlines() if line.startswith("#"))
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        yield comments, lines[0] if lines else "", lines[2:]


def play(path: Path) -> str:
    """Return a file with the traces that its commands leave now."""
    script, result = Script(), []
    for comments, command, _ in blocks(path.read_text()):
        told = script.do(command) if command else []
        body = [command, "----", *told] if command else []
        result.append(comments + "\n".join(body))
    return "\n\n".join(part.rstrip("\n") for part in result) + "\n"


if __name__ == "__main__":
    assert sys.argv[1:] == ["--rewrite"], __doc__
    for file in sorted(FOLDER.glob("*.txt")):
        file.write_text(play(file))
        print(file.name)
