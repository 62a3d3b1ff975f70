"""Windows of work on an injected clock, and the command that says yes."""

from __future__ import annotations

import asyncio
import shlex
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coordinator_free_bootstrap.errors import ConfigError
from peer.runtime import schedule as module
from peer.runtime.local_options import complete_options
from peer.runtime.policy import OwnersPolicy
from peer.runtime.schedule import CHECK_S, Schedule, parse_window, schedule_of


def at(hour: int, minute: int = 0, day: int = 10, month: int = 1) -> datetime:
    return datetime(2026, month, day, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("09:00-17:30 UTC", [at(9), at(17, 29)], [at(8, 59), at(17, 30), at(0)]),
        ("22:00-06:00 UTC", [at(22), at(0), at(5, 59)], [at(6), at(21, 59)]),
        ("00:00-24:00 UTC", [at(0), at(23, 59)], []),
        ("22:00-24:00 UTC", [at(23, 59)], [at(0)]),
        ("00:00-00:01 UTC", [at(0)], [at(0, 1), at(23, 59)]),
        ("22:00-06:00 Europe/Berlin", [at(21), at(4, 59), at(20, month=7)], [at(20), at(5), at(4, month=7)]),
    ],
)
def test_windows_hold_their_begin_and_not_their_end(text: str, inside: list[datetime], outside: list[datetime]) -> None:
    window = parse_window(text)
    assert all(window.holds(now) for now in inside)
    assert not any(window.holds(now) for now in outside)


def test_a_window_without_a_zone_is_in_that_of_the_machine() -> None:
    now = datetime.now().astimezone()
    text = f"{now:%H:%M}-{now + timedelta(minutes=1):%H:%M}"
    assert parse_window(text).holds(now)
    assert not parse_window(text).holds(now + timedelta(minutes=1))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "22-06",
        "22:00",
        "25:00-06:00",
        "22:60-23:00",
        "06:00-06:00",
        "24:00-06:00",
        "1:00-2:00",
        "22:00-06:00 Mars/X",
    ],
)
def test_another_window_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--when: expected"):
        parse_window(text)


def test_it_waits_for_the_next_of_several_windows_and_for_their_end() -> None:
    now = at(7)

    async def pause(seconds: float) -> None:
        nonlocal now
        now += timedelta(seconds=seconds)

    windows = [parse_window("12:00-12:30 UTC"), parse_window("22:00-06:00 UTC")]
    schedule = Schedule(windows, clock=lambda: now, pause=pause)
    seen = []
    for wait in (schedule.until_open, schedule.until_closed) * 2:
        asyncio.run(wait())
        seen.append(now)
    expected = [at(12), at(12, 30), at(22), at(6, day=11)]
    assert all(
        timedelta(0) <= found - due < timedelta(seconds=CHECK_S) for found, due in zip(seen, expected, strict=True)
    )


def is_open(schedule: Schedule | None) -> bool:
    assert schedule is not None
    return not asyncio.run(schedule.closed())


def python(code: str) -> str:
    return shlex.join([sys.executable, "-c", code])


@pytest.mark.parametrize(("code", "answer"), [("exit(0)", True), ("exit(1)", False), ("import os; os.abort()", False)])
def test_exit_code_zero_is_yes(code: str, answer: bool) -> None:
    assert is_open(Schedule(command=python(code))) is answer


def test_windows_and_command_must_both_allow_it(tmp_path: Path) -> None:
    flag = tmp_path / "on battery"
    command = shlex.join(["test", "!", "-e", str(flag)])
    inside, outside = (Schedule([parse_window("09:00-17:00 UTC")], command, clock=lambda h=h: at(h)) for h in (9, 18))  # type: ignore[misc]
    assert is_open(inside) and not is_open(outside)
    flag.touch()
    assert not is_open(inside)


def test_a_command_that_does_not_end_says_no_and_is_killed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "COMMAND_S", 0.05)
    assert not is_open(Schedule(command="sleep 1000"))
    assert "has not ended in 0.05 s, which counts as no" in caplog.text


@pytest.mark.parametrize("command", ["no-such-program --now", "test 'unclosed"])
def test_a_command_that_cannot_be_run_is_refused(command: str) -> None:
    with pytest.raises(ConfigError, match="--when: expected"):
        Schedule(command=command)


def test_a_text_that_begins_with_no_digit_is_a_command() -> None:
    both = schedule_of(complete_options(0, {"when": ["00:00-24:00", python("exit(1)")]}))
    assert not is_open(both)
    with pytest.raises(ConfigError, match=r"--when: expected one command, got 2\. Give one"):
        schedule_of(complete_options(0, {"when": ["true", "false"]}))
    with pytest.raises(ConfigError, match=r"--when: expected .*HH:MM-HH:MM"):
        schedule_of(complete_options(0, {"when": "7"}))
    with pytest.raises(ConfigError, match=r"--when: expected a program .*, got no program morning"):
        schedule_of(complete_options(0, {"when": "morning"}))


def owners(folder: Path, text: str) -> OwnersPolicy:
    (folder / "policy.toml").write_text(text)
    return OwnersPolicy.read(folder / "policy.toml")


def test_the_owners_hours_and_the_windows_of_the_option_must_both_allow_it(tmp_path: Path) -> None:
    policy = owners(tmp_path, 'plaintext = true\nhours = ["22:00-06:00 UTC", "12:00-13:00 UTC"]\n')
    schedule = schedule_of(complete_options(0, {"when": "20:00-23:00 UTC"}), policy)
    assert schedule is not None
    reasons = {}
    for hour in (12, 21, 22, 23):
        schedule._clock = lambda hour=hour: at(hour)  # type: ignore[misc]
        reasons[hour] = asyncio.run(schedule.closed())
    assert reasons == {
        12: "outside the windows of --when",
        21: f"outside the hours of the owner's policy ({tmp_path}/policy.toml, line 2, hours)",
        22: "",
        23: "outside the windows of --when",
    }


def test_a_policy_without_hours_and_bytes_makes_no_schedule(tmp_path: Path) -> None:
    assert schedule_of(complete_options(0, {}), owners(tmp_path, "plaintext = true\n")) is None
    hours = schedule_of(complete_options(0, {}), owners(tmp_path, 'hours = ["00:00-24:00"]\n'))
    assert is_open(hours)
    limited = schedule_of(complete_options(0, {"state_dir": str(tmp_path)}), owners(tmp_path, "bytes_a_day = 10\n"))
    assert is_open(limited) and limited is not None
    assert limited.count({"wire_bytes_sent": 6}), "a second round of 6 bytes would pass 10"
    assert not is_open(limited)
