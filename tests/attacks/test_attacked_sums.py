"""A neighbor that forges, repeats, bloats and cuts every message of secure sums: each is refused, and nothing is revealed.

Method: a real peer over TLS, which waits in round 0; its neighbors are played by the test with their true keys, and one of them
attacks: as the receiver of a sum that lies to its members, and as a member that lies to the receiver. What the peer would send
stays in its outboxes, since no process listens at the neighbors' addresses.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest
import xxhash
from mutation import mutated
from target import (
    ATTACKER,
    GOOD,
    INCARNATION,
    MORE_GOOD,
    OBSERVER,
    STRANGER,
    Target,
    call,
    push,
    under_attack,
    until,
)

from coordinator_free_bootstrap.errors import RefusalCode
from peer.core.encoding import MASKED
from peer.core.messages import Opening, Select, SumMessage
from peer.core.stages import EXCHANGE
from peer.identity.sum_keys import PinnedSigner
from peer.secure_sum.arithmetic import SECRET_BYTES, TAG_BYTES
from peer.secure_sum.keys import Announcement, Keys
from peer.secure_sum.received import ReceivedSum
from peer.secure_sum.sums import ROUNDS_KEPT, SecureSums
from peer.wire import convert, frames
from peer.wire.convert import ROSTER_BYTES_MAX, SUM_BYTES_MAX, SUM_KEY_BYTES_MAX
from peer.wire.generated import peer_pb2
from peer.wire.limits import WireLimits

pytestmark = pytest.mark.process
SUMS: dict[str, Any] = {"algorithm": "dfedavg", "secure_sum": 64.0, "aggregation": None}
NEIGHBORS = (ATTACKER, GOOD, *MORE_GOOD)
MALFORMED = RefusalCode.MALFORMED
# Points of small order of Curve25519 (RFC 7748, Section 6.1): with each the secret is zero.
SMALL_ORDER = (
    bytes(32),
    b"\1" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
)


@dataclass
class Scene:
    """The attacked peer, what its neighbors know, and an open channel of the attacker.

    Attributes:
        sums: of the neighbors.
        channel: of the attacker.
        roster: of the attacker's sum of round 0, which the target is asked to join.
    """

    target: Target
    sums: dict[int, SecureSums]
    channel: grpc.aio.Channel
    roster: bytes = b""

    @property
    def own(self) -> SecureSums:
        """The secrets of the target."""
        own: Any = self.target.host.state.sums
        return own

    def posted(self, kind: Opening, to: int | None = None) -> list[SumMessage]:
        """Return messages of a kind that the target wants to send."""
        found = []
        for n, neighbor in self.target.host.state.neighbors.items():
            outbox = neighbor.outbox
            waiting = [outbox.in_flight, *outbox._queue]
            found += [m for m in waiting if isinstance(m, SumMessage) and m.kind is kind and to in (None, n)]
        return found

    def taken(self) -> None:
        """Let the neighbors take all that waits for them but what opens sums."""
        for neighbor in self.target.host.state.neighbors.values():
            outbox = neighbor.outbox
            outbox._queue = deque(m for m in outbox._queue if isinstance(m, SumMessage))
            outbox.in_flight = outbox.in_flight if isinstance(outbox.in_flight, SumMessage) else None

    async def says(self, kind: Opening, data: bytes, *, by: int | None = None, **changes: Any) -> str:
        """Send a message of a sum, as the attacker or another subject; return the code with which it is refused."""
        message = replace(SumMessage(by or ATTACKER, INCARNATION, 0, kind, data), **changes)
        return await self.sends("Sum", convert.pack_sum(message), by=by)

    async def announces(self, roster: bytes, round_index: int = 0) -> str:
        """Announce a sum as the attacker; return the code with which it is refused."""
        return await self.sends(
            "Select", convert.pack_select(Select(ATTACKER, INCARNATION, round_index, roster=roster))
        )

    async def sends(self, method: str, data: bytes, *, by: int | str | None = None) -> str:
        """Make a call; return the code with which it is refused, "" if it is not."""
        if by is not None:
            async with self.target.channel(by) as channel:
                return await _code(channel, method, data)
        return await _code(self.channel, method, data)

    async def refused(self, *calls: Coroutine[Any, Any, str], code: RefusalCode = MALFORMED) -> None:
        """Require that calls are refused with a code, are counted, and change nothing that is saved."""
        state, before = self.target.host.state, self.target.digest()
        counted = state.refusals[code]
        for number, each in enumerate(calls):
            assert await each == code, number
        assert state.refusals[code] == counted + len(calls)
        assert self.target.digest() == before

    # ---- the attacker as receiver ---------------------------------------------------------------------------------------

    def begin(self) -> bytes:
        """Begin the attacker's sum with all its neighbors."""
        attacker, target = self.sums[ATTACKER], self.target.host.state
        assert attacker.meets(0, target.incarnation, self.own.announcement(target.incarnation)) is None
        self.roster = attacker.begin(0, [(0, target.incarnation), *((n, INCARNATION) for n in (GOOD, *MORE_GOOD))])
        return self.roster

    async def joined(self) -> None:
        """Let all neighbors join the attacker's sum."""
        assert await self.announces(self.begin()) == ""
        await until(lambda: bool(self.own.shares(ATTACKER, 0)))
        for n in (GOOD, *MORE_GOOD):
            assert self.sums[n].join(ATTACKER, 0, self.roster, INCARNATION) == ""

    def received(self, delivered: Iterable[int]) -> ReceivedSum:
        """Return the attacker's sum, to which some have delivered."""
        sum_of: Any = self.sums[ATTACKER]
        found = ReceivedSum(sum_of._received.roster, 4)
        for n in delivered:
            found.delivered(n, (self.own if n == 0 else self.sums[n]).shares(ATTACKER, 0))
        return found

    def tagged(self, data: bytes) -> bytes:
        """Return data with the tag of the attacker's sum before it."""
        return self.received(()).roster.tag + data

    def agree(self, members: dict[int, bytes]) -> dict[int, bytes]:
        """Let honest members agree to what they are asked to; return their tags."""
        answers = {}
        for n, data in members.items():
            if n != 0:
                message = SumMessage(ATTACKER, INCARNATION, 0, Opening.MEMBERS, self.tagged(data))
                ((_, _, answers[n]),) = self.sums[n].take(message)
        return {n: answer[TAG_BYTES:] for n, answer in answers.items()}


async def _code(channel: grpc.aio.Channel, method: str, data: bytes) -> str:
    try:
        reply = await call(channel, method, data)
        kind = peer_pb2.HelloReply if method == "Hello" else peer_pb2.Acknowledgement
        return str(kind.FromString(reply).refusal.code)
    except grpc.aio.AioRpcError as error:
        return dict(error.trailing_metadata() or ())["peer-refusal"]


@asynccontextmanager
async def attacked(directory: Path, **options: Any) -> AsyncIterator[Scene]:
    """Run the peer, with its four neighbors alive, until its own sum of round 0 is announced."""
    async with asyncio.timeout(90), under_attack(directory, SUMS, **options) as target:
        sums = {
            n: SecureSums(n, target.graph, PinnedSigner(target.graph, n, target.pairs[n]), os.urandom)
            for n in NEIGHBORS
        }
        target.sum_keys = {n: each.announcement(INCARNATION) for n, each in sums.items()}
        for n in (GOOD, *MORE_GOOD):
            assert sums[ATTACKER].meets(n, INCARNATION, target.sum_keys[n]) is None
        await target.connect(*NEIGHBORS)
        await target.reach(*EXCHANGE)
        async with target.channel(ATTACKER) as channel:
            yield Scene(target, sums, channel)


def run(test: Callable[[Scene], Coroutine[Any, Any, None]], directory: Path, **options: Any) -> None:
    async def main() -> None:
        async with attacked(directory, **options) as scene:
            await test(scene)

    asyncio.run(main())


# ---- keys ---------------------------------------------------------------------------------------------------------------


def test_no_key_but_the_own_one_of_this_incarnation_is_taken(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        target, key = scene.target, scene.target.sum_keys[ATTACKER]
        incarnation = INCARNATION + 1
        own = Announcement(ATTACKER, incarnation, os.urandom(32), key[-70:])

        def hello(sum_key: bytes, **changes: Any) -> Coroutine[Any, Any, str]:
            message = target.hello(ATTACKER, incarnation=incarnation, sum_key=sum_key, **changes)
            return scene.sends("Hello", convert.pack_hello(message))

        malformed = [b"", b"\xff", key[:-1], key, target.sum_keys[GOOD], 2 * key[:120]]
        malformed += [signed(scene, ATTACKER, incarnation, point).packed() for point in SMALL_ORDER]
        await scene.refused(*map(hello, malformed))
        await scene.refused(hello(own.packed()), code=RefusalCode.IDENTITY_MISMATCH)
        await scene.refused(hello(bytes(SUM_KEY_BYTES_MAX + 1)))
        assert scene.own._known[ATTACKER].packed() == key

    run(test, tmp_path)


def signed(scene: Scene, peer: int, incarnation: int, key: bytes) -> Announcement:
    """Return any key with the signature of a peer."""
    keys = Keys(scene.target.graph, peer, PinnedSigner(scene.target.graph, peer, scene.target.pairs[peer]), os.urandom)
    keys.public = key
    return keys.announcement(incarnation)


# ---- rosters ------------------------------------------------------------------------------------------------------------


def test_a_roster_with_a_key_that_its_peer_has_not_signed_is_refused(tmp_path: Path) -> None:
    """Else the receiver could put its own keys in the place of all others, and unmask the one model that is left."""

    async def test(scene: Scene) -> None:
        scene.begin()
        peers = {each.peer: each for each in scene.received(()).roster.peers}
        known = {n: peers[n].packed() for n in sorted(peers)}

        def roster(**others: bytes) -> Coroutine[Any, Any, str]:
            changed = known | {int(name[1:]): data for name, data in others.items()}
            return scene.announces(b"".join(changed.values()))

        forged = replace(peers[GOOD], key=os.urandom(32)).packed()
        older = replace(peers[GOOD], incarnation=INCARNATION - 1).packed()
        exchanged = replace(peers[GOOD], key=peers[4].key, signature=peers[4].signature).packed()
        weak = [
            signed(scene, GOOD, INCARNATION, point).packed() for point in SMALL_ORDER
        ]  # a colluder's; they ended the peer
        unknown = Announcement(99, 1, os.urandom(32), os.urandom(70)).packed()
        await scene.refused(
            *(roster(n2=data) for data in (*weak, forged, older, exchanged, b"\0", known[GOOD] * 2, known[GOOD][:-1])),
            roster(n99=unknown),
            scene.announces(b"".join(reversed(known.values()))),
            scene.announces(b"\xff" * 100),
            scene.announces(bytes(ROSTER_BYTES_MAX + 1)),
            scene.announces(b"".join(Announcement(n, 1, bytes(32), b"").packed() for n in range(2000))),
        )
        assert not scene.own.shares(ATTACKER, 0)
        assert await scene.announces(scene.roster) == ""

    run(test, tmp_path)


def test_a_peer_takes_no_part_in_a_sum_with_strangers_or_too_few_or_of_two_rosters(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        scene.begin()
        peers = scene.received(()).roster.peers
        stranger = PinnedSigner(scene.target.graph, STRANGER, scene.target.pairs[STRANGER])
        strange = SecureSums(STRANGER, scene.target.graph, stranger, os.urandom).announcement(INCARNATION)
        ordered = {each.peer: each.packed() for each in peers} | {STRANGER: strange}
        whole = b"".join(ordered[n] for n in sorted(ordered))
        few = b"".join(each.packed() for each in peers[:2])
        without = b"".join(each.packed() for each in peers if each.peer != 0)
        for round_index, roster in enumerate((whole, few, without)):  # signed by all of them, so nothing is refused
            assert await scene.announces(roster, round_index) == ""
            assert not scene.own.shares(ATTACKER, round_index)
        await scene.refused(scene.announces(scene.roster), code=RefusalCode.CONTRADICTS_SELECTION)
        await scene.refused(scene.announces(scene.roster, 3), code=RefusalCode.ROUND_TOO_FAR_AHEAD)
        assert not any(scene.own.shares(ATTACKER, t) for t in range(4))

    run(test, tmp_path)


# ---- a receiver that lies -----------------------------------------------------------------------------------------------


def test_a_receiver_with_two_sets_of_members_gets_nothing_revealed(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        await scene.joined()
        first, second = scene.received((0, GOOD, *MORE_GOOD)), scene.received((0, GOOD, 4))
        asked, other = first.fix(), second.fix()
        assert await scene.says(Opening.MEMBERS, scene.tagged(asked[0])) == ""
        assert len(scene.posted(Opening.AGREES, ATTACKER)) == 1
        await scene.refused(scene.says(Opening.MEMBERS, scene.tagged(other[0])))
        tags = scene.agree(
            {n: data for n, data in other.items() if n in (GOOD, 4)}
        )  # who has agreed to the second set alone
        found = second._tags_for(0, (0, GOOD, 4)) if second._tags.update(tags) is None else b""
        await scene.refused(scene.says(Opening.AGREED, scene.tagged(found)))
        assert not scene.posted(Opening.REVEALS)

    run(test, tmp_path)


def test_only_the_agreement_of_enough_members_has_a_peer_reveal_and_it_reveals_one_thing(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        await scene.joined()
        received = scene.received((0, GOOD, *MORE_GOOD))
        asked = received.fix()
        roster, members = received.roster, scene.tagged(asked[0])
        bits, shares = asked[0][: roster.bits_bytes], asked[0][roster.bits_bytes :]
        turned = bytes([shares[0] ^ 1]) + shares[1:]
        wrong = [
            b"",
            asked[0][:-1],
            asked[0] + b"\0",
            roster.as_bits((GOOD, *MORE_GOOD)) + shares[:-48],
            roster.as_bits((0, GOOD)) + shares[:48],
            b"\xff" * roster.bits_bytes + shares,
            bits + turned,
            bits + shares[48:] + shares[:48],
            asked[GOOD],
        ]
        await scene.refused(
            scene.says(
                Opening.AGREED, scene.tagged(roster.as_bits((GOOD, 4)) + bytes(2 * TAG_BYTES))
            ),  # to nothing yet
            *(scene.says(Opening.MEMBERS, scene.tagged(data)) for data in wrong),
            scene.says(Opening.MEMBERS, bytes(SUM_BYTES_MAX + 1)),
        )
        assert await scene.says(Opening.MEMBERS, members) == ""
        tags = scene.agree(asked)
        received._tags.update({n: tags[n] for n in (GOOD, 4)})
        right = received._tags_for(0, received.members or ())
        bits, tags_for = right[: roster.bits_bytes], right[roster.bits_bytes :]
        forged = [
            roster.as_bits(()),
            roster.as_bits((GOOD,)) + tags_for[:TAG_BYTES],  # with the own one two of three
            bits + bytes(len(tags_for)),
            bits + tags_for[TAG_BYTES:] + tags_for[:TAG_BYTES],
            bits + tags_for[:-1],
            roster.as_bits((0, GOOD)) + tags_for,
            roster.as_bits((4, 5)) + tags_for,
        ]
        await scene.refused(*(scene.says(Opening.AGREED, scene.tagged(data)) for data in forged))
        assert not scene.posted(Opening.REVEALS)
        assert await scene.says(Opening.AGREED, scene.tagged(right)) == ""
        (revealed,) = scene.posted(Opening.REVEALS)
        assert revealed.data == roster.tag + b"".join(_shares_of(scene, 4)), "shares, and no seed of a pair"
        assert len(scene.posted(Opening.REVEALS, ATTACKER)) == 1, "to the receiver alone"

    run(test, tmp_path)


def _shares_of(scene: Scene, members: int) -> list[bytes]:
    sent: Any = scene.own._sent[ATTACKER][0]
    found = list(sent._received.values())
    assert [len(share) for share in found] == [SECRET_BYTES] * members
    return found


def test_a_message_of_another_sum_says_nothing(tmp_path: Path) -> None:
    """Of another round, of a sum that nobody has announced, and by a neighbor whose sum it is not."""

    async def test(scene: Scene) -> None:
        await scene.joined()
        asked = scene.received((0, GOOD, *MORE_GOOD)).fix()
        members = scene.tagged(asked[0])
        for kind in Opening:
            assert await scene.says(kind, members, round_index=1) == ""
            assert await scene.says(kind, os.urandom(TAG_BYTES) + asked[0]) == ""
            assert await scene.says(kind, members, by=GOOD) == ""
            assert await scene.says(kind, members, round_index=(1 << 31) - 1) == ""
        assert not scene.posted(Opening.AGREES) and not scene.posted(Opening.REVEALS)

    run(test, tmp_path)


def test_repeated_messages_are_answered_once(tmp_path: Path) -> None:
    """The answers to a neighbor that takes none of them filled the memory: one for each repeat."""

    async def test(scene: Scene) -> None:
        await scene.joined()
        received = scene.received((0, GOOD, *MORE_GOOD))
        asked = received.fix()
        tags = scene.agree(asked)
        received._tags.update({n: tags[n] for n in (GOOD, 4)})
        agreed = scene.tagged(received._tags_for(0, received.members or ()))
        for _ in range(50):
            assert await scene.announces(scene.roster) == ""
            assert await scene.says(Opening.MEMBERS, scene.tagged(asked[0])) == ""
            assert await scene.says(Opening.AGREED, agreed) == ""
        assert len(scene.posted(Opening.AGREES)) == len(scene.posted(Opening.REVEALS)) == 1
        assert len(scene.own._sent[ATTACKER]) <= ROUNDS_KEPT

    run(test, tmp_path)


# ---- a member that lies -------------------------------------------------------------------------------------------------


def model_frames(target: Target, sender: int, shares: bytes, data: bytes, **changes: Any) -> list[bytes]:
    header = target.header(sender, **{"encoding": MASKED, "shares": shares} | changes)
    return [
        convert.pack_header(header),
        frames.chunk_frame(memoryview(data)),
        frames.end_frame(xxhash.xxh3_128(data).digest()),
    ]


async def delivered(scene: Scene, sender: int, shares: bytes, data: bytes, **changes: Any) -> peer_pb2.PushReply:
    async with scene.target.channel(sender) as channel:
        return peer_pb2.PushReply.FromString(
            await push(channel, model_frames(scene.target, sender, shares, data, **changes))
        )


def test_a_member_that_lies_costs_no_more_than_the_sum(tmp_path: Path) -> None:
    """Wrong shares, models twice, answers before they are due and of another size; then a share that is none."""

    async def test(scene: Scene) -> None:
        target, own = scene.target, scene.own
        (announced,) = {each.roster for each in _selects(target)}
        size = target.model().nbytes
        data = {n: os.urandom(size) for n in NEIGHBORS}
        for n in NEIGHBORS:
            for m in {*NEIGHBORS} - {n}:
                assert scene.sums[n].meets(m, INCARNATION, target.sum_keys[m]) is None
            assert scene.sums[n].join(0, 0, announced, INCARNATION) == ""
            select = Select(n, INCARNATION, 0, roster=scene.sums[n].begin(0, []))  # a sum of nobody
            assert await scene.sends("Select", convert.pack_select(select), by=n) == ""
        shares = {n: scene.sums[n].shares(0, 0) for n in NEIGHBORS}
        tag = shares[ATTACKER][:TAG_BYTES]
        await scene.refused(
            *(
                scene.says(kind, tag + bytes(size))
                for kind in (Opening.AGREES, Opening.REVEALS)
                for size in (0, 16, 48, 128)
            ),
        )
        reply = await delivered(scene, ATTACKER, b"", data[ATTACKER])
        assert reply.refusal.code == MALFORMED
        reply = await delivered(scene, ATTACKER, shares[ATTACKER], data[ATTACKER], encoding="float32")
        assert reply.refusal.code == RefusalCode.WRONG_ENCODING
        for wrong in (shares[ATTACKER][:-1], shares[ATTACKER] + b"\0", os.urandom(len(shares[ATTACKER]))):
            reply = await delivered(scene, ATTACKER, wrong, data[ATTACKER])
            assert reply.outcome != peer_pb2.OUTCOME_FOLDED, reply
        for n in NEIGHBORS:
            assert (await delivered(scene, n, shares[n], data[n])).outcome == peer_pb2.OUTCOME_FOLDED
        scene.taken()
        again = await delivered(scene, ATTACKER, shares[ATTACKER], data[GOOD])
        assert again.outcome == peer_pb2.OUTCOME_DUPLICATE, again
        await until(lambda: own.members == NEIGHBORS)
        asked = {message.data: n for n in NEIGHBORS for message in scene.posted(Opening.MEMBERS, n)}
        assert len(asked) == len(NEIGHBORS)
        await scene.refused(
            *(scene.says(Opening.AGREES, tag + bytes(size)) for size in (0, 2 * TAG_BYTES, 4 * TAG_BYTES)),
            *(scene.says(Opening.REVEALS, tag + bytes(size)) for size in (0, 3 * SECRET_BYTES, 5 * SECRET_BYTES)),
        )
        for n in (GOOD, *MORE_GOOD):
            ((_, _, agrees),) = scene.sums[n].take(
                SumMessage(0, 1, 0, Opening.MEMBERS, next(d for d, m in asked.items() if m == n))
            )
            assert await scene.says(Opening.AGREES, agrees, by=n) == ""
        await until(lambda: len(scene.posted(Opening.AGREED)) == len(NEIGHBORS))
        reveals = {}
        for n in (GOOD, *MORE_GOOD):
            (agreed,) = scene.posted(Opening.AGREED, n)
            ((_, _, reveals[n]),) = scene.sums[n].take(replace(agreed, sender=0))
        for n in (GOOD, 4):
            assert await scene.says(Opening.REVEALS, reveals[n], by=n) == ""
        assert not own.is_open
        assert await scene.says(Opening.REVEALS, tag + os.urandom(4 * SECRET_BYTES)) == ""
        await until(lambda: target.host.state.round.index == 1)
        assert target.host.state.totals["sums_lost"] == 1, "it keeps its own model, and goes on"
        assert np.isfinite(target.model()).all()

    run(test, tmp_path)


def _selects(target: Target) -> list[Select]:
    outboxes = [neighbor.outbox for neighbor in target.host.state.neighbors.values()]
    return [m for outbox in outboxes for m in (outbox.in_flight, *outbox._queue) if isinstance(m, Select) and m.roster]


# ---- callers, floods, mutations -----------------------------------------------------------------------------------------


def test_only_a_neighbor_that_has_shaken_hands_speaks_of_sums(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        await scene.joined()
        data = scene.tagged(scene.received((0, GOOD, *MORE_GOOD)).fix()[0])
        packed = convert.pack_sum(SumMessage(ATTACKER, INCARNATION, 0, Opening.MEMBERS, data))
        await scene.refused(
            scene.sends("Sum", packed, by=OBSERVER),
            code=RefusalCode.NOT_A_NEIGHBOR,
        )
        await scene.refused(
            scene.sends("Sum", packed, by=GOOD),
            scene.says(Opening.MEMBERS, data, sender=STRANGER),
            code=RefusalCode.IDENTITY_MISMATCH,
        )
        await scene.refused(
            scene.says(Opening.MEMBERS, data, incarnation=INCARNATION - 1), code=RefusalCode.OLD_INCARNATION
        )
        assert await scene.says(Opening.MEMBERS, data, incarnation=INCARNATION + 1) == RefusalCode.NO_HANDSHAKE
        with pytest.raises(KeyError):  # no connection: a stranger has no answer, and so no code
            await scene.sends("Sum", packed, by=STRANGER)
        assert not scene.posted(Opening.AGREES)

    run(test, tmp_path)


def test_a_flood_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        await scene.joined()
        large = os.urandom(TAG_BYTES) + bytes(SUM_BYTES_MAX - TAG_BYTES)
        answers = [await scene.says(random.Random(1).choice([*Opening]), large) for _ in range(60)]
        assert RefusalCode.RATE_LIMITED in answers and answers[0] == ""
        assert sum(len(neighbor.outbox._queue) for neighbor in scene.target.host.state.neighbors.values()) < 30
        assert len(scene.own._sent[ATTACKER]) <= ROUNDS_KEPT

    run(test, tmp_path, limits=WireLimits(requests_per_second=4.0))


def test_mutated_messages_are_refused_or_say_nothing(tmp_path: Path) -> None:
    """Any bytes: a typed answer, and no reveal, since what opens a sum would have to be guessed."""

    async def test(scene: Scene) -> None:
        await scene.joined()
        asked = scene.received((0, GOOD, *MORE_GOOD)).fix()
        draw = random.Random(5)
        before = scene.target.digest()
        whole = {
            "Sum": convert.pack_sum(SumMessage(ATTACKER, INCARNATION, 0, Opening.MEMBERS, scene.tagged(asked[0]))),
            "Select": convert.pack_select(Select(ATTACKER, INCARNATION, 0, roster=scene.roster)),
        }
        answers = set()
        for _ in range(300):
            method = draw.choice([*whole])
            answers.add(await scene.sends(method, mutated(whole[method], draw)))
        assert answers <= {"", *RefusalCode} and MALFORMED in answers, answers
        assert scene.target.digest() == before
        assert not scene.posted(Opening.REVEALS) and len(scene.posted(Opening.AGREES)) <= 1

    run(test, tmp_path, limits=WireLimits(requests_per_second=1e6))
