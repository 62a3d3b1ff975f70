"""What happens to processes, disks and links: planned by seed, at times drawn over the first phase."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from peer.core import events as ev
from peer.core.stages import Stage
from tests.simulation.options import ACTIONS_RARE, REVISE
from tests.simulation.rolling import Revisions

if TYPE_CHECKING:
    from tests.simulation.world import Machine, World


class Nemesis:
    """Carries out the actions of `options.draw`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._rng, self._rare = world.random("nemesis"), world.random("rare nemesis")
        self._tunnels = world.random("tunnel nemesis")
        self.revisions = Revisions(world)
        self._doomed: set[int] = set()  # peers that lose power in the middle of their next write
        self._called_away: set[int] = set()  # peers that are asked to leave in the middle of their next piece of work

    def late_joiners(self) -> dict[int, float]:
        """Return when peers start that are not there at the beginning."""
        actions, late = dict(self.world.options.actions), {}
        for action, spread in (("late_joiner", 15.0),):
            for _ in range(actions.get(action, 0)):
                late[self._rng.choice(self.world.graph.ids)] = self._rng.uniform(1, spread)
                self.world.fired[action] += 1
        return late

    def plan(self) -> None:
        """Schedule every action."""
        for action, times in self.world.options.actions:
            if action == REVISE:
                self.revisions.plan(times)
            elif action != "late_joiner":
                rng = self._rare if action in ACTIONS_RARE else self._rng
                for _ in range(times):
                    self.world.after(rng.uniform(0, self.world.options.safety_s), self._act, action, rng)

    def _act(self, action: str, rng: Random) -> None:
        machines = list(self.world.machines.values())
        if action in ACTIONS_RARE:
            machines = [m for m in machines if m.process is not None and m.disk.durable_round]
        if self.world.healed_at is None and machines:
            getattr(self, f"_{action}")(rng.choice(machines))

    def _fired(self, action: str) -> None:
        self.world.fired[action] += 1

    def _again(self, machine: Machine, low: float = 0.1, high: float = 8.0) -> None:
        self.world.after(self._rng.uniform(low, high), machine.start)

    def writes(self, machine: Machine) -> None:
        """A checkpoint is being written."""
        if machine.peer_id in self._doomed and self.world.healed_at is None:
            self._doomed.discard(machine.peer_id)
            self._kill(machine)

    def works(self, machine: Machine) -> None:
        """A piece of work is half done."""
        if machine.peer_id in self._called_away and self.world.healed_at is None:
            self._called_away.discard(machine.peer_id)
            self._ask_to_leave(machine)

    def _crash(self, machine: Machine) -> None:
        if self._rng.random() < 0.5:
            self._doomed.add(machine.peer_id)
        else:
            self._kill(machine)

    def _kill(self, machine: Machine) -> None:
        if machine.process is not None:
            self._fired("crash")
            self.world.checker.mark(f"crashed while {machine.process.engine.stage}")
            machine.crash()
            self._again(machine)

    def _wipe(self, machine: Machine) -> None:
        if machine.process is not None:
            self._fired("wipe")
            machine.crash()
            machine.disk.wipe()
            self._again(machine)

    def _rot(self, machine: Machine) -> None:
        if machine.process is not None:
            machine.crash()
            if machine.disk.rot():
                self._fired("rot")
            self._again(machine)

    def _read_error(self, machine: Machine) -> None:
        """The newest checkpoint gives EIO when its peer comes back; sometimes all do."""
        self._fired("read_error")
        machine.crash()
        machine.disk.unreadable = self._rare.choice((1, 1, 2))
        self.world.after(self._rare.uniform(0.1, 8.0), machine.start)

    def _misdirected(self, machine: Machine) -> None:
        """Another peer's newest checkpoint lies in the place of its own; where there is none, one of another run."""
        self._fired("misdirected")
        machine.crash()
        machine.disk.misdirect(self._rare.choice([m.disk for m in self.world.machines.values() if m is not machine]))
        self.world.after(self._rare.uniform(0.1, 8.0), machine.start)

    def _pause(self, machine: Machine) -> None:
        process = machine.process
        if process is not None and not process.paused:
            self._fired("pause")
            process.paused = True

            def resume() -> None:
                if process.paused:
                    process.resume()

            self.world.after(self._rng.choice((0.5, 3.0, 10.0)) * self._rng.uniform(0.5, 1.5), resume)

    def _partition(self, machine: Machine) -> None:
        mode = self._rng.choice(("isolate", "coin"))
        ids = self.world.graph.ids
        side = {machine.peer_id} if mode == "isolate" else {i for i in ids if self._rng.random() < 0.5}
        edges = [edge for edge in self.world.network.links if (edge[0] in side) != (edge[1] in side)]
        self._cut("partition", edges)

    def _one_way(self, machine: Machine) -> None:
        self._cut("one_way", [self._rng.choice(sorted(self.world.network.links))])

    def _cut(self, name: str, edges: list[tuple[int, int]]) -> None:
        if edges:
            self._fired(name)
            self.world.network.take_down(edges)
            self.world.after(self._rng.choice((0.5, 3.0, 10.0)), self.world.network.bring_up, edges)

    def _closed_port(self, machine: Machine) -> None:
        """A firewall: nobody can call this peer, while it calls the others."""
        self._fired("closed_port")
        links = self.world.network.links
        closed = [links[edge] for edge in links if edge[1] == machine.peer_id]

        def let(refused: bool) -> None:
            for link in closed:
                link.refused = refused

        let(True)
        self.world.after(self._rng.choice((3.0, 10.0, 100.0)), let, False)

    def _tunnel_loss(self, machine: Machine) -> None:
        """The connection of a tunnel is gone: no call in either direction until its dialing end is back."""
        links = self.world.network.links
        tunnels = sorted(edge for edge, link in links.items() if link.holder is not None)
        self._fired("tunnel_loss")
        self.world.network.lose_tunnel(self._tunnels.choice(tunnels))

    def _clog(self, machine: Machine) -> None:
        self._fired("clog")
        links = self.world.network.links
        for edge in [edge for edge in sorted(links) if machine.peer_id in edge]:  # swizzled: each opens at another time
            links[edge].clogged_until = self.world.now + self._rng.uniform(0, 5)

    def _leave(self, machine: Machine) -> None:
        if self._rng.random() < 0.5:
            self._called_away.add(machine.peer_id)
        else:
            self._ask_to_leave(machine)

    def _ask_to_leave(self, machine: Machine) -> None:
        process = machine.process
        if process is not None and not process.paused and process.engine.stage is not Stage.STOPPED:
            self._fired("leave")
            self.world.checker.mark(f"left while {process.engine.stage}")
            process.host.post(ev.LeaveRequested())
            self._again(machine, 1.0, 10.0)

    def _restart_all(self, machine: Machine) -> None:
        self._fired("restart_all")
        for other in self.world.machines.values():
            if other.process is not None:
                other.crash()
            self._again(other, 0.1, 2.0)

    def _disk_error(self, machine: Machine) -> None:
        self._fired("disk_error")
        machine.disk.failing = "no space left on device"

        def repaired() -> None:
            machine.disk.failing = ""

        self.world.after(self._rng.uniform(0.5, 8), repaired)

    def _straggler(self, machine: Machine) -> None:
        self._fired("straggler")
        machine.slowness = self._rng.choice((3.0, 10.0))

    def _slow_disk(self, machine: Machine) -> None:
        self._fired("slow_disk")
        machine.disk_slowness = 100.0

    def choose_core(self) -> tuple[int, ...]:
        """Return who is healed: all, or all but a few whose loss leaves the rest connected."""
        graph = self.world.graph.to_networkx()
        import networkx as nx

        for _ in range(self.world.options.core_loses):
            candidates = [n for n in graph if nx.is_connected(graph.subgraph(set(graph) - {n}))]
            graph.remove_node(self._rng.choice(sorted(candidates)))
            self._fired("loss_for_good")
        return tuple(sorted(graph))
