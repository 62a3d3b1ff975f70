"""A neighbor that sends wrong slots, NaN, foreign sizes and false numbers, and asks for private models, to each algorithm.

Every call is refused with its code, counted, and changes nothing; a good neighbor's model is folded after it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import xxhash
from target import ATTACKER, GOOD, INCARNATION, Target, call, push, under_attack

from coordinator_free_bootstrap.errors import RefusalCode
from peer.core.messages import Numbers, Pass, PullRequest, Select
from peer.core.stages import EXCHANGE
from peer.wire import convert, frames
from peer.wire.generated import peer_pb2
from peer.wire.options import SERVICE

pytestmark = pytest.mark.process


@dataclass(frozen=True)
class Case:
    """How one algorithm is set up, and what is wrong for it.

    Attributes:
        run: keys of the manifest.
        slot: of a model that it accepts.
        numbers: in the header of a model that it accepts.
        private: how many models never leave the peer.
        header: changes to it that are refused, with their codes.
        passes: numbers in a pass that are refused, by step.
    """

    run: dict[str, Any]
    slot: int = 0
    numbers: tuple[float, ...] = ()
    private: int = 1
    header: list[tuple[dict[str, Any], RefusalCode]] = field(default_factory=list)
    passes: list[tuple[int, tuple[float, ...], RefusalCode]] = field(default_factory=list)


MALFORMED, SLOT, WEIGHT = RefusalCode.MALFORMED, RefusalCode.SLOT_OUT_OF_RANGE, RefusalCode.WEIGHT_OUT_OF_RANGE
ANCHOR = (1.0, 1.0, 2.0, *([0.5] * 8))
CASES = {
    "fedsoft": Case(
        {"algorithm": "fedsoft"},
        slot=2,
        numbers=(0.5, 0.5),
        private=0,
        header=[
            ({"slot": 0}, SLOT),  # a center, which is never pushed
            ({"numbers": ()}, WEIGHT),
            ({"numbers": (0.5, 0.5, 0.5)}, WEIGHT),
            ({"numbers": (5.0, 5.0)}, WEIGHT),
            ({"numbers": (-1.0, 2.0)}, WEIGHT),
        ],
    ),
    "fedsoft, select": Case(
        {"algorithm": "fedsoft", "options": {"variant": "select"}},
        slot=2,
        numbers=(1.0, 0.0),
        private=0,
        header=[
            ({"slot": 0}, SLOT),
            ({"numbers": ()}, WEIGHT),
            ({"numbers": (0.5, 0.5)}, WEIGHT),  # importances, where flags are due
            ({"numbers": (0.0, 0.0)}, WEIGHT),  # a model that drew no center is not sent
            ({"numbers": (2.0, 0.0)}, WEIGHT),
            ({"numbers": (1.0, 0.0, 1.0)}, WEIGHT),
        ],
    ),
    "blend": Case(
        {"algorithm": "blend", "options": {"initialization": "global", "warmup_rounds": 0}},
        slot=1,
        private=3,
        numbers=(0.0, 0.25, 0.25, 0.25, 0.25, 0.0),
        header=[
            ({"slot": 3}, SLOT),  # the own model
            ({"slot": 5}, SLOT),
            ({"numbers": (0.5, 0.5)}, MALFORMED),
            ({"numbers": (-0.5, 0.5, 0.5, 0.5, 0.0, 0.0)}, MALFORMED),
            ({"numbers": (1e300, 1e300, 0.0, 0.0, 0.0, 0.0)}, MALFORMED),
            ({"numbers": (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)}, MALFORMED),
        ],
    ),
    **{
        name: Case({"algorithm": name}, private=0, header=[({"slot": 1}, SLOT)])
        for name in ("fedprox", "fedrep", "perfedavg")
    },
    **{name: Case({"algorithm": name}, header=[({"slot": 1}, SLOT)]) for name in ("pfedme", "ditto", "apfl", "dpsgd")},
    "dpfl": Case({"algorithm": "dpfl", "aggregation": None}, header=[({"slot": 1}, SLOT)]),  # it reads no aggregation
    "cgpfl": Case(
        {"algorithm": "cgpfl", "options": {"sketch_size": 4}},
        slot=2,
        header=[
            ({"slot": 0}, SLOT),
            ({"slot": 3}, SLOT),  # theta
            ({"numbers": (0.0, 2.0)}, WEIGHT),  # a label in round 0
            ({"round_index": 1, "numbers": (2.0, 2.0)}, WEIGHT),
            ({"round_index": 1, "numbers": (0.5, 2.0)}, WEIGHT),
            ({"round_index": 1, "numbers": (0.0, 9.0)}, WEIGHT),
        ],
        passes=[
            (1, (9.0, *ANCHOR[1:]), MALFORMED),
            (1, (1.0, 4.0, *ANCHOR[2:]), MALFORMED),
            (1, ANCHOR[:-1], RefusalCode.WRONG_SIZE),
            (1, (1.0, 1.0, 3.0, *([0.5] * 12)), RefusalCode.WRONG_SIZE),
            (1, (*ANCHOR[:-1], float("nan")), RefusalCode.NON_FINITE),
        ],
    ),
    "cgpfl, auto": Case(
        {"algorithm": "cgpfl", "options": {"sketch_size": 4, "clusters": "auto", "clusters_max": 4}},
        slot=4,
        header=[({"slot": 5}, SLOT), ({"round_index": 1, "numbers": (0.0, 5.0)}, WEIGHT)],
        passes=[
            (1, (1e30, 1.0), MALFORMED),
            (1, (1.0, 0.5), MALFORMED),
            (1, (1.0, 1.0, 1.0), MALFORMED),
            (1, (float("inf"), 1.0), RefusalCode.NON_FINITE),
        ],
    ),
}


def model_frames(target: Target, case: Case, nan: bool = False, elements: int = 0, **changes: Any) -> list[bytes]:
    """Return the frames of a model; ``elements`` more or fewer than it has are claimed and sent."""
    model = target.model(case.slot, nan_at=5 if nan else None)
    data = (model.tobytes() + bytes(64))[: model.nbytes + 4 * elements]
    fields = {"slot": case.slot, "numbers": case.numbers, "size_bytes": len(data)} | changes
    fields["numbers"] = Numbers.of(fields["numbers"])
    chunk = frames.chunk_frame(memoryview(data))
    header = convert.pack_header(target.header(fields.pop("sender", ATTACKER), **fields))
    return [header, chunk, frames.end_frame(xxhash.xxh3_128(data).digest())]


async def outcome(channel: grpc.aio.Channel, messages: list[bytes]) -> peer_pb2.PushReply:
    return peer_pb2.PushReply.FromString(await push(channel, messages))


async def refusal_of(channel: grpc.aio.Channel, method: str, data: bytes) -> str:
    """Return the code with which a call is refused, in its reply or as its error; "" if it is accepted."""
    try:
        if method == "PullModel":
            async for _ in channel.unary_stream(f"/{SERVICE}/{method}")(data, timeout=20):
                return ""
            return ""
        return peer_pb2.Acknowledgement.FromString(await call(channel, method, data)).refusal.code
    except grpc.aio.AioRpcError as error:
        return dict(error.trailing_metadata() or ())["peer-refusal"]


@pytest.mark.parametrize("name", CASES)
def test_nothing_wrong_gets_in_and_nothing_private_gets_out(name: str, tmp_path: Path) -> None:
    case = CASES[name]

    async def test() -> None:
        async with asyncio.timeout(90), under_attack(tmp_path, case.run) as target:
            await target.connect(ATTACKER, GOOD)
            await target.reach(*EXCHANGE)
            host, algorithm = target.host, target.host.algorithm
            before, private = target.digest(), range(algorithm.slots, algorithm.held)
            assert len(private) == case.private
            async with target.channel(ATTACKER) as channel:
                for changes, code in case.header:
                    reply = await outcome(channel, model_frames(target, case, **changes))
                    assert reply.refusal.code == code, (changes, reply)
                for elements in (-1, 1):
                    reply = await outcome(channel, model_frames(target, case, elements=elements))
                    assert reply.refusal.code == RefusalCode.WRONG_SIZE, reply
                for slot in (*private, algorithm.held, 10**6):
                    pull = convert.pack_pull(PullRequest(ATTACKER, INCARNATION, slot))
                    assert await refusal_of(channel, "PullModel", pull) == SLOT, slot
                for step, numbers, code in case.passes:
                    said = convert.pack_pass(Pass(ATTACKER, INCARNATION, 0, step, Numbers.of(numbers)))
                    assert await refusal_of(channel, "Pass", said) == code, (step, numbers)
                said = convert.pack_pass(Pass(ATTACKER, INCARNATION, 0, 0, Numbers.of(1.0)))
                assert await refusal_of(channel, "Pass", said) == MALFORMED, "numbers in a step of models"
                selects = Select(ATTACKER, INCARNATION, 0, selected=0)
                assert await refusal_of(channel, "Select", convert.pack_select(selects)) == MALFORMED
                assert target.digest() == before
                reply = await outcome(channel, model_frames(target, case, nan=True))
                assert reply.refusal.code == RefusalCode.NON_FINITE, reply
            expected = len(case.header) + 2 + len(private) + 2 + len(case.passes) + 2 + 1
            assert sum(host.state.refusals.values()) == expected
            async with target.channel(GOOD) as channel:
                reply = await outcome(channel, model_frames(target, case, sender=GOOD))
                assert reply.outcome == peer_pb2.OUTCOME_FOLDED, reply

    asyncio.run(test())
