"""`PeerHost` with a world that records its calls: order of events, refusals, pulls, shared arrivals, every effect.

Whole runs of hosts: tests/simulation and tests/unit/experiment.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from coordinator_free_bootstrap import make_graph
from coordinator_free_bootstrap.errors import ConfigError, LocalProtocolError, Refusal, RefusalCode, RemoteProtocolError
from peer.algorithms.dfedavg import DFedAvg
from peer.core import effects as do
from peer.core import events as ev
from peer.core.arrivals import Arrival
from peer.core.encoding import decode
from peer.core.messages import Heartbeat, Hello, ModelHeader, Outcome, Phase, PullRequest, Select
from peer.core.stages import Stage
from peer.host import PeerHost, Probe, World, build_host
from peer.host.line_limits import LINES_PER_MINUTE_MAX
from tests.simulation.options import manifest
from tests.simulation.trainer import QuadraticLearner

SIZE = 6
GRAPH = make_graph("complete", 3)


class RecordingWorld:
    """Implements `World`: it answers nothing and keeps each call as (method, arguments)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def __getattr__(self, method: str) -> Any:
        if method.startswith("__"):
            raise AttributeError(method)
        return lambda *arguments: self.calls.append((method, arguments))

    def named(self, method: str) -> list[tuple[Any, ...]]:
        """Return the arguments of each call of a method."""
        return [arguments for name, arguments in self.calls if name == method]


def host_of(**run: Any) -> tuple[PeerHost, RecordingWorld]:
    """Return peer 0 of a complete graph of three, and its world."""
    graph = replace(GRAPH, manifest=manifest(**run))
    learner = QuadraticLearner(0, graph.manifest.clusters, SIZE, graph.manifest.seed)
    host, world = build_host(0, graph, learner, 7, clock=lambda: 0.0), RecordingWorld()  # type: ignore[arg-type]
    host.connect(world)  # type: ignore[arg-type]
    return host, world


def hello_from(host: PeerHost, sender: int, **changes: Any) -> Hello:
    """Return a hello that the host accepts, except for the changes."""
    mine = host.hello_to(1)
    return replace(mine, **({"sender": sender, "incarnation": 1, "seen_incarnation": 0} | changes))


def connect(host: PeerHost, *neighbors: int) -> None:
    """Complete the handshakes with neighbors; the first round begins when all are connected."""
    for neighbor in neighbors:
        host.post(ev.HandshakeDone(hello_from(host, neighbor), answered=True))


def header_from(host: PeerHost, sender: int, **changes: Any) -> ModelHeader:
    """Return the header of a model, except for the changes."""
    header = ModelHeader(sender, 1, 0, 0, 0, 0, 1, 4, 1.0, host.state.model_bytes, host.manifest.encoding)
    return replace(header, **changes)


# ---- events --------------------------------------------------------------------------------------------------------------


def test_events_posted_by_an_effect_follow_after_all_effects_of_the_present_event() -> None:
    host, world = host_of()
    steps: list[str] = []

    class Order(Probe):
        def before(self, event: ev.Event) -> None:
            steps.append(f"before {type(event).__name__}")

        def after(self, event: ev.Event, effects: Any) -> None:
            steps.append(f"after {type(event).__name__}")

    host.probe = Order()

    def answer_at_once(neighbor: int) -> None:
        steps.append(f"hello {neighbor}")
        host.post(ev.HandshakeFailed(neighbor, "no answer"))

    world.send_hello = answer_at_once  # type: ignore[attr-defined]
    host.post(ev.Tick())
    failed = ["before HandshakeFailed", "after HandshakeFailed"]
    assert steps == ["before Tick", "hello 1", "hello 2", "after Tick", *failed, *failed]


def test_closed_host_ignores_events() -> None:
    host, world = host_of()
    host.closed = True
    host.post(ev.Tick())
    assert not world.calls


# ---- refusals ------------------------------------------------------------------------------------------------------------


def test_each_refusal_is_counted_once_and_logged_and_recorded_a_few_times_a_minute() -> None:
    host, world = host_of()
    connect(host, 1, 2)
    world.calls.clear()
    wrong = header_from(host, 1, size_bytes=4)
    for _ in range(LINES_PER_MINUTE_MAX + 4):
        rejection = host.rejects_offer(wrong)
        assert rejection is not None and rejection.code is RefusalCode.WRONG_SIZE
    assert host.state.refusals == {RefusalCode.WRONG_SIZE: LINES_PER_MINUTE_MAX + 4}
    logged = [line for (line,) in world.named("log")]
    assert len(logged) == LINES_PER_MINUTE_MAX and logged[0].message.startswith("refused peer 1: wrong_size: ")
    assert [kind for kind, _ in world.named("record")] == ["refused"] * LINES_PER_MINUTE_MAX


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"wire_version": 99}, "wire versions differ"),
        ({"frozen_digest": "other"}, "frozen weights differ"),
        ({"schema_digest": "other"}, "model schemas differ"),
        ({"incarnation": 0}, ""),  # a neighbor's mistake, which says nothing about the run
    ],
)
def test_peer_that_refuses_a_hello_notes_that_the_neighbor_does_not_agree(changes: dict[str, Any], reason: str) -> None:
    host, world = host_of()
    host.post(ev.Tick())
    assert host.answer_hello(hello_from(host, 1, **changes)).refusal is not None
    noted = host.state.neighbors[1].refusal
    assert (noted.reason if noted else "").startswith(reason) and bool(noted) is bool(reason)
    assert host.engine.stage is Stage.JOINING and not world.named("stop")
    host.answer_hello(hello_from(host, 2, **changes))
    assert world.named("stop") == ([("refused",)] if reason else [])


def test_refusal_of_the_engine_is_counted_once() -> None:
    host, world = host_of()
    connect(host, 1, 2)
    world.calls.clear()
    arrival = Arrival(header_from(host, 1, slot=9))
    host.post(ev.ArrivalOffered(arrival))
    assert host.state.refusals == {RefusalCode.SLOT_OUT_OF_RANGE: 1}
    ((answered, reply),) = world.named("answer_arrival")
    assert answered is arrival and reply.code is RefusalCode.SLOT_OUT_OF_RANGE
    assert [fields["code"] for kind, fields in world.named("record") if kind == "refused"] == ["slot_out_of_range"]


def test_messages_without_a_handshake_are_refused_and_not_counted() -> None:
    host, _ = host_of()
    host.post(ev.Tick())
    assert host.answer_heartbeat(Heartbeat(1, 1, 0, Phase.RUNNING)).code is RefusalCode.NO_HANDSHAKE
    assert host.answer_control(Select(1, 1, 0)).code is RefusalCode.NO_HANDSHAKE
    assert host.answer_pull(PullRequest(1, 1, 0)).code is RefusalCode.NO_HANDSHAKE
    assert not host.state.refusals


def test_stopped_peer_refuses_hellos_offers_and_control_messages() -> None:
    host, world = host_of()
    connect(host, 1)
    host.post(ev.LeaveRequested())
    assert host.engine.stage is Stage.STOPPED and world.named("stop") == [("left",)]
    for call in (
        lambda: host.answer_hello(hello_from(host, 1)),
        lambda: host.rejects_offer(header_from(host, 1)),
        lambda: host.answer_control(Select(1, 1, 0)),
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            call()
        assert caught.value.refusal.code is RefusalCode.SHUTTING_DOWN


# ---- pulls ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["float32", "int8"])
def test_pull_is_answered_with_the_present_model(encoding: str) -> None:
    host, _ = host_of(encoding=encoding)
    connect(host, 1, 2)
    answer = host.answer_pull(PullRequest(1, 1, 1))
    assert not isinstance(answer, RefusalCode)
    header, payload = answer
    assert (header.slot, header.encoding, header.size_bytes) == (1, encoding, host.state.model_bytes)
    model = decode(payload(), host.format.schema, encoding)
    assert np.allclose(model, host.workspace.models.model(1), atol=0 if encoding == "float32" else 0.1)


@pytest.mark.parametrize(("dp_epsilon", "sample_count"), [(None, 4), (1.0, 1)])
def test_answer_to_a_pull_of_a_private_run_carries_no_sample_count(dp_epsilon: float | None, sample_count: int) -> None:
    options = {"min_cluster_samples": 1, "dp_epsilon": dp_epsilon}
    host, _ = host_of(algorithm="fedspd", options=options)
    connect(host, 1, 2)
    host.post(host.work(do.Work("assign", 0)))
    answer = host.answer_pull(PullRequest(1, 1, 0))
    assert not isinstance(answer, RefusalCode)
    assert answer[0].sample_count == sample_count


def test_pull_of_an_unknown_slot_is_refused() -> None:
    host, _ = host_of()
    connect(host, 1, 2)
    assert host.answer_pull(PullRequest(1, 1, 2)).code is RefusalCode.SLOT_OUT_OF_RANGE


def test_pulled_models_are_used_only_if_all_of_them_pass() -> None:
    host, _ = host_of()
    connect(host, 1, 2)
    good, bad = np.zeros(SIZE, np.float32), np.full(SIZE, np.nan, np.float32)
    replies = [(header_from(host, 1, slot=slot), memoryview(model).cast("B")) for slot, model in enumerate((good, bad))]
    with pytest.raises(RemoteProtocolError) as caught:
        host.receiving.pulled(1, replies)
    assert caught.value.refusal.code is RefusalCode.NON_FINITE and not host.workspace.pulled


# ---- arrivals ------------------------------------------------------------------------------------------------------------


def read_only(host: PeerHost, *values: float) -> Arrival:
    """Return an arrival that other receivers share."""
    model = np.array([*values, *[0.0] * (SIZE - len(values))], np.float32)
    model.flags.writeable = False
    return Arrival(header_from(host, 1), model.view(np.uint8), model)


def test_shared_arrival_is_copied_before_it_is_clipped() -> None:
    host, _ = host_of(screening={"clip": 0.5})
    connect(host, 1, 2)
    host.work(do.Work("assign", 0))
    arrival = read_only(host, 100.0)
    shared = arrival.model
    center = host.workspace.models.model(0).copy()
    host.workspace.models.begin_round(frozenset())
    host.receiving.fold(do.FoldArrival(arrival, (do.Target(0),)))
    assert shared is not None and shared[0] == 100.0 and arrival.model is None
    # The average of the slot and an arrival at distance 0.5 is 0.25 away.
    assert np.linalg.norm(host.workspace.models.model(0) - center) == pytest.approx(0.25, rel=1e-4)


def test_shared_arrival_is_copied_before_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    host = keeping(monkeypatch, 1000)
    arrival = read_only(host, 1.0, 2.0)
    shared = arrival.model
    host.receiving.fold(do.FoldArrival(arrival, ()))
    (kept,) = host.workspace.arrivals
    assert kept.model is not None and kept.model is not shared
    assert kept.model.flags.writeable and kept.model.tolist() == shared.tolist()  # type: ignore[union-attr]


def test_buffer_of_a_shared_arrival_is_not_reused() -> None:
    host, _ = host_of()
    arrival, following = read_only(host, 1.0), Arrival(header_from(host, 0))
    shared = arrival.model
    host.receiving.fold(do.FoldArrival(arrival, (do.Target(0),)))
    host.receiving.reserve(following)
    assert following.model is not None and following.model is not shared


@pytest.mark.parametrize(
    ("values", "screening", "code"),
    [
        ((1.0,), {}, None),
        ((float("nan"),), {}, RefusalCode.NON_FINITE),
        ((float("inf"),), {}, RefusalCode.NON_FINITE),
        ((1e6,), {"norm_bound": 2.0}, RefusalCode.NORM_BOUND),
        ((0.1,), {"norm_bound": 2.0}, None),
    ],
)
def test_complete_arrival_is_screened(
    values: tuple[float, ...], screening: dict[str, float], code: RefusalCode | None
) -> None:
    host, _ = host_of(screening=screening)
    connect(host, 1, 2)
    host.work(do.Work("assign", 0))
    rejection = host.receiving.screen(read_only(host, *values))
    assert (rejection and rejection.code) == code


# ---- effects -------------------------------------------------------------------------------------------------------------

OFFER = Arrival(ModelHeader(1, 1, 0, 0, 0, 0, 1, 4, 1.0, 4 * SIZE, "float32"))
EFFECTS: list[tuple[do.Effect, str | None]] = [  # the effect, and the method of the world that it calls
    (do.SendHello(1), "send_hello"),
    (do.SendHeartbeat(1, Heartbeat(0, 7, 0, Phase.RUNNING)), "send_heartbeat"),
    (do.SendControl(1, Select(0, 7, 0)), "send_control"),
    (do.SendModel(1, ModelHeader(0, 7, 0, 0, 0, 0, 1, 4, 1.0, 4 * SIZE, "float32")), "push"),
    (do.CancelSend(1), "cancel_send"),
    (do.RetryIfStalled(1, 2.0), "retry_if_stalled"),
    (do.ReadArrival(OFFER), "read_arrival"),
    (do.AnswerArrival(OFFER, Outcome.UNUSED), "answer_arrival"),
    (do.FoldArrival(OFFER, ()), "fold_arrival"),
    (do.TakeSnapshot(0, 0, (0,)), "take_snapshot"),
    (do.DropSnapshots(0), None),
    (do.Work("train", 0), "work"),
    (do.Pull(1), "pull"),
    (do.WriteCheckpoint(0, {}), "write_checkpoint"),
    (do.Record("caught_up", {"from_round": 0, "to_round": 2}), "record"),
    (do.Log("info", "a line"), "log"),
    (do.SetTimer(101.0), "set_timer"),
    (do.Stop("left"), "stop"),
]


def test_every_effect_and_every_method_of_the_world_has_a_case() -> None:
    assert {type(effect) for effect, _ in EFFECTS} == set(get_args(do.Effect)) - {do.Agree}  # see test_shared_scaling
    methods = {name for name in vars(World) if not name.startswith("_")}
    asked_for_a_value = {"now", "raise_incarnation"}
    assert {method for _, method in EFFECTS} - {None} == methods - asked_for_a_value


@pytest.mark.parametrize(("effect", "method"), EFFECTS, ids=lambda value: type(value).__name__)
def test_effect_calls_one_method_of_the_world(effect: do.Effect, method: str | None) -> None:
    host, world = host_of()
    host.execute([effect])
    assert [name for name, _ in world.calls] == ([method] if method else [])


def test_effects_are_executed_in_order() -> None:
    host, world = host_of()
    host.execute([effect for effect, _ in EFFECTS])
    assert [name for name, _ in world.calls] == [method for _, method in EFFECTS if method]


def test_unknown_effect_is_an_error() -> None:
    host, _ = host_of()
    with pytest.raises(AssertionError):
        host.execute([object()])  # type: ignore[list-item]


def test_refused_arrival_is_recorded_before_its_reply_is_sent() -> None:
    host, world = host_of()
    host.execute([do.AnswerArrival(OFFER, Refusal(RefusalCode.MALFORMED, "why"))])
    assert [name for name, _ in world.calls] == ["log", "record", "answer_arrival"]
    assert world.named("answer_arrival") == [(OFFER, Refusal(RefusalCode.MALFORMED, "why"))]


# ---- snapshots and payloads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["float32", "int8"])
def test_snapshot_is_encoded_once_for_all_neighbors_and_dropped_with_its_round(encoding: str) -> None:
    host, _ = host_of(encoding=encoding)
    connect(host, 1, 2)
    host.sending.take_snapshot(do.TakeSnapshot(0, 0, (0,)))
    header = header_from(host, 0)
    first, second = host.sending.message_to(1, header), host.sending.message_to(2, header)
    assert first()[1] is second()[1] is host.sending.message_to(1, header)()[1]
    host.drop_snapshots(1)
    with pytest.raises(LocalProtocolError, match="no snapshot"):
        host.sending.message_to(1, header)


class Keeps(DFedAvg):
    """Keeps the model of each neighbor until the round closes."""

    def kept_models(self) -> int:
        return self.degree

    def targets(self, state: Any, header: ModelHeader) -> tuple[do.Target, ...]:
        return ()


def keeping(monkeypatch: pytest.MonkeyPatch, most: int, kept: int | None = None) -> PeerHost:
    monkeypatch.setattr("peer.algorithms.registry.algorithm_named", lambda name: Keeps)
    if kept is not None:
        monkeypatch.setattr(Keeps, "kept_models", lambda self: kept)
    return host_of(algorithm="dfedavg", limits={"kept_bytes_max": most})[0]


def test_memory_for_kept_arrivals_is_checked_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    keeping(monkeypatch, 2 * 4 * SIZE)
    with pytest.raises(ConfigError, match=r"expected 48 or more, got 47.* keeps up to 2 arrivals"):
        keeping(monkeypatch, 2 * 4 * SIZE - 1)


def test_memory_for_a_trimmed_mean_is_checked_at_the_start() -> None:
    needed, screening = 3 * 2 * 4 * SIZE, {"trimmed_mean": 0.2}
    host_of(clusters=3, screening=screening, limits={"kept_bytes_max": needed})
    with pytest.raises(ConfigError, match=r"keeps up to 6 arrivals .* trimmed mean 0\.2"):
        host_of(clusters=3, screening=screening, limits={"kept_bytes_max": needed - 1})


def test_an_algorithm_keeps_no_more_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    host = keeping(monkeypatch, 1000, kept=1)
    for place, sender in enumerate((1, 2)):
        model = np.ones(SIZE, np.float32)
        effect = do.FoldArrival(Arrival(header_from(host, sender), model.view(np.uint8), model), ())
        if place == 0:
            host.receiving.fold(effect)
            assert [arrival.model is not None for arrival in host.workspace.arrivals] == [True]
        else:
            with pytest.raises(LocalProtocolError, match="kept_models says 1"):
                host.receiving.fold(effect)
