"""The timeline: one entry for one death, whoever says it and with whatever words; a second death is a second entry."""

import pytest

from peer.view.state.events import LoggedEvent
from peer.view.state.reducer import EventLog
from peer.view.state.timeline import TOGETHER_S, timeline


def entries(*events: tuple[float, int | None, str, dict]) -> list[tuple]:
    log = EventLog()
    log.append(LoggedEvent(at, peer, {"kind": kind} | data) for at, peer, kind, data in events)
    return [(entry["kind"], entry["peer"], entry["by"], entry["text"]) for entry in timeline(log.news)]


def says(at: float, by: int, state: str, reason: str = "", about: int = 3) -> tuple[float, int, str, dict]:
    return at, by, "neighbor", {"neighbor": about, "state": state, "reason": reason}


def test_one_death_is_one_entry_with_all_that_say_so():
    found = entries(
        says(9.0, 1, "alive"),
        says(20.0, 1, "dead", "silent for 5.0 s"),
        says(20.4, 2, "dead", "silent for 5.2 s"),
        says(25.0, 0, "dead", "refuses connections"),
    )
    assert found == [("dead", 3, [1, 2, 0], "dead: silent for 5.0 s")]


@pytest.mark.parametrize(
    ("later", "by"),
    [
        ([says(21.0, 1, "alive"), says(25.0, 1, "dead", "silent again")], [1]),  # the same neighbor says it again
        ([(21.0, 3, "start", {"incarnation": 2}), says(25.0, 2, "dead")], [2]),  # the peer has started since
        ([says(20.0 + TOGETHER_S + 1, 2, "dead")], [2]),  # much later
    ],
)
def test_another_death_is_another_entry(later, by):
    deaths = [entry for entry in entries(says(20.0, 1, "dead", "silent"), *later) if entry[0] == "dead"]
    assert [entry[2] for entry in deaths] == [[1], by]


def test_refusals_with_other_reasons_are_other_entries():
    def refused(at, by, reason):
        return at, by, "refused", {"neighbor": 3, "code": "malformed", "reason": reason}

    found = entries(refused(1.0, 1, "a"), refused(2.0, 1, "a"), refused(3.0, 1, "b"))
    assert [text for *_, text in found] == ["refused neighbor 3: malformed: a", "refused neighbor 3: malformed: b"]


def test_an_end_by_a_signal_or_an_error_is_news_and_a_good_one_is_not():
    ends = [(at, peer, "exit", {"exit_code": code}) for at, peer, code in ((1.0, 1, 0), (2.0, 2, -9), (3.0, 3, 12))]
    assert [(peer, text) for _, peer, _, text in entries(*ends)] == [
        (2, "its process ended, signal 9"),
        (3, "its process ended, exit code 12"),
    ]


def test_a_first_meeting_is_no_news_and_a_return_is():
    found = entries(says(1.0, 1, "alive"), says(2.0, 2, "alive"), says(20.0, 1, "dead"), says(30.0, 1, "alive"))
    assert [(kind, by) for kind, _, by, _ in found] == [("dead", [1]), ("alive", [1])]
