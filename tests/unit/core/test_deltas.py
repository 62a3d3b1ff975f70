"""Goal: sender and receiver of deltas have the same model after every message, whatever was lost; nothing is left out forever."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import Refusal, RefusalCode, RemoteProtocolError
from peer.core.deltas import DeltaReceiver, DeltaSender, Published, name_of
from peer.core.encoding import DELTAS, FULL, decode, payload_size
from peer.core.messages import ModelHeader, Outcome, PushReply
from peer.core.model_store import SnapshotKey
from peer.core.schema import Schema, TensorSpec

SCHEMA = Schema((TensorSpec("weight", (30, 7)), TensorSpec("bias", (11,))))
FOLDED, DUPLICATE = Outcome.FOLDED, Outcome.DUPLICATE
NEIGHBOR, LIFE = 1, 5


def header(encoding: str, round_index: int) -> ModelHeader:
    size_bytes = payload_size(SCHEMA, encoding)
    return ModelHeader(0, 1, round_index, 0, 0, 0, 1, 4, 1.0, size_bytes, encoding)


def models(count: int) -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    steps = draw.normal(size=(count, SCHEMA.size)) * 0.1
    return list(np.cumsum(steps, axis=0, dtype=np.float32))


def publish(sender: DeltaSender, round_index: int, model: np.ndarray) -> Published:
    key = SnapshotKey(round_index, 0, 0)
    if key not in sender._offers:
        sender.offer(key, model)
    return sender.published(key)()


def sent(sender: DeltaSender, encoding: str, round_index: int, model: np.ndarray, life: int = LIFE):
    published = publish(sender, round_index, model)
    return *sender.message(NEIGHBOR, life, header(encoding, round_index), published), published.model


def received(receiver: DeltaReceiver, head: ModelHeader, payload) -> np.ndarray:
    model = receiver.restore(head, payload) if head.base else decode(payload, SCHEMA, head.encoding)
    receiver.keep(head, model)
    return model


@pytest.mark.parametrize("encoding", DELTAS)
def test_both_ends_have_the_same_model_after_every_message(encoding: str) -> None:
    sender, receiver = DeltaSender(SCHEMA, encoding, {}), DeltaReceiver(SCHEMA)
    for t, model in enumerate(models(6)):
        head, payload, published = sent(sender, encoding, t, model)
        assert (head.encoding, head.base != 0) == ((encoding, True) if t else (FULL, False))
        assert head.size_bytes == memoryview(payload).nbytes == payload_size(SCHEMA, head.encoding)
        assert received(receiver, head, payload).tobytes() == published.tobytes()
        sender.answered(NEIGHBOR, LIFE, head, FOLDED)
        sender.drop(t)


@pytest.mark.parametrize("encoding", DELTAS)
def test_what_is_left_out_is_sent_later(encoding: str) -> None:
    """A model that stays as it is arrives completely: delta_top1 sends the largest hundredth of what is missing."""
    sender, last = DeltaSender(SCHEMA, encoding, {}), models(2)
    publish(sender, 0, last[0])
    for t in range(1, 300):
        published = publish(sender, t, last[1])
        sender.drop(t)
    np.testing.assert_allclose(published.model, last[1], rtol=0, atol=1e-5)


def test_a_whole_model_follows_a_lost_acknowledgment_and_leaves_the_same_model() -> None:
    encoding, (first, second, third) = "delta_top10", models(3)
    sender, receiver = DeltaSender(SCHEMA, encoding, {}), DeltaReceiver(SCHEMA)
    head, payload, _ = sent(sender, encoding, 0, first)
    received(receiver, head, payload)  # its acknowledgment is lost
    head, payload, published = sent(sender, encoding, 1, second)
    assert head.encoding == FULL
    assert received(receiver, head, payload).tobytes() == published.tobytes()
    sender.answered(NEIGHBOR, LIFE, head, DUPLICATE)  # it was sent twice
    head, payload, published = sent(sender, encoding, 2, third)
    assert head.encoding == encoding
    assert received(receiver, head, payload).tobytes() == published.tobytes()


@pytest.mark.parametrize("reply", [Outcome.STALE, Outcome.UNUSED, Refusal(RefusalCode.MALFORMED)])
def test_a_model_that_was_not_folded_is_no_base(reply: PushReply) -> None:
    sender, (first, second) = DeltaSender(SCHEMA, "delta_int8", {}), models(2)
    head, _, _ = sent(sender, "delta_int8", 0, first)
    sender.answered(NEIGHBOR, LIFE, head, reply)
    assert sent(sender, "delta_int8", 1, second)[0].encoding == FULL


def test_a_restarted_neighbor_gets_the_whole_model() -> None:
    sender, (first, second) = DeltaSender(SCHEMA, "delta_int8", {}), models(2)
    head, _, _ = sent(sender, "delta_int8", 0, first)
    sender.answered(NEIGHBOR, LIFE, head, FOLDED)
    assert sent(sender, "delta_int8", 1, second, life=LIFE + 1)[0].encoding == FULL
    assert sent(sender, "delta_int8", 1, second)[0].encoding == "delta_int8"


def test_a_receiver_without_the_base_refuses_and_gets_the_whole_model() -> None:
    sender, receiver, (first, second) = DeltaSender(SCHEMA, "delta_int8", {}), DeltaReceiver(SCHEMA), models(2)
    head, _, _ = sent(sender, "delta_int8", 0, first)
    sender.answered(NEIGHBOR, LIFE, head, FOLDED)
    head, payload, _ = sent(sender, "delta_int8", 1, second)
    for other in (None, second):  # no model, and another one
        if other is not None:
            receiver.keep(head, other)
        with pytest.raises(RemoteProtocolError, match="Send the whole model") as caught:
            receiver.restore(head, payload)
        assert caught.value.refusal.code is RefusalCode.NO_BASE
    sender.answered(NEIGHBOR, LIFE, head, Refusal(RefusalCode.NO_BASE))
    assert sent(sender, "delta_int8", 1, second)[0].encoding == FULL


def test_a_restarted_sender_publishes_the_same_models() -> None:
    first, second, third = models(3)
    before = DeltaSender(SCHEMA, "delta_top10", {})
    for t, model in enumerate((first, second)):
        publish(before, t, model)
    after = DeltaSender(SCHEMA, "delta_top10", before.models())
    assert publish(after, 2, third).model.tobytes() == publish(before, 2, third).model.tobytes()


@pytest.mark.parametrize("dropped", [False, True])
def test_models_that_no_neighbor_took_are_published_too(dropped: bool) -> None:
    """As a restarted peer does, whose neighbors have closed the round: its next models must be those of the first life."""
    taken, untaken = DeltaSender(SCHEMA, "delta_top10", {}), DeltaSender(SCHEMA, "delta_top10", {})
    for t, model in enumerate(models(4)):
        wanted = publish(taken, t, model)
        untaken.offer(SnapshotKey(t, 0, 0), model)
        if dropped:
            untaken.drop(t)
    assert (
        untaken.models()["0"].tobytes()
        == wanted.model.tobytes()
        == untaken.published(SnapshotKey(3, 0, 0))().model.tobytes()
    )


def test_slots_and_senders_have_bases_of_their_own() -> None:
    receiver, (first, second) = DeltaReceiver(SCHEMA), models(2)
    head = header("delta_int8", 0)
    receiver.keep(head, first)
    delta = replace(head, base=name_of(first))
    payload = bytes(payload_size(SCHEMA, "delta_int8"))
    assert np.array_equal(receiver.restore(delta, payload), first)
    for other in (replace(delta, slot=1), replace(delta, sender=2), replace(delta, base=name_of(second))):
        with pytest.raises(RemoteProtocolError):
            receiver.restore(other, payload)


@pytest.mark.parametrize("encoding", DELTAS)
def test_with_one_edge_each_neighbor_has_published_models_of_its_own(encoding: str) -> None:
    sender, receivers = DeltaSender(SCHEMA, encoding, {}), {n: DeltaReceiver(SCHEMA) for n in (1, 2)}
    for t, model in enumerate(models(6)):
        neighbor, key = 1 + t % 2, SnapshotKey(t, 0, 0)
        sender.offer(key, model, neighbor)
        published = sender.published(key)()
        head, payload = sender.message(neighbor, LIFE, header(encoding, t), published)
        assert (head.encoding, head.base != 0) == ((encoding, True) if t > 1 else (FULL, False))
        assert received(receivers[neighbor], head, payload).tobytes() == published.model.tobytes()
        sender.answered(neighbor, LIFE, head, FOLDED)
        sender.drop(t)
    assert sorted(sender.models()) == ["0/1", "0/2"]
    after = DeltaSender(SCHEMA, encoding, sender.models())
    after.offer(SnapshotKey(6, 0, 0), model, 1)
    sender.offer(SnapshotKey(6, 0, 0), model, 1)
    again, on = (each.published(SnapshotKey(6, 0, 0))() for each in (after, sender))
    assert (again.base, again.name) == (on.base, on.name)
