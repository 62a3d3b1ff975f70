"""A neighbor that lies in secure sums: as the receiver of one to its members, and as a member to the receivers of others.

In each round it announces a sum of its own with forged keys, then a right one, then another one; when all victims have delivered,
it asks, but in the last round, half of them to agree to one set of members and half to another, with wrong shares and wrong tags.
In the sums of its victims it plays one part of `PARTS` a round.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

from target import push

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from coordinator_free_bootstrap.rates import FRAME_BYTES_MAX
from peer.core.encoding import MASKED
from peer.core.messages import Hello, Opening, Outcome, Select, SumMessage
from peer.secure_sum.arithmetic import TAG_BYTES
from peer.secure_sum.keys import unpacked
from peer.secure_sum.received import ReceivedSum
from peer.secure_sum.roster import Roster
from peer.secure_sum.sums import SecureSums
from peer.wire import convert, frames
from tests.tools.liar import Liar

HONEST, ABSENT = "honest", "absent"  # parts that are no lies
WRONG_SHARES, WRONG_TAGS, WRONG_REVEALS = "wrong shares", "wrong tags", "wrong reveals"
PARTS = (HONEST, WRONG_SHARES, ABSENT, WRONG_TAGS, WRONG_REVEALS)


class SumLiar(Liar):
    """The lying neighbor of several victims in a run with secure sums.

    Attributes:
        believed: lies to members that were not refused with the code that they should be.
        revealed: what members have revealed to it.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.believed: list[tuple[str, int, Refusal | None]] = []
        self.revealed: list[SumMessage] = []
        self._sums = SecureSums(self.peer_id, self._graph, self._tls.signer(), os.urandom)
        self._rosters: dict[int, bytes] = {}  # of its own sums, by round
        self._delivered: dict[int, dict[int, bytes]] = defaultdict(dict)  # shares in its own sums, by round and victim
        self._agrees: dict[tuple[int, int], asyncio.Future[bytes]] = {}  # tags, by round and victim
        self._has_lied: dict[int, asyncio.Future[None]] = {}  # as a receiver, by round

    def _hello(self, victim: int, **changes: Any) -> Hello:
        incarnation = changes.get("incarnation", self._incarnation[victim])
        return super()._hello(victim, **{"sum_key": self._sums.announcement(incarnation)} | changes)

    async def before_round(self, victim: int, t: int) -> None:
        """Begin a round when the lies in the sum of the round before are told: its members would forget it."""
        if t > 0:
            await self._has_lied[t - 1]
        await super().before_round(victim, t)

    async def _lied(self, name: str, victim: int, code: RefusalCode, method: str, data: bytes) -> None:
        """Tell a lie, and note whether it is refused."""
        self.told[name] += 1
        reply = await self._ask(victim, method, data)
        refusal = convert.unpack_hello_reply(reply).refusal if method == "Hello" else None
        refusal = refusal if method == "Hello" else convert.unpack_acknowledgement(reply)
        if refusal is None or refusal.code is not code:
            self.believed.append((name, victim, refusal))

    # ---- its own sum ----------------------------------------------------------------------------------------------------

    async def _deliver(self, victim: int, t: int) -> None:
        """Announce a sum in several ways, and pass where no model follows."""
        self._has_lied.setdefault(t, asyncio.get_running_loop().create_future())
        roster = self._roster(t)
        peers = unpacked(roster)
        other = next(each for each in peers if each.peer != victim)
        forged = replace(other, key=os.urandom(32))
        hello = self._hello(victim, sum_key=replace(unpacked(self._key(victim))[0], key=forged.key).packed())
        await self._lied("forged key", victim, RefusalCode.IDENTITY_MISMATCH, "Hello", convert.pack_hello(hello))
        await self._be_alive(victim)
        select = Select(self.peer_id, self._incarnation[victim], t)

        async def announces(name: str, code: RefusalCode, packed: bytes) -> None:
            await self._lied(name, victim, code, "Select", convert.pack_select(replace(select, roster=packed)))

        in_place = b"".join((forged if each is other else each).packed() for each in peers)
        await announces("forged announcement", RefusalCode.MALFORMED, in_place)
        await self._ask(victim, "Select", convert.pack_select(replace(select, roster=roster)))
        without = b"".join(each.packed() for each in peers if each is not other)
        await announces("replayed roster", RefusalCode.CONTRADICTS_SELECTION, without)
        if self._plays(t) == ABSENT:
            self.told[ABSENT] += 1
            await super()._deliver(victim, t)

    def _key(self, victim: int) -> bytes:
        return self._sums.announcement(self._incarnation[victim])

    def _roster(self, t: int) -> bytes:
        if t not in self._rosters:
            present = []
            for victim, world in self.victims.items():
                state = world.host.state
                assert state.sums is not None
                announced = state.sums.announcement(state.incarnation)
                assert self._sums.meets(victim, state.incarnation, announced) is None
                present.append((victim, state.incarnation))
            self._rosters[t] = self._sums.begin(t, present)
        return self._rosters[t]

    async def _take_push(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        victim = await self._called("PushModel", context)
        parts = [frames.read_frame(frame) async for frame in requests]
        header = convert.first_header(parts[0])
        delivered = self._delivered[header.round_index]
        if victim not in delivered:
            delivered[victim] = header.shares
            # after the last round they leave, and none would hear the end of it
            if len(delivered) == len(self.victims) and header.round_index + 1 < self._graph.manifest.rounds:
                self._spawn(self._lie_to_members(header.round_index))
        return convert.pack_push_reply(Outcome.FOLDED)

    def _received(self, t: int, members: tuple[int, ...]) -> ReceivedSum:
        roster = Roster.read(self._sums._keys, self.peer_id, t, self._rosters[t])
        found = ReceivedSum(roster, len(self.victims))
        for n in members:
            found.delivered(n, self._delivered[t][n])
        return found

    async def _lie_to_members(self, t: int) -> None:
        """Ask for two sets of members; none of the two has the agreement of enough."""
        try:
            everyone = tuple(sorted(self.victims))
            sets = [self._received(t, everyone), self._received(t, everyone[:-1])]
            asked = [each.fix() for each in sets]
            tag, bits = sets[0].roster.tag, sets[0].roster.bits_bytes
            tags: list[dict[int, bytes]] = [{}, {}]
            for n in everyone:
                one = int(n in everyone[1:-1])  # the first and the last agree to all, those between to the others
                data = asked[one][n]
                turned = data[:bits] + bytes([data[bits] ^ 1]) + data[bits + 1 :]
                await self._says("wrong share", n, t, Opening.MEMBERS, tag + turned)
                agrees = self._agrees[t, n] = asyncio.get_running_loop().create_future()
                refusal = await self._asks(n, t, Opening.MEMBERS, tag + data)
                assert refusal is None, refusal
                tags[one][n] = (await agrees)[TAG_BYTES:]
                if n in asked[1 - one]:
                    await self._says("two sets", n, t, Opening.MEMBERS, tag + asked[1 - one][n])
            for one, received in enumerate(sets):
                received._tags.update(tags[one])
                for n in tags[one]:
                    agreed = tag + received._tags_for(n, received.members or ())
                    await self._says("too few tags", n, t, Opening.AGREED, agreed)
                    wrong = tag + received.roster.as_bits(m for m in everyone[:-1] if m != n)
                    size = 2 if n in everyone[:-1] else 3
                    await self._says("wrong tag", n, t, Opening.AGREED, wrong + os.urandom(size * TAG_BYTES))
        finally:
            self._has_lied[t].set_result(None)

    async def _asks(self, victim: int, t: int, kind: Opening, data: bytes) -> Refusal | None:
        message = SumMessage(self.peer_id, self._incarnation[victim], t, kind, data)
        return convert.unpack_acknowledgement(await self._ask(victim, "Sum", convert.pack_sum(message)))

    async def _says(self, name: str, victim: int, t: int, kind: Opening, data: bytes) -> None:
        message = SumMessage(self.peer_id, self._incarnation[victim], t, kind, data)
        await self._lied(name, victim, RefusalCode.MALFORMED, "Sum", convert.pack_sum(message))

    # ---- the sums of victims --------------------------------------------------------------------------------------------

    def _plays(self, t: int) -> str:
        return PARTS[t % len(PARTS)]

    def _unary(self, method: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
        answer = super()._unary(method)

        async def taken(request: bytes, context: Any) -> bytes:
            victim = int(self._tls.identify(context))
            if method == "Select":
                select = convert.unpack_select(request)
                if self._plays(select.round_index) != ABSENT:
                    self._spawn(self._join(victim, select))
            elif method == "Sum":
                self._spawn(self._take(victim, convert.unpack_sum(request)))
            return await answer(request, context)

        return taken

    async def _join(self, victim: int, select: Select) -> None:
        """Send a masked model for the sum of a victim."""
        t, host, part = select.round_index, self.victims[victim].host, self._plays(select.round_index)
        problem = self._sums.join(victim, t, select.roster, self._incarnation[victim])
        assert not problem, problem
        shares = self._sums.shares(victim, t)
        if part == WRONG_SHARES:
            self.told[part] += 1
            shares = shares[: 2 * TAG_BYTES] + os.urandom(len(shares) - 2 * TAG_BYTES)
        model = host.workspace.models.model(0).copy()
        payload = self._sums.masked(victim, t, host.algorithm.weights_at(victim), model)
        header = self._header(victim, t, encoding=MASKED, shares=shares)
        parts = frames.model_frames(convert.pack_header(header), payload, FRAME_BYTES_MAX)
        await push(self._channels[victim], [frame for frame, _ in parts])

    async def _take(self, victim: int, message: SumMessage) -> None:
        """Answer what a victim asks of a member, and keep what one says to the receiver."""
        if message.kind is Opening.AGREES:
            agrees = self._agrees[message.round_index, victim]
            if not agrees.done():  # repeated
                agrees.set_result(message.data)
        elif message.kind is Opening.REVEALS:
            self.revealed.append(message)
        else:
            t, part = message.round_index, self._plays(message.round_index)
            for to, kind, data in self._sums.take(message):
                lies = (part, kind) in ((WRONG_TAGS, Opening.AGREES), (WRONG_REVEALS, Opening.REVEALS))
                self.told[part] += lies
                false = data[:TAG_BYTES] + os.urandom(len(data) - TAG_BYTES)
                await self._asks(to, t, kind, false if lies else data)
