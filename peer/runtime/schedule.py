"""When a peer works: as windows of the day, a command, and the policy of the device's owner allow it, all of them."""

from __future__ import annotations

import asyncio
import logging
import shlex
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from coordinator_free_bootstrap.errors import ConfigError, Option
from peer.runtime.day_quota import DayQuota
from peer.runtime.hours import Window, window_of
from peer.runtime.local_options import LocalOptions
from peer.runtime.policy import OwnersPolicy
from peer.store.state_dir import StateDir

log = logging.getLogger("peer")
CHECK_S = 2.0  # between two checks of the clock or runs of the command, which take a few milliseconds
COMMAND_S = 30.0  # a command without an exit code after this long says no


def parse_window(text: str) -> Window:
    """Return the window of a value of ``--when``.

    Raises:
        ConfigError: as `window_of`.
    """
    try:
        return window_of(text)
    except ValueError as error:
        raise ConfigError(f"{Option('when')}: {error}") from error


class Schedule:
    """Whether a peer may work now: in any of the windows, in the owner's hours and bytes, and if the command exits with code 0.

    Args:
        windows: none: the whole day.
        command: a program and its arguments; none: always.
        hours: of the policy, and where it has them; none: the whole day.
        quota: bytes of a day, of the policy.
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
        hours: tuple[Sequence[Window], str] = ((), ""),
        quota: DayQuota | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._windows, self._clock, self._pause = tuple(windows), clock, pause
        self._hours, self.quota = hours, quota
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

    async def closed(self) -> str:
        """Return why the peer may not work now; "" if it may."""
        now = self._clock()
        if self._windows and not any(window.holds(now) for window in self._windows):
            return f"outside the windows of {Option('when')}"
        hours, where = self._hours
        if hours and not any(window.holds(now) for window in hours):
            return f"outside the hours of the owner's policy ({where})"
        if self.quota is not None and (why := self.quota.closed(now)):
            return why
        return "" if not self._command or await self._says_yes() else f"the command of {Option('when')} says no"

    def count(self, fields: Mapping[str, object]) -> str:
        """Count the bytes of a line of the history; return why no further round may begin, "" if one may."""
        if self.quota is None:
            return ""
        self.quota.count(fields, self._clock())
        return self.quota.closed(self._clock())

    async def until_open(self) -> None:
        """Wait until the peer may work."""
        while await self.closed():
            await self._pause(CHECK_S)

    async def until_closed(self) -> str:
        """Wait until the peer may not work, and return why."""
        while not (why := await self.closed()):
            await self._pause(CHECK_S)
        return why

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


def schedule_of(options: LocalOptions, owners: OwnersPolicy | None = None) -> Schedule | None:
    """Return when a peer with these options, and this policy of its owner, may work; None: always.

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
    hours: tuple[list[Window], str] = ([], "")
    quota = None
    if owners is not None:
        hours = [window_of(text) for text in owners.policy.hours or ()], owners.where("hours")
        if (most := owners.policy.bytes_a_day) is not None:
            quota = DayQuota(most, owners.where("bytes_a_day"), StateDir(Path(options["state_dir"] or "")).history)
    if not (windows or commands or hours[0] or quota):
        return None
    command = commands[0] if commands else ""
    return Schedule([parse_window(text) for text in windows], command, hours=hours, quota=quota)


def _is_command(text: str) -> bool:
    """Return whether a text is a command: it has words, and does not begin with a digit, as each window does."""
    return bool(text.strip()) and not text.strip()[0].isdigit()
