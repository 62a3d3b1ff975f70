"""Each attack of the corpus is refused with its code, counted, and changes no state; a good neighbor is still served."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
import xxhash
from generate import CORPUS, DELTA_BYTES, MODEL_BYTES, texts
from target import ATTACKER, ENDED_WHILE_WRITING, GOOD, INCARNATION, Target, call, push, under_attack, until

from coordinator_free_bootstrap.errors import RefusalCode
from peer.core import events as ev
from peer.core.messages import PullRequest
from peer.core.stages import EXCHANGE, Stage
from peer.wire import convert, frames
from peer.wire.generated import peer_pb2
from peer.wire.limits import WireLimits
from peer.wire.options import SERVICE

pytestmark = pytest.mark.process
SCRIPTS = sorted(CORPUS.glob("*.json"))


def test_corpus_has_a_script_for_every_code_and_is_up_to_date() -> None:
    assert {path.stem for path in SCRIPTS} == set(RefusalCode)
    assert {path.name: path.read_text() for path in SCRIPTS} == texts()


def frames_of(step: dict[str, Any], target: Target) -> list[bytes]:
    """Return the frames of a push: bytes of the script, and models of the peer where the script names a slot."""
    messages, sent = [], b""
    for frame in step["frames"]:
        if "hex" in frame:
            messages.append(bytes.fromhex(frame["hex"]))
        elif "chunk" in frame:
            wanted = dict(frame["chunk"])
            data = target.model(wanted["slot"], wanted.get("scale", 1.0), wanted.get("nan_at")).tobytes()
            data = data[: wanted.get("to", len(data))]
            sent += data
            messages.append(frames.chunk_frame(memoryview(data)))
        else:
            messages.append(frames.end_frame(xxhash.xxh3_128(sent).digest()))
    return [b"".join(messages)] if step.get("whole") else messages


async def attempt(step: dict[str, Any], target: Target, channel: grpc.aio.Channel) -> str | None:
    """Make one call of a script and return the refusal that comes back, or "".

    None: gRPC's client has lost it, because it was writing when the answer came. The peer counts the refusal all the same.
    """
    method = step["call"]
    try:
        if method == "PushModel":
            reply = await push(channel, frames_of(step, target), step.get("hold", False), step.get("trickle_s"))
            return peer_pb2.PushReply.FromString(reply).refusal.code
        if method == "Hello" and "hello" in step:
            changes = {"sender": ATTACKER} | step["hello"]
            own = target.graph.run_digest
            chain = tuple(own if each == "target" else each for each in changes.get("continues", ()))
            changes |= {"continues": chain} if chain else {}
            data = convert.pack_hello(target.hello(**changes))
        else:
            data = bytes.fromhex(step["hex"])
        if method == "PullModel":
            async for _ in channel.unary_stream(f"/{SERVICE}/{method}")(data, timeout=20):
                return ""
            return ""
        reply = await call(channel, method, data)
        kind = {"Hello": peer_pb2.HelloReply, "Status": peer_pb2.StatusReply}.get(method, peer_pb2.Acknowledgement)
        answer = kind.FromString(reply)
        return "" if method == "Status" else answer.refusal.code
    except grpc.aio.AioRpcError as error:
        if step.get("trickle_s") and error.details() == ENDED_WHILE_WRITING:
            return None
        return dict(error.trailing_metadata() or ()).get("peer-refusal", f"{error.code()}: {error.details()}")


async def play(script: dict[str, Any], target: Target) -> None:
    caller = script.get("caller", ATTACKER)
    async with target.channel(caller) as channel:
        held = []
        for step in script.get("before", ()):
            if step.get("expect") == "":
                held.append(asyncio.create_task(attempt(step, target, channel)))
            else:
                assert await attempt(step, target, channel) == ""
        await until(lambda: target.open_streams() >= len(held))
        before, counted = target.digest(), target.host.state.refusals[script["code"]]
        for number, step in enumerate(script["steps"]):
            assert await attempt(step, target, channel) in (script["code"], None), (number, step)
        expected = script.get("counted", len(script["steps"]))
        assert target.host.state.refusals[script["code"]] == counted + expected
        assert target.digest() == before
        for step in script.get("after", ()):
            assert await attempt(step, target, channel) == ""
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_attack_is_refused_and_changes_nothing(path: Path, tmp_path: Path) -> None:
    script = json.loads(path.read_text())
    limits = WireLimits(**script["limits"]) if "limits" in script else None

    async def test() -> None:
        async with (
            asyncio.timeout(60),
            under_attack(
                tmp_path,
                script.get("run"),
                limits=limits,
                plaintext=script.get("plaintext", False),
                earlier=script.get("earlier", ()),
                removed=script.get("removed", False),
            ) as target,
        ):
            if script.get("handshake", True):
                await target.connect(*([GOOD] if script.get("removed") else [ATTACKER, GOOD]))
                await target.reach(*EXCHANGE)
            deltas = "encoding" in script.get("run", {})
            assert target.host.state.model_bytes == (DELTA_BYTES if deltas else MODEL_BYTES)
            if script.get("leaving"):
                stop, target.world.stop = target.world.stop, lambda _status: None  # type: ignore[method-assign]
                target.world.post(ev.LeaveRequested())
                await target.reach(Stage.STOPPED)
                target.world.stop = stop  # type: ignore[method-assign]
            await play(script, target)
            if script.get("plaintext") or script.get("leaving"):
                return  # this target serves no neighbor
            if script.get("run", {}).get("options", {}).get("first_round") == "paper":
                select = peer_pb2.SelectRequest(sender=GOOD, incarnation=7, selected=0).SerializeToString()
                async with target.channel(GOOD) as channel:
                    reply = await call(channel, "Select", select)
                    assert not peer_pb2.Acknowledgement.FromString(reply).HasField("refusal")
            reply = await target.push_good()
            assert reply.outcome == peer_pb2.OUTCOME_FOLDED, reply
            assert np.isfinite(target.host.workspace.models.model(0)).all()

    asyncio.run(test())


def test_neighbor_with_all_its_streams_open_does_not_block_another_one(tmp_path: Path) -> None:
    """The suspicion time is long here, so the stalled streams stay open: the good model needs the spare buffer."""

    async def test() -> None:
        places = [(round_index, slot) for round_index in (0, 1, 2) for slot in (0, 1)]
        limits = WireLimits(streams_per_neighbor=len(places))
        async with asyncio.timeout(60), under_attack(tmp_path, limits=limits) as target:
            await target.connect(ATTACKER, GOOD)
            await target.reach(*EXCHANGE)
            async with target.channel(ATTACKER) as channel:
                headers = [target.header(ATTACKER, round_index=t, slot=slot, total=2, index=slot) for t, slot in places]
                held = [asyncio.create_task(push(channel, [convert.pack_header(h)], hold=True)) for h in headers]
                await until(lambda: target.open_streams() >= len(held))
                arrivals = target.host.state.arrivals
                assert len(arrivals.reading) == 1 and len(arrivals.offered) == len(held) - 1, "no stream is held back"
                reply = await target.push_good()
                assert reply.outcome == peer_pb2.OUTCOME_FOLDED, reply
                for task in held:
                    task.cancel()
                await asyncio.gather(*held, return_exceptions=True)

    asyncio.run(test())


def test_pulls_of_one_neighbor_are_served_one_at_a_time(tmp_path: Path) -> None:
    """All together they had a share of the upload for each open stream, and a model in memory for each."""

    async def test() -> None:
        async with asyncio.timeout(60), under_attack(tmp_path, {"model_options": {"hidden": 20_000}}) as target:
            await target.connect(ATTACKER, GOOD)
            await target.reach(*EXCHANGE)
            served: list[int] = []
            answer_pull = target.host.answer_pull

            def counted(request: PullRequest) -> Any:
                served.append(request.sender)
                return answer_pull(request)

            target.host.answer_pull = counted  # type: ignore[method-assign]
            path = f"/{SERVICE}/PullModel"
            async with target.channel(ATTACKER) as attacking, target.channel(GOOD) as good:
                request = convert.pack_pull(PullRequest(ATTACKER, INCARNATION, 0))
                unread = [attacking.unary_stream(path)(request) for _ in range(4)]
                await until(lambda: bool(served))
                pulled = good.unary_stream(path)(convert.pack_pull(PullRequest(GOOD, INCARNATION, 0)))
                assert sum([len(frame) async for frame in pulled]) > target.model().nbytes
                assert sorted(served) == [ATTACKER, GOOD]
                for call_ in unread:
                    call_.cancel()

    asyncio.run(test())
