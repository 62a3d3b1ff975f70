"""When a peer works: windows of the day, a command that says yes, or both."""

from __future__ import annotations

import asyncio
import logging
import re
import shlex
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from coordinator_free_bootstrap.errors import ConfigError, Option
from peer.runtime.local_options import LocalOptions

log = logging.getLogger("peer")
CHECK_S = 2.0  # between two checks of the clock or runs of the command, which take a few milliseconds
COMMAND_S = 30.0  # a command without an exit code after this long says no
_FORM = re.compile(r"(\d{2}):(\d{2})-(\d{2}):(\d{2})(?: +(\S+))?")


@dataclass(frozen=True)
class Window:
    """A time of each day, in minutes after midnight; it runs over midnight where ``end`` is before ``begin``."""

    begin: int
    end: int
    zone: tzinfo | None = None  # None: that of this machine

    def holds(self, now: datetime) -> bool:
        """Return whether a time with a zone is in the window, whose ``end`` is not."""
        local = now.astimezone(self.zone)
        minute = 60 * local.hour + local.minute
        inside = (self.begin <= minute, minute < self.end)
        return all(inside) if self.begin < self.end else any(inside)


def parse_window(text: str) -> Window:
    """Return the window of ``22:00-06:00`` or ``22:00-06:00 Europe/Berlin``.

    Raises:
        ConfigError: another form, or an unknown time zone.
    """
    match = _FORM.fullmatch(text.strip())
    numbers = [int(number) for number in match.groups()[:4]] if match else []
    begin, end = (60 * numbers[0] + numbers[1], 60 * numbers[2] + numbers[3]) if numbers else (0, 0)
    if not match or begin == end or begin >= 1440 or end > 1440 or max(numbers[1], numbers[3]) > 59:
        raise ConfigError(
            f"{Option('when')}: expected HH:MM-HH:MM with two different times from 00:00 to 24:00, and a time zone "
            f"after a space, such as '22:00-06:00 Europe/Berlin', got {text!r}"
        )
    return Window(begin, end, _zone(match[5]) if match[5] else None)


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ConfigError(
            f"{Option('when')}: expected the time zone UTC, or a name such as Europe/Berlin (pip install tzdata if all are "
            f"unknown), got {name!r}, which this machine does not know"
        ) from error


class Schedule:
    """Whether a peer may work now: in any of the windows, and if the command exits with code 0.

    Args:
        windows: none: the whole day.
        command: a program and its arguments; none: always.
        clock: returns the time, with a zone.
        pause: waits a number of seconds.

    Raises:
        ConfigError: the program of the command does not exist.
    """

    def __init__(
        self,
        windows: Sequence[Window] = (),
        command: str = "",
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._windows, self._clock, self._pause = tuple(windows), clock, pause
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise ConfigError(
                f"{Option('when')}: expected a program and arguments, got {command!r} ({error})"
            ) from error
        if self._command and shutil.which(self._command[0]) is None:
            raise ConfigError(
                f"{Option('when')}: expected a program that exits with 0 for yes, got no program {self._command[0]}"
            )

    async def is_open(self) -> bool:
        """Return whether the peer may work now."""
        if self._windows and not any(window.holds(self._clock()) for window in self._windows):
            return False
        return not self._command or await self._says_yes()

    async def until(self, wanted: bool) -> None:
        """Wait until the peer may work, or until it may not."""
        while await self.is_open() is not wanted:
            await self._pause(CHECK_S)

    async def _says_yes(self) -> bool:
        quiet = asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(*self._command, stdin=quiet, stdout=quiet, stderr=quiet)
        except OSError as error:
            log.warning(f"the command of {Option('when')} cannot be run, which counts as no: %s", error)
            return False
        try:
            async with asyncio.timeout(COMMAND_S):
                return await process.wait() == 0
        except TimeoutError:
            log.warning(f"the command of {Option('when')} has not ended in %g s, which counts as no", COMMAND_S)
            return False
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def schedule_of(options: LocalOptions) -> Schedule | None:
    """Return when a peer with these options may work; None: always.

    Raises:
        ConfigError: a window or the command is wrong.
    """
    texts = [options["when"]] if isinstance(options["when"], str) else options["when"]
    windows = [text for text in texts if not _is_command(text)]
    commands = [text for text in texts if _is_command(text)]
    if len(commands) > 1:
        raise ConfigError(
            f"{Option('when')}: expected one command, got {len(commands)}. Give one, such as a script of all."
        )
    command = commands[0] if commands else ""
    return Schedule([parse_window(text) for text in windows], command) if windows or command else None


def _is_command(text: str) -> bool:
    """Return whether a text is a command: it has words, and does not begin with a digit, as each window does."""
    return bool(text.strip()) and not text.strip()[0].isdigit()
