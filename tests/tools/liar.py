"""A lying neighbor: its key is pinned, and every byte that it sends is its own choice. It is no peer: it has no engine.

It serves and calls the wire with raw messages. Before each round of a victim it plays one part, with lies drawn from a seed:

    near    it claims the victim's round and passes, so that the victim does not wait for it
    far     it claims to be rounds ahead
    end     it claims that it has completed the run
    silent  it claims the victim's round, sends nothing and answers nothing until it is marked dead

It delivers no complete, finite model within the norm bound of a round that a victim could skip to: a victim believes that.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import numpy as np
from target import call, push

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from coordinator_free_bootstrap.rates import FRAME_BYTES_MAX
from peer.core.messages import Heartbeat, Hello, HelloReply, ModelHeader, Numbers, Outcome, Pass, Phase, Select
from peer.core.messages import PullRequest as Pull
from peer.identity.files import KeyPair
from peer.runtime.world import AsyncioWorld
from peer.wire import convert, frames
from peer.wire.limits import WireLimits
from peer.wire.options import SERVICE, channel_options, server_options
from peer.wire.security import MutualTls, bind, open_channel

NEAR, FAR, END, SILENT = "near", "far", "end", "silent"
PULLS = ("trickle", "stall", "empty", "other_round", "nan", "too_large_norm", "wrong_digest", "more_bytes", "refused")
SETTLING = (
    Outcome.FOLDED,
    Outcome.DUPLICATE,
    Outcome.STALE,
    Outcome.UNUSED,
)  # a sender does not send again after these
FLOOD = 20
REASON = "\u202eright to left\n" + "x" * 5000


class Liar:
    """The lying neighbor of several victims, in their event loop.

    Args:
        graph: with all pins.
        peer_id: its own.
        pair: its key.
        seed: of all choices.
        plan: the part it plays before each round.
        lies: how many lies it tells before each round.
        pulls: its answers to pulls, in turn; drawn from the seed by default.

    Attributes:
        victims: to be set before a victim's first round.
        told: the lies by name.
        asked: the calls of victims by method and victim.
    """

    def __init__(
        self,
        graph: Graph,
        peer_id: int,
        pair: KeyPair,
        *,
        seed: int,
        plan: Sequence[str],
        lies: int = 0,
        pulls: Sequence[str] = PULLS,
    ) -> None:
        self.peer_id = peer_id
        self.victims: dict[int, AsyncioWorld] = {}
        self.told: Counter[str] = Counter()
        self.asked: Counter[tuple[str, int]] = Counter()
        self._graph, self._plan, self._count = graph, plan, lies
        self._manifest = graph.manifest
        self._random = random.Random(seed)
        self._tls = MutualTls(graph, peer_id, pair)
        self._part = dict.fromkeys(graph.neighbors(peer_id), NEAR)
        self._claim = dict.fromkeys(self._part, 0)
        self._incarnation = dict.fromkeys(self._part, 1)
        self._answers = {victim: asyncio.Event() for victim in self._part}
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._behind: set[asyncio.Task[Any]] = set()  # calls that are held open
        self._lies: dict[str, Callable[[int, int], Coroutine[Any, Any, Any]]] = {
            name.removeprefix("_lie_"): getattr(self, name) for name in dir(self) if name.startswith("_lie_")
        }
        self._decks = {victim: self._deck(sorted(self._lies)) for victim in self._part}
        self._pulls = iter(self._deck(pulls) if pulls is PULLS else self._turns(pulls))
        for answers in self._answers.values():
            answers.set()

    @property
    def lies(self) -> set[str]:
        """The names of all lies that it can tell."""
        return set(self._lies)

    def _deck(self, names: Sequence[str]) -> Iterator[str]:
        while True:
            yield from self._random.sample(names, len(names))

    def _turns(self, names: Sequence[str]) -> Iterator[str]:
        while True:
            yield from names

    # ---- its own run ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve, and open a channel to each victim."""
        self._server = grpc.aio.server(options=server_options(self._manifest.timeouts, WireLimits()))
        methods = {
            name: grpc.unary_unary_rpc_method_handler(self._unary(name))
            for name in ("Hello", "Heartbeat", "Select", "Pass", "Status", "Sum")
        }
        methods["PushModel"] = grpc.stream_unary_rpc_method_handler(self._take_push)
        methods["PullModel"] = grpc.unary_stream_rpc_method_handler(self._answer_pull)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        bind(self._server, self._graph.node(self.peer_id).address, self._tls.server_credentials())
        await self._server.start()
        for victim in self._part:
            options, address = channel_options(self._manifest.timeouts), self._graph.node(victim).address
            self._channels[victim] = open_channel(address, options, self._tls.channel(victim))
        self._spawn(self._heartbeats())

    async def stop(self) -> None:
        """End all calls."""
        for task in self._behind:
            task.cancel()
        await asyncio.gather(*self._behind, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close()
        await self._server.stop(0)

    def finish(self) -> None:
        """Claim the end of the run, so that the finished victims do not stay for it."""
        for victim in self._part:
            self._part[victim], self._claim[victim] = END, self._manifest.rounds
            self._answers[victim].set()

    async def before_round(self, victim: int, t: int) -> None:
        """Play the part of a round: the victim begins it when this returns."""
        part = self._plan[t % len(self._plan)]
        self.told[part] += 1
        was, self._part[victim] = self._part[victim], part
        self._answers[victim].set()
        if part in (FAR, END):
            far = min(self._manifest.rounds, t + self.victims[victim].host.state.constants.wait_rounds_behind + 2)
            self._claim[victim] = max(
                self._claim[victim],
                self._manifest.rounds if part is END else self._random.randint(far, self._manifest.rounds),
            )
            await self._say_heartbeat(victim)
        else:
            if was is not NEAR or self._claim[victim] > t + 1:
                self._incarnation[victim] += 1  # only a restart takes a claim back
            self._claim[victim] = t
            await self._say_hello(victim)
        for _ in range(self._count if part is not SILENT else 0):
            name = next(self._decks[victim])
            self.told[name] += 1
            with suppress(grpc.aio.AioRpcError):
                await self._lies[name](victim, t)
        if part is SILENT:
            await self._fall_silent(victim)
        elif part is FAR and self._count:
            await self._be_alive(victim)  # a lie may have ended it, and nobody pulls from a dead neighbor
        elif self._claim[victim] <= t + 1:
            await self._say_hello(victim)  # a lie may have restarted it
            await self._deliver(victim, t)

    async def _deliver(self, victim: int, t: int) -> None:
        """Let a victim wait for no model of a round."""
        await self._ask(victim, "Pass", convert.pack_pass(Pass(self.peer_id, self._incarnation[victim], t, 0)))

    async def _be_alive(self, victim: int) -> None:
        """Say hello until the victim finds it alive: it takes only so many in a second."""
        while not self.victims[victim].host.state.neighbors[self.peer_id].is_reachable:
            await self._say_hello(victim)
            await asyncio.sleep(0.01)

    async def _fall_silent(self, victim: int) -> None:
        """Answer nothing and send nothing from now on; first let the victim find it alive, or it is not waited for."""
        await self._be_alive(victim)
        self._answers[victim].clear()
        for task in self._behind:
            if task.get_name() == str(victim):  # the frames of an endless push stand for heartbeats
                task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, Any], victim: int | None = None) -> None:
        task = asyncio.get_running_loop().create_task(work, name=str(victim))
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)

    async def _heartbeats(self) -> None:
        while True:
            for victim in self._part:
                if self._part[victim] is not SILENT:
                    with suppress(grpc.aio.AioRpcError):
                        await self._say_heartbeat(victim)
            await asyncio.sleep(self._manifest.timeouts.heartbeat_s)

    async def _ask(self, victim: int, method: str, data: bytes) -> bytes:
        return await call(self._channels[victim], method, data)

    # ---- messages -------------------------------------------------------------------------------------------------------

    def _hello(self, victim: int, **changes: Any) -> Hello:
        """Return a hello that a victim accepts, except for the changes."""
        host = self.victims[victim].host
        hello = Hello(
            **dataclasses.asdict(host.compared),
            sender=self.peer_id,
            incarnation=self._incarnation[victim],
            round_index=self._claim[victim],
            phase=Phase.FINISHED if self._part[victim] is END else Phase.RUNNING,
            seen_incarnation=host.state.incarnation,
        )
        return replace(hello, **changes)

    async def _say_hello(self, victim: int, **changes: Any) -> None:
        await self._ask(victim, "Hello", convert.pack_hello(self._hello(victim, **changes)))

    async def _say_heartbeat(self, victim: int, **changes: Any) -> None:
        phase = Phase.FINISHED if self._part[victim] is END else Phase.RUNNING
        heartbeat = Heartbeat(self.peer_id, self._incarnation[victim], self._claim[victim], phase)
        await self._ask(victim, "Heartbeat", convert.pack_heartbeat(replace(heartbeat, **changes)))

    def _header(self, victim: int, round_index: int, **changes: Any) -> ModelHeader:
        header = ModelHeader(
            sender=self.peer_id,
            incarnation=self._incarnation[victim],
            round_index=round_index,
            step=0,
            slot=0,
            index=0,
            total=1,
            sample_count=10,
            mass=1.0,
            size_bytes=self.victims[victim].host.state.model_bytes,
            encoding="float32",
        )
        return replace(header, **changes)

    def _model(self, victim: int, scale: float = 1.0, nan: bool = False) -> bytes:
        """Return the bytes of a victim's own model, scaled."""
        model = self.victims[victim].host.workspace.models.model(0) * np.float32(scale)
        if nan:
            model[self._random.randrange(len(model))] = np.nan
        return bytes(model.tobytes())

    def _messages(self, header: ModelHeader, model: bytes, *, wrong_digest: bool = False) -> list[bytes]:
        if wrong_digest:
            return [convert.pack_header(header), frames.chunk_frame(memoryview(model), frames.end_frame(bytes(16)))]
        parts = frames.model_frames(convert.pack_header(header), np.frombuffer(model, np.uint8), FRAME_BYTES_MAX)
        return [frame for frame, _size in parts]

    def _push(self, victim: int, t: int, model: bytes, *, wrong_digest: bool = False, **changes: Any) -> None:
        """Push a model without waiting for the answer, which may come with the end of the round."""
        messages = self._messages(self._header(victim, t, **changes), model, wrong_digest=wrong_digest)
        self._spawn(_quiet(push(self._channels[victim], messages)), victim)

    # ---- lies: each is a call before round t ----------------------------------------------------------------------------

    async def _lie_heartbeat_flood(self, victim: int, t: int) -> None:
        """Heartbeats as fast as they are answered, of all phases but the goodbye."""
        for _ in range(FLOOD):
            await self._say_heartbeat(
                victim, phase=self._random.choice([Phase.STARTING, Phase.RUNNING, Phase.FINISHED])
            )

    async def _lie_hello_flood(self, victim: int, t: int) -> None:
        """Hellos of one incarnation."""
        for _ in range(FLOOD):
            await self._say_hello(victim)

    async def _lie_restarts(self, victim: int, t: int) -> None:
        """Restart several times at once."""
        for _ in range(self._random.randint(2, 5)):
            self._incarnation[victim] += self._random.randint(1, 1000)
            await self._say_hello(victim)

    async def _lie_old_incarnation(self, victim: int, t: int) -> None:
        """Replay messages of an incarnation that is over."""
        old = max(0, self._incarnation[victim] - 1)
        await self._say_heartbeat(victim, incarnation=old, round_index=self._manifest.rounds)
        await self._say_hello(victim, incarnation=old, round_index=self._manifest.rounds)

    async def _lie_goodbye(self, victim: int, t: int) -> None:
        """Say goodbye, continue, return."""
        await self._say_heartbeat(victim, phase=Phase.LEAVING)
        await self._say_heartbeat(victim)
        self._incarnation[victim] += 1
        await self._say_hello(victim)

    async def _lie_other_identity(self, victim: int, t: int) -> None:
        """Speak as another neighbor of the victim."""
        other = self._random.choice([n for n in self._graph.ids if n not in (victim, self.peer_id)])
        await self._say_hello(victim, sender=other, incarnation=1000)
        await self._say_heartbeat(victim, sender=other, incarnation=1000, phase=Phase.LEAVING)

    async def _lie_other_manifest(self, victim: int, t: int) -> None:
        """Disagree about the run."""
        await self._say_hello(victim, manifest_digest="0" * 64, manifest="{}")
        await self._say_hello(victim, seen_incarnation=(1 << 63) - 1)

    async def _lie_passes(self, victim: int, t: int) -> None:
        """Passes of every round near this one, also of rounds that do not exist."""
        for round_index in [*range(max(0, t - 2), t + 1), self._manifest.rounds + 5, (1 << 32) - 1]:
            message = Pass(self.peer_id, self._incarnation[victim], round_index, self._random.randint(0, 2))
            await self._ask(victim, "Pass", convert.pack_pass(message))

    async def _lie_selections(self, victim: int, t: int) -> None:
        """Selections that contradict each other, in a run whose algorithm selects nothing."""
        for selected in (0, 1, 63, -1):
            numbers = Numbers.of(np.full(self._random.randint(1, 1000), self._random.random()))
            message = Select(self.peer_id, self._incarnation[victim], t, selected, numbers)
            await self._ask(victim, "Select", convert.pack_select(message))

    async def _lie_garbage(self, victim: int, t: int) -> None:
        """Random bytes to every method."""
        for method in ("Hello", "Heartbeat", "Select", "Pass", "Status"):
            with suppress(grpc.aio.AioRpcError):
                await self._ask(victim, method, self._random.randbytes(self._random.randint(1, 200)))
        self._spawn(_quiet(push(self._channels[victim], [self._random.randbytes(50)] * 3)), victim)

    async def _lie_nan_model(self, victim: int, t: int) -> None:
        """A model that is not finite."""
        self._push(victim, t, self._model(victim, nan=True))

    async def _lie_large_model(self, victim: int, t: int) -> None:
        """A model beyond the norm bound."""
        self._push(victim, t, self._model(victim, scale=1e6))

    async def _lie_replayed_models(self, victim: int, t: int) -> None:
        """The same good model again and again, and that of an earlier round."""
        model = self._model(victim, scale=self._random.uniform(0.5, 1.0))
        for round_index in (t, t, t, max(0, t - 1), max(0, t - 2)):
            self._push(victim, round_index, model)

    async def _lie_false_header(self, victim: int, t: int) -> None:
        """One field of a header out of range."""
        for name, value in (
            ("round_index", (1 << 32) - 1),
            ("slot", 63),
            ("total", 1 << 31),
            ("mass", 1e30),
            ("sample_count", 1 << 62),
            ("size_bytes", 1 << 50),
            ("incarnation", 1 << 62),
        ):
            messages = [convert.pack_header(replace(self._header(victim, t), **{name: value}))]
            self._spawn(_quiet(push(self._channels[victim], messages)), victim)

    async def _lie_wrong_digest(self, victim: int, t: int) -> None:
        """A model whose end frame has another digest."""
        self._push(victim, t, self._model(victim), wrong_digest=True)

    async def _lie_endless_push(self, victim: int, t: int) -> None:
        """A model that never ends, of the victim's round and of a later one."""
        for round_index in (t, t + 1):
            frame = [convert.pack_header(self._header(victim, round_index))]
            self._spawn(_quiet(push(self._channels[victim], frame, hold=True, trickle_s=self._trickle_s())), victim)

    async def _lie_unread_pull(self, victim: int, t: int) -> None:
        """Pulls and status streams that it does not read."""
        channel, request = self._channels[victim], Pull(self.peer_id, self._incarnation[victim], 0)
        calls = [channel.unary_stream(f"/{SERVICE}/PullModel")(convert.pack_pull(request), timeout=60)]
        calls.append(channel.unary_stream(f"/{SERVICE}/WatchStatus")(convert.pack_watch(0.1), timeout=60))
        for stream in calls:
            self._spawn(_quiet(_hold(stream)), victim)

    def _trickle_s(self) -> float:
        return self._manifest.timeouts.idle_transfer_s / 5

    # ---- answers --------------------------------------------------------------------------------------------------------

    async def _called(self, method: str, context: Any) -> int:
        """Count a call of a victim; return the victim when it is to be answered."""
        victim = int(self._tls.identify(context))
        self.asked[method, victim] += 1
        await self._answers[victim].wait()
        return victim

    def _unary(self, method: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def answer(_request: bytes, context: Any) -> bytes:
            victim = await self._called(method, context)
            if method == "Hello":
                return convert.pack_hello_reply(HelloReply(self._hello(victim)))
            if not self._count or self._part[victim] is NEAR:
                return convert.pack_acknowledgement(None)
            self.told[f"{method}_answer"] += 1
            code = self._random.choice(
                [None, RefusalCode.RATE_LIMITED, RefusalCode.NO_HANDSHAKE, RefusalCode.OLD_INCARNATION]
            )
            kind = self._random.choice(["garbage", "refusal", "abort"])
            if kind == "abort":
                await context.abort(grpc.StatusCode.INTERNAL, REASON[:500])
            if kind == "garbage":
                return self._random.randbytes(self._random.randint(1, 100))
            return convert.pack_acknowledgement(code and Refusal(code, REASON))

        return answer

    async def _take_push(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        victim = await self._called("PushModel", context)
        async for _ in requests:
            pass
        outcome = self._random.choice(SETTLING)
        if self._count and self._part[victim] in (FAR, END):
            self.told["PushModel_answer"] += 1
            return convert.pack_push_reply(Refusal(RefusalCode.SHUTTING_DOWN, REASON))
        return convert.pack_push_reply(outcome)

    async def _answer_pull(self, _request: bytes, context: Any) -> AsyncIterator[bytes]:
        victim = await self._called("PullModel", context)
        kind = next(self._pulls)
        self.told[f"pull_{kind}"] += 1
        header = self._header(victim, self._claim[victim])
        if kind == "refused":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, REASON[:500])
        if kind == "empty":
            return
        if kind in ("trickle", "stall", "more_bytes"):
            yield convert.pack_header(header)
            size_bytes = header.size_bytes if kind == "more_bytes" else 4
            while True:
                yield frames.chunk_frame(memoryview(bytes(size_bytes)))
                await asyncio.sleep({"trickle": self._trickle_s(), "stall": 3600.0, "more_bytes": 0.0}[kind])
        for message in self._pulled_model(kind, victim, header):
            yield message

    def _pulled_model(self, kind: str, victim: int, header: ModelHeader) -> list[bytes]:
        """Return a whole model that a victim must not skip rounds for."""
        model = self._model(victim, scale=1e6 if kind == "too_large_norm" else 1.0, nan=kind == "nan")
        if kind == "other_round":
            header = replace(
                header, round_index=self._random.randint(0, self.victims[victim].host.engine.round_index + 1)
            )
        return self._messages(header, model, wrong_digest=kind == "wrong_digest")


async def _hold(stream: Any) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        stream.cancel()


async def _quiet(work: Coroutine[Any, Any, Any]) -> None:
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
        await work
