"""The verbs `peer chaos`, `peer status` and `peer report` on a running testbed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tools.running import until
from tools.warm_parent import Forked, executed


@pytest.mark.chaos
def test_commands_inject_faults_into_a_running_testbed_and_the_report_draws_them(tmp_path: Path) -> None:
    """The commands peer testbed --chaos, peer chaos DIR, peer status DIR and peer report DIR.

    The script pauses peer 3 before its first round, so that the run lasts until the commands have come.
    """
    out, script = tmp_path / "out", tmp_path / "chaos.toml"
    faults = ('do = "kill"\npeers = [1]\nfor_s = 1\n', 'do = "pause"\npeers = [3]\n')
    script.write_text("".join(f"[[event]]\nat_s = 0\n{fault}" for fault in faults))
    settings = [
        "--set",
        "run.rounds=30",
        "--set",
        "run.timeouts.suspicion_s=120",
        "--kind",
        "ring",
        "--peers",
        "4",
        "--proxy",
        "--out",
        str(out),
    ]
    testbed = Forked("testbed", *settings, "--chaos", script, log=tmp_path / "log")

    def run(*arguments: str, code: int = 0) -> str:
        done = executed(*arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    try:
        until((out / "chaos.jsonl").exists, "the first fault", logs=[testbed.out])
        run("chaos", str(out), "--now", "do=pause peers=2 for_s=300")
        status = run("status", str(out), code=40).splitlines()  # the paused peer does not answer
        run("chaos", str(out), "--now", "do=continue peers=2,3")
        assert testbed.wait(280) == 0, testbed.out.read_text()
    finally:
        testbed.kill()
    (row,) = (line for line in status if line.split()[:1] == ["2"])
    # Which of them depends on how far the peer had come when it was paused.
    assert any(reason in row for reason in ("no answer", "not reachable", "connection refused")), status
    assert status[0].split()[:4] == ["peer", "phase", "round", "accuracy"], status
    events = [json.loads(line)["text"] for line in (out / "chaos.jsonl").read_text().splitlines()]
    assert events[:2] == ["kill 1", "pause 3"]
    assert [text for text in events[2:] if text != "restart 1"] == ["pause 2", "continue 2, 3"]
    assert "restart 1" in events
    run("report", str(out))
    assert (out / "report" / "faults.png").stat().st_size > 10_000
