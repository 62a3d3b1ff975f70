"""Goal: privacy, policies and secure sums hold together on real processes: what benchmarks/hospitals.py shows, in few rounds."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import hospitals
from hospitals import HOSPITALS, KILLED, REFUSED_CODE, REFUSING

pytestmark = [pytest.mark.process, pytest.mark.slow]
ROUNDS = 6


def test_hospitals_go_on_when_one_is_killed_and_one_refuses(tmp_path: Path) -> None:
    sites = hospitals.show(tmp_path / "run", ROUNDS)
    assert [site.codes for site in sites] == [[0], [0], [-signal.SIGKILL, 0], [0], [REFUSED_CODE]]
    sentence = hospitals.refusal(sites[REFUSING])
    assert sentence.startswith(
        f"{sites[REFUSING].folder / 'policy.toml'}, line 5, epsilon_max: expected run.privacy.epsilon_max"
    )
    assert "of at most 2, got 4. The owner of this device decides" in sentence
    assert not sites[REFUSING].place.checkpoints.exists() and not sites[REFUSING].lines("start")
    spent = {}
    for site in sites[:REFUSING]:
        others = [n for n in range(HOSPITALS) if n not in (site.peer_id, REFUSING)]
        rounds = site.rounds()
        assert [*rounds] == [*range(ROUNDS)] and all(line["active"] for line in rounds.values())
        lost = [t for t, line in rounds.items() if not line["summed"]]
        broken = range(ROUNDS // 2 - 1, ROUNDS // 2 + 2)  # around the kill, by how far its neighbors were
        assert len(lost) in ((0, 1, 2) if site.peer_id == KILLED else (1, 2)) and {*lost} <= {*broken}, lost
        assert all(line["summed"] == others for t, line in rounds.items() if t not in lost)
        met = {line["neighbor"]: line["state"] for line in site.lines("neighbor")}
        assert met.get(REFUSING, "unknown") in ("unknown", "dead"), "it has said nothing"
        (end,) = site.lines("end")
        spent[site.peer_id] = end["epsilon"]
    repeated = spent.pop(KILLED)
    assert all(2.9 < epsilon <= 3.0 for epsilon in spent.values())
    assert max(spent.values()) <= repeated <= 4.0, "a broken round is paid for twice, if it had begun"
