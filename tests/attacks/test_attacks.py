"""Each attack of the corpus is refused with its code and counted, changes nothing, and costs a good neighbor nothing."""

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
from generate import CORPUS, MODEL_BYTES, texts
from target import ATTACKER, GOOD, Target, call, push, under_attack

from coordinator_free_bootstrap.errors import Refusal
from peer.core import events as ev
from peer.core.state import Stage
from peer.wire import convert, frames
from peer.wire.generated import peer_pb2
from peer.wire.options import SERVICE

pytestmark = pytest.mark.process
SCRIPTS = sorted(CORPUS.glob("*.json"))


def test_there_is_a_script_for_every_code_and_it_is_what_the_generator_makes() -> None:
    assert {path.stem for path in SCRIPTS} == set(Refusal)
    assert {path.name: path.read_text() for path in SCRIPTS} == texts()


def frames_of(step: dict[str, Any], target: Target) -> list[bytes]:
    """Return the bytes of a push: those of the script, and the peer's own values where the script asks for them."""
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
    return messages


async def attempt(step: dict[str, Any], target: Target, channel: grpc.aio.Channel) -> str:
    """Make one call of a script and return the refusal that comes back, or ""."""
    method = step["call"]
    try:
        if method == "PushModel":
            reply = await push(channel, frames_of(step, target), step.get("hold", False), step.get("trickle_s"))
            return peer_pb2.PushReply.FromString(reply).refusal
        if method == "Hello" and "hello" in step:
            changes = {"sender": ATTACKER} | step["hello"]
            data = convert.pack_hello(target.hello(**changes))
        else:
            data = bytes.fromhex(step["hex"])
        if method == "PullModel":
            async for _ in channel.unary_stream(f"/{SERVICE}/{method}")(data, timeout=20):
                return ""
            return ""
        reply = await call(channel, method, data)
        kind = {"Hello": peer_pb2.HelloReply, "Status": peer_pb2.StatusReply}.get(method, peer_pb2.Acknowledgement)
        return getattr(kind.FromString(reply), "refusal", "")
    except grpc.aio.AioRpcError as error:
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
        async with asyncio.timeout(10):
            while target.runtime.calls.open_streams() < len(held):
                await asyncio.sleep(0.005)
        before, counted = target.digest(), target.runtime.engine.refusals[script["code"]]
        for number, step in enumerate(script["steps"]):
            assert await attempt(step, target, channel) == script["code"], (number, step)
        expected = script.get("counted", len(script["steps"]))
        assert target.runtime.engine.refusals[script["code"]] == counted + expected
        assert target.digest() == before
        for step in script.get("after", ()):
            assert await attempt(step, target, channel) == ""
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_attack_is_refused_and_changes_nothing(path: Path, tmp_path: Path) -> None:
    script = json.loads(path.read_text())

    async def test() -> None:
        async with (
            asyncio.timeout(60),
            under_attack(tmp_path, script.get("run"), plaintext=script.get("plaintext", False)) as target,
        ):
            if script.get("handshake", True):
                await target.greet(ATTACKER, GOOD)
                await target.reach(Stage.EXCHANGING)
            assert target.runtime.engine.model_bytes == MODEL_BYTES
            if script.get("leaving"):
                target.runtime._do_stop = lambda effect: None  # type: ignore[method-assign]  # stay, to be called
                target.runtime.post(ev.LeaveRequested())
                await target.reach(Stage.STOPPED)
            await play(script, target)
            if script.get("plaintext") or script.get("leaving"):
                return  # nobody can prove to be good there; nobody is served any more
            if script.get("run", {}).get("options", {}).get("first_round") == "paper":
                said = peer_pb2.AnnounceRequest(sender=GOOD, incarnation=7, total=-1, selected=0).SerializeToString()
                async with target.channel(GOOD) as channel:
                    reply = await call(channel, "Announce", said)
                    assert not peer_pb2.Acknowledgement.FromString(reply).refusal
            reply = await target.push_good()
            assert reply.outcome == peer_pb2.OUTCOME_FOLDED, reply
            assert np.isfinite(target.runtime.bench.models.model(0)).all()

    asyncio.run(test())


def test_a_neighbor_that_holds_every_stream_it_may_does_not_keep_a_good_one_out(tmp_path: Path) -> None:
    """Silence is not punished here (the suspicion time is long): only the spare buffer lets the good model through."""

    async def test() -> None:
        places = [(round_index, slot) for round_index in (0, 1, 2) for slot in (0, 1)]
        limits = {"streams_per_neighbor": len(places), "concurrent_receives": 2}
        async with asyncio.timeout(60), under_attack(tmp_path, {"limits": limits}) as target:
            await target.greet(ATTACKER, GOOD)
            await target.reach(Stage.EXCHANGING)
            async with target.channel(ATTACKER) as channel:
                headers = [target.header(ATTACKER, round_index=t, slot=slot, total=2, index=slot) for t, slot in places]
                held = [asyncio.create_task(push(channel, [convert.pack_header(h)], hold=True)) for h in headers]
                async with asyncio.timeout(10):
                    while target.runtime.calls.open_streams() < len(held):
                        await asyncio.sleep(0.005)
                inbox = target.runtime.engine.inbox
                assert len(inbox.reading) == 1 and len(inbox.held) == len(held) - 1, "nothing is being held"
                reply = await target.push_good()
                assert reply.outcome == peer_pb2.OUTCOME_FOLDED, reply
                for task in held:
                    task.cancel()
                await asyncio.gather(*held, return_exceptions=True)

    asyncio.run(test())
