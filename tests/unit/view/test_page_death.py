"""A death is in a frame of the page within the suspicion time plus 2 s, counted on the clock of the events."""

from __future__ import annotations

import pytest

from coordinator_free_bootstrap.manifest import Timeouts
from peer.core.liveness import Liveness, NeighborState, check_all, next_check
from peer.view.page.film import Film
from peer.view.page.server import REFRESH_S
from peer.view.state.events import LoggedEvent
from peer.view.state.reducer import EventLog
from peer.view.state.view import View

BEGAN, KILLED = 1000.0, 1010.25


@pytest.mark.parametrize("suspicion_s", [2.0, 5.0, 60.0])
def test_a_kill_is_in_a_frame_within_the_suspicion_time_plus_2_s(suspicion_s: float) -> None:
    timeouts = Timeouts(suspicion_s=suspicion_s)
    neighbor = Liveness(timeouts)
    neighbor.answered(KILLED)  # its last word
    log = EventLog((0, 1))
    log.append([LoggedEvent(BEGAN, peer, {"kind": "start", "incarnation": 1}) for peer in (0, 1)])
    log.append([LoggedEvent(BEGAN, 0, {"kind": "neighbor", "neighbor": 1, "state": "alive"})])
    log.append(
        [LoggedEvent(KILLED, None, {"kind": "fault", "do": "kill", "text": "kill 1", "result": "done", "peers": [1]})]
    )
    film, seen = Film(View(log, None)), log.cursor
    film.everything()
    while (now := next_check([neighbor])) is not None:
        for change in check_all({1: neighbor}, now, timeouts.heartbeat_s).values():
            log.append(
                [
                    LoggedEvent(
                        now, 0, {"kind": "neighbor", "neighbor": 1, "state": str(change.after), "reason": change.reason}
                    )
                ]
            )
    assert neighbor.state is NeighborState.DEAD
    kind, message = film.message(seen)  # what the next look at the files sends
    [died] = [at for at, peer, status in message["statuses"] if (peer, status) == (1, "dead")]
    assert kind == "more" and [0, 1, "dead"] in [link[1:] for link in message["links"]]
    shown = BEGAN + died + REFRESH_S
    assert KILLED < shown <= KILLED + suspicion_s + 2.0
    assert [entry["peer"] for entry in message["state"]["timeline"] if entry["kind"] == "dead"] == [1]
