"""Two hosts shake hands: other classes are refused and logged at both, what may be meant is logged once at both."""

from __future__ import annotations

from dataclasses import replace

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from coordinator_free_bootstrap.meaning import Meaning
from peer.core import events as ev
from peer.core.messages import Hello
from peer.host import PeerHost
from peer.host.line_limits import LINES_PER_MINUTE_MAX
from tests.unit.host.test_host import RecordingWorld, hello_from, host_of

TABLE = Meaning(kind="classification", columns=("age", "bp"), read=("age", "bp"), open=("target", "columns", "classes"))


def host_with(*classes: str, **more: str) -> tuple[PeerHost, RecordingWorld]:
    host, world = host_of()
    meaning = replace(TABLE, classes=classes, **more).text()  # type: ignore[arg-type] # texts only
    host.compared = replace(host.compared, meaning=meaning)
    return host, world


def hello_with(host: PeerHost, sender: int, *classes: str, **more: str) -> Hello:
    """Return a hello of a peer with these classes, which the host accepts else."""
    return hello_from(host, sender, meaning=replace(TABLE, classes=classes, **more).text())  # type: ignore[arg-type]


def lines(world: RecordingWorld) -> list[str]:
    return [line.message for (line,) in world.named("log")]


def test_other_classes_are_refused_counted_and_logged_with_both_values() -> None:
    host, world = host_with("1", "2")
    reply = host.answer_hello(hello_with(host, 1, "2", "3"))
    assert reply.refusal.code is RefusalCode.MEANING_MISMATCH
    assert "peer 0 has [1, 2], peer 1 has [2, 3]" in reply.refusal.reason
    assert host.state.refusals == {RefusalCode.MEANING_MISMATCH: 1}
    assert not host.state.neighbors[1].connected
    assert any("refused peer 1: meaning_mismatch: classes differ" in line for line in lines(world))


def test_the_refused_peer_logs_its_own_sentence_and_knows_that_no_retry_helps() -> None:
    host, world = host_with("1", "2")
    other, _ = host_with("2", "3")
    reply = other.answer_hello(replace(host.hello_to(1), sender=1))
    cut = Refusal(RefusalCode.MEANING_MISMATCH, "cut")
    host.hello_answered(1, replace(reply, hello=hello_with(host, 1, "2", "3"), refusal=cut))
    assert any(
        "peer 1 refused the handshake: meaning_mismatch: classes differ: peer 0 has [1, 2]" in line
        for line in lines(world)
    )
    assert '--set \'run.task_options.classes=["1", "2", "3"]\'' in host.state.neighbors[1].refusal.reason


def test_refusals_name_the_classes_of_all_peers_met_and_hellos_carry_them_on() -> None:
    host, world = host_with("1", "2")
    host.answer_hello(hello_with(host, 1, "2", "3"))
    host.answer_hello(hello_with(host, 2, "3", "4"))
    assert any('classes=["1", "2", "3", "4"]' in line for line in lines(world))
    last, world = host_with("1", "2")
    last.answer_hello(
        replace(hello_with(last, 1, "2", "3"), meaning=host.compared.meaning.replace('["1","2"]', '["2","3"]', 1))
    )
    assert any('classes=["1", "2", "3", "4"]' in line for line in lines(world))


def test_classes_of_another_run_are_not_learned() -> None:
    host, _ = host_with("1", "2")
    before = host.compared.meaning
    assert host.answer_hello(replace(hello_with(host, 1, "8", "9"), manifest_digest="x")).refusal
    assert host.answer_hello(hello_with(host, 7, "8", "9")).refusal.code is RefusalCode.NOT_A_NEIGHBOR
    assert host.compared.meaning == before


def test_another_task_file_is_accepted_and_logged_once_for_each_neighbor() -> None:
    host, world = host_with("1", "2", task_file="aaaa")
    hello = hello_with(host, 1, "1", "2", task_file="bbbb")
    for _ in range(3):
        assert host.answer_hello(hello).refusal is None
    host.post(ev.HandshakeDone(hello, answered=True))
    told = [line for line in lines(world) if "task files" in line]
    assert told == [
        "peer 1: task files (SHA-256) differ: peer 0 has aaaa, peer 1 has bbbb; "
        "if that is not meant, give both the same task file"
    ]
    host.answer_hello(hello_with(host, 2, "1", "2", task_file="cccc"))
    assert any("peer 2: task files (SHA-256) differ: peer 0 has aaaa, peer 2 has cccc" in line for line in lines(world))


def test_the_caller_logs_another_task_file_too() -> None:
    host, world = host_with("1", "2", task_file="aaaa")
    reply = host.answer_hello(hello_with(host, 1, "1", "2", task_file="aaaa"))
    host.hello_answered(1, replace(reply, hello=hello_with(host, 1, "1", "2", task_file="bbbb")))
    assert [line for line in lines(world) if "task files (SHA-256) differ" in line]
    assert host.state.neighbors[1].connected


def test_a_neighbor_that_changes_its_file_all_the_time_cannot_fill_the_log() -> None:
    host, world = host_with("1", "2", task_file="aaaa")
    for i in range(LINES_PER_MINUTE_MAX + 5):
        host.answer_hello(hello_with(host, 1, "1", "2", task_file=f"file {i}"))
    assert len([line for line in lines(world) if "task files" in line]) == LINES_PER_MINUTE_MAX


def test_the_same_record_says_nothing() -> None:
    host, world = host_with("1", "2", task_file="aaaa")
    assert host.answer_hello(hello_with(host, 1, "1", "2", task_file="aaaa")).refusal is None
    assert not [line for line in lines(world) if "differ" in line]
