"""Times of day in which a peer works."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

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


def window_of(text: str) -> Window:
    """Return the window of ``22:00-06:00`` or ``22:00-06:00 Europe/Berlin``.

    Raises:
        ValueError: another form, or an unknown time zone.
    """
    match = _FORM.fullmatch(text.strip())
    numbers = [int(number) for number in match.groups()[:4]] if match else []
    begin, end = (60 * numbers[0] + numbers[1], 60 * numbers[2] + numbers[3]) if numbers else (0, 0)
    if not match or begin == end or begin >= 1440 or end > 1440 or max(numbers[1], numbers[3]) > 59:
        raise ValueError(
            "expected HH:MM-HH:MM with two different times from 00:00 to 24:00, and a time zone after a space, such as "
            f"'22:00-06:00 Europe/Berlin', got {text!r}"
        )
    return Window(begin, end, _zone(match[5]) if match[5] else None)


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            "expected the time zone UTC, or a name such as Europe/Berlin (pip install tzdata if all are unknown), got "
            f"{name!r}, which this machine does not know"
        ) from error
