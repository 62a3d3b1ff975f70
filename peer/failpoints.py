"""Named places in the shell of a peer where a test can make a fault happen; nothing happens unless `arm` was given any.

    PEER_FAILPOINTS="fold.begin=kill@7; persist.sealed=error:ENOSPC@3-"

kills the process with signal 9 when `fold.begin` is reached for the 7th time, and lets every write of a checkpoint from
the 3rd on fail as on a full disk. Actions: ``kill``, ``stop`` (SIGSTOP), ``leave`` (SIGTERM),
``error:NAME`` (an `OSError` of that errno), ``lose`` (what comes there never comes; only at `send.answer`).
``@n`` is the n-th time, ``@n-`` every time from it on, ``@n-m`` a span; without it, the first. Each one says on stderr that
it has fired, so that no test can pass without its fault.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from dataclasses import dataclass
from typing import Literal

from coordinator_free_bootstrap.errors import ConfigError

VARIABLE = "PEER_FAILPOINTS"
_RULE = re.compile(
    r"(?P<point>[a-z_.]+)=(?P<action>kill|stop|leave|lose|error):?(?P<name>[A-Z]*)(?:@(?P<first>\d+)(?P<span>-(?P<last>\d*))?)?"
)

POINTS = (
    "hello.begin",  # before this peer's hello to a neighbor
    "hello.end",  # after a handshake, whoever began it, before the engine hears of it
    "train.begin",
    "train.step",  # before each step of the optimizer
    "train.end",
    "send.begin",  # before a model's header
    "send.frame",  # after each frame of a model
    "send.end",  # after the last frame, before the receiver's reply is read
    "send.answer",  # before each wait for a receiver's admission or reply
    "receive.frame",  # after each frame of a model
    "fold.begin",
    "fold.end",
    "close.begin",
    "close.end",
    "persist.begin",
    "persist.arrays",  # the models are written
    "persist.sealed",  # the manifest is written, nothing renamed yet
    "persist.renamed",
    "persist.end",  # durable, old ones removed, the engine not told yet
    "history.write",
)


@dataclass(frozen=True, slots=True)
class _Rule:
    action: Literal["kill", "stop", "leave", "lose", "error"]
    number: int  # errno of an error
    first: int
    last: float


_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "leave": signal.SIGTERM}
_rules: dict[str, _Rule] = {}
_reached: dict[str, int] = {}


def arm(text: str) -> None:
    """Set the rules of this process, replacing earlier ones; an empty text disarms all.

    Raises:
        ConfigError: a rule is not of the form above, or names no point of `POINTS`.
    """
    rules = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        match = _RULE.fullmatch(part)
        if match is None or match["point"] not in POINTS or ((match["action"] == "error") != bool(match["name"])):
            raise ConfigError(
                f"{VARIABLE}: found {part!r}; allowed: point=kill, =stop, =leave, =lose or =error:ENOSPC, each with @n, @n- or "
                f"@n-m; the points are {', '.join(POINTS)}"
            )
        if match["name"] and not hasattr(errno, match["name"]):
            raise ConfigError(
                f"{VARIABLE}: found error {match['name']}; allowed: a name of errno, such as EIO or ENOSPC"
            )
        first = int(match["first"] or 1)
        last = float(match["last"] or "inf") if match["span"] else first
        number = getattr(errno, match["name"]) if match["name"] else 0
        rules[match["point"]] = _Rule(match["action"], number, first, last)  # type: ignore[arg-type]
    _rules.clear()
    _reached.clear()
    _rules.update(rules)


def reach(point: str) -> bool:
    """Say that a point is reached; return whether what comes there is to be lost.

    Raises:
        OSError: a rule says so.
    """
    if _rules and (rule := _rules.get(point)) is not None:
        _reached[point] = count = _reached.get(point, 0) + 1
        if rule.first <= count <= rule.last:
            _fire(point, count, rule)
            return rule.action == "lose"
    return False


def _fire(point: str, count: int, rule: _Rule) -> None:
    os.write(2, f"failpoint {point} reached {count}: {rule.action}\n".encode())
    if rule.action == "error":
        raise OSError(rule.number, os.strerror(rule.number))
    if rule.action in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[rule.action])
