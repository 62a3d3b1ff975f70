"""The part of the shell that speaks to neighbors: handshakes, beats, announcements, models, pulls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from coordinator_free_bootstrap import check_hello
from coordinator_free_bootstrap.errors import (
    IdentityError,
    NeighborUnavailable,
    Refusal,
    RemoteProtocolError,
    StorageError,
)
from peer import failpoints
from peer.core import effects as do
from peer.core import events as ev
from peer.core.averaging import Vector, norm_squared
from peer.core.messages import HelloReply, ModelHeader, Outcome, PushReply
from peer.core.model_store import SnapshotKey
from peer.core.screening import check_norm
from peer.shell.loop import Loop
from peer.wire.codec import ErrorFeedback, Payload, decode, encode
from peer.wire.inbound import PullRequest

log = logging.getLogger("peer")


class Speaking(Loop):
    """Executes effects that send."""

    def _do_greet(self, effect: do.Greet) -> None:
        self._spawn(self._greet(effect.neighbor))

    async def _greet(self, neighbor: int) -> None:
        failpoints.reach("hello.begin")
        try:
            reply = await self._links[neighbor].hello(self._hello_for(neighbor))
        except NeighborUnavailable as error:
            self.post(ev.GreetFailed(neighbor, None, str(error)))
            return
        except RemoteProtocolError as error:
            self.post(ev.GreetFailed(neighbor, error.code, error.sentence))
            return
        failpoints.reach("hello.end")
        self.post(self._judge(neighbor, reply))

    def _judge(self, neighbor: int, reply: HelloReply) -> ev.Event:
        if reply.refusal is not None:
            if reply.refusal is Refusal.OLD_INCARNATION:
                self._outgrow(neighbor, reply.hello.seen_incarnation)
                return ev.GreetFailed(neighbor, None, reply.reason)
            return ev.GreetFailed(neighbor, reply.refusal, reply.reason)
        known = self.engine.views[neighbor].last_incarnation
        problem = check_hello(
            self._hello_for(neighbor), reply.hello, neighbors=self.engine.neighbors, last_incarnation=known
        )
        if problem is not None:
            self._on_refused(neighbor, *problem)
            return ev.GreetFailed(neighbor, *problem)
        return ev.Greeted(reply.hello, answered=True)

    def _outgrow(self, neighbor: int, seen: int) -> None:
        """A neighbor knows a later life of this peer, whose disk was lost: go above it."""
        about = {"neighbor": neighbor, "message_kind": "incarnation"}
        if seen < self.engine.incarnation:
            return
        try:
            self.history.incarnation = self.parts.incarnations.claim(above=seen)
        except (IdentityError, StorageError) as error:  # a number that is not on disk must not be used: later, perhaps
            log.error(
                "peer %d knows a later life of this peer, and that cannot be gone above: %s",
                neighbor,
                error,
                extra=about,
            )
            return
        new = self.history.incarnation
        log.warning("peer %d knows incarnation %d of this peer: now %d", neighbor, seen, new, extra=about)
        self.post(ev.Outgrown(self.history.incarnation))

    def _do_sendbeat(self, effect: do.SendBeat) -> None:
        self._spawn(self._beat(effect))

    async def _beat(self, effect: do.SendBeat) -> None:
        link = self._links[effect.neighbor]
        sent_before = link.payload_bytes_sent
        try:
            self.post(ev.BeatAnswered(effect.neighbor, await link.beat(effect.beat)))
        except NeighborUnavailable:
            moving = link.payload_bytes_sent > sent_before
            self.post(ev.BeatAnswered(effect.neighbor, lost=True, moving=moving))
        except RemoteProtocolError as error:
            self.post(ev.BeatAnswered(effect.neighbor, error.code))

    def _do_sendannounce(self, effect: do.SendAnnounce) -> None:
        link = self._links[effect.neighbor]
        self._send(effect.neighbor, lambda: link.announce(effect.announce))

    def _do_sendmodel(self, effect: do.SendModel) -> None:
        header = effect.header
        key = SnapshotKey(header.round_index, header.step, header.slot)
        snapshot = self.bench.models.offered(key)  # now, because it may be forgotten before the fold thread is free
        self._send(effect.neighbor, lambda: self._push(effect.neighbor, header, key, snapshot))

    def _send(self, neighbor: int, call: Callable[[], Coroutine[Any, Any, PushReply | Refusal | None]]) -> None:
        self._sending[neighbor] = self._spawn(self._deliver(neighbor, call))

    async def _deliver(
        self, neighbor: int, call: Callable[[], Coroutine[Any, Any, PushReply | Refusal | None]]
    ) -> None:
        try:
            answer = await call()
        except NeighborUnavailable as error:
            event: ev.Event = ev.SendFailed(neighbor, str(error))
        except RemoteProtocolError as error:
            event = ev.Sent(neighbor, Outcome.REFUSED, error.code, error.sentence)
        else:
            if isinstance(answer, PushReply):
                event = ev.Sent(neighbor, answer.outcome, answer.refusal, answer.reason)
            else:
                event = ev.Sent(neighbor, Outcome.REFUSED if answer else Outcome.FOLDED, answer)
        if self._sending.get(neighbor) is asyncio.current_task():
            del self._sending[neighbor]
        self.post(event)

    async def _push(self, neighbor: int, header: ModelHeader, key: SnapshotKey, snapshot: Vector) -> PushReply:
        payload = self._payloads.get(key)
        if payload is None:
            payload = await self._on(self._fold, self._encoded, key, snapshot)
        return await self._links[neighbor].push(header, payload)

    def _encoded(self, key: SnapshotKey, model: Vector) -> Payload:
        if key not in self._payloads:
            encoding = self.manifest.encoding
            if encoding == "int8":
                feedback = self._feedback.setdefault(key.slot, ErrorFeedback(self.parts.schema))
                self._payloads[key] = feedback.encode(model, encoding)
            else:
                self._payloads[key] = encode(model, self.parts.schema, encoding)
        return self._payloads[key]

    def _do_cancelsend(self, effect: do.CancelSend) -> None:
        task = self._sending.pop(effect.neighbor, None)
        if task is not None:
            task.cancel()

    def _do_sendagain(self, effect: do.SendAgain) -> None:
        if self._links[effect.neighbor].quiet_for_s() >= effect.quiet_s:
            self._do_cancelsend(do.CancelSend(effect.neighbor))
            self.post(ev.Unanswered(effect.neighbor))

    def _do_snapshot(self, effect: do.Snapshot) -> None:
        for slot in effect.slots:
            key = SnapshotKey(effect.round_index, effect.step, slot)
            self.bench.models.snapshot(key, self.parts.algorithm.outgoing(self.bench, slot))

    def _do_forgetsnapshots(self, effect: do.ForgetSnapshots) -> None:
        self.bench.models.forget_snapshots(effect.before_round)
        for key in [key for key in self._payloads if key.round_index < effect.before_round]:
            del self._payloads[key]

    def _do_pull(self, effect: do.Pull) -> None:
        self._spawn(self._pull(effect.neighbor))

    async def _pull(self, neighbor: int) -> None:
        models, round_index = [], 0
        try:
            async with asyncio.timeout(self.manifest.timeouts.round_deadline_s):
                for slot in range(len(self.bench.models)):
                    request = PullRequest(self.peer_id, self.engine.incarnation, slot)
                    header, payload = await self._links[neighbor].pull(request, size_bytes=self.engine.model_bytes)
                    model = decode(payload, self.parts.schema, header.encoding)
                    own = norm_squared(self.bench.models.model(slot))
                    rejection = check_norm(norm_squared(model), own, self.manifest.screening.norm_bound)
                    if rejection is not None or header.encoding != self.manifest.encoding:
                        code = rejection.code if rejection else Refusal.WRONG_ENCODING
                        raise RemoteProtocolError(
                            code, f"a pulled model: {rejection.reason if rejection else 'encoding'}"
                        )
                    models.append(model)
                    round_index = max(round_index, header.round_index)
        except (NeighborUnavailable, RemoteProtocolError, TimeoutError) as error:
            about = {"neighbor": neighbor, "message_kind": "pull"}
            log.warning("pull from peer %d failed: %s", neighbor, error, extra=about)
            self.post(ev.Pulled(neighbor, False, reason=str(error)))
            return
        self.bench.pulled[neighbor] = models
        self.post(ev.Pulled(neighbor, True, round_index))
