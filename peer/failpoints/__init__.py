"""Named places in a peer's process where a test can inject a fault; without rules from `arm` nothing happens.

    PEER_FAILPOINTS="fold.begin=kill@7; persist.sealed=error:ENOSPC@3-"

kills the process when `fold.begin` is reached for the 7th time, and makes every write of a checkpoint from the 3rd on
fail as on a full disk. Actions: ``kill`` (SIGKILL), ``pause`` (SIGSTOP), ``leave`` (SIGTERM), ``error:NAME`` (an
`OSError` of that errno), ``lose`` (the answer never arrives; only at `send.answer`). ``@n`` is the n-th time, ``@n-`` every
time from then on, ``@n-m`` a range; without it, the first time. Each fault writes a line to stderr, so that a test can show
that it fired.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from dataclasses import dataclass

from coordinator_free_bootstrap.errors import ConfigError

VARIABLE = "PEER_FAILPOINTS"
_RULE = re.compile(
    r"(?P<point>[a-z_.]+)=(?P<action>kill|pause|leave|lose|error):?(?P<name>[A-Z]*)(?:@(?P<first>\d+)(?P<span>-(?P<last>\d*))?)?"
)

POINTS = (
    "hello.begin",  # before this peer's hello to a neighbor
    "hello.end",  # after a handshake of either side, before the engine gets the event
    "train.begin",
    "train.step",  # before each step of the optimizer
    "train.end",
    "send.begin",  # before a model's header
    "send.frame",  # after each frame of a model
    "send.end",  # after the last frame, before the reply of the receiver is read
    "send.answer",  # before each wait for the admission or reply of a receiver
    "receive.frame",  # after each frame of a model
    "receive.end",  # after the last frame, before the engine gets the event
    "fold.begin",
    "fold.end",
    "close.begin",
    "close.end",
    "persist.begin",
    "persist.arrays",  # after the models are written
    "persist.sealed",  # after the manifest is written, before the rename
    "persist.renamed",
    "persist.end",  # after old checkpoints are removed, before the engine gets the event
    "partial.begin",  # as persist, of the state of a training inside a round
    "partial.arrays",
    "partial.sealed",
    "partial.renamed",
    "partial.end",
    "history.write",
    "audit.write",
    "part.closed",  # a part of history or audit log, before the next one begins
    "change.taken",  # a new graph file is read and checked; the round goes on
    "change.stopped",  # the peer has stopped for it
    "change.began",  # it listens again, and its state belongs to the new file
)


@dataclass(frozen=True, slots=True)
class _Rule:
    action: str  # kill, pause, leave, lose or error
    number: int  # errno of an error
    first: int
    last: float


SIGNALS = {"kill": "SIGKILL", "pause": "SIGSTOP", "leave": "SIGTERM"}  # by name: Windows lacks two of them
_rules: dict[str, _Rule] = {}
_reached: dict[str, int] = {}


def arm(text: str) -> None:
    """Replace the rules of this process; an empty text removes all rules.

    The present rules again keep their counts: a peer that is opened anew for another graph file goes on counting.

    Raises:
        ConfigError: a rule has another form, or its point is not in `POINTS`.
    """
    rules = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        match = _RULE.fullmatch(part)
        if match is None or match["point"] not in POINTS or ((match["action"] == "error") != bool(match["name"])):
            raise ConfigError(
                f"{VARIABLE}: expected point=kill, =pause, =leave, =lose or =error:ENOSPC, each with @n, @n- or @n-m, "
                f"got {part!r}. The points are {', '.join(POINTS)}."
            )
        if match["name"] and not hasattr(errno, match["name"]):
            raise ConfigError(f"{VARIABLE}: expected an errno name, such as EIO or ENOSPC, got error {match['name']}")
        first = int(match["first"] or 1)
        last = float(match["last"] or "inf") if match["span"] else first
        number = getattr(errno, match["name"]) if match["name"] else 0
        rules[match["point"]] = _Rule(match["action"], number, first, last)
    if rules == _rules:
        return
    _rules.clear()
    _reached.clear()
    _rules.update(rules)


def reach(point: str) -> bool:
    """Count a pass through a failpoint and execute its rule; return whether the answer is to be dropped.

    Raises:
        OSError: the rule is ``error:NAME``.
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
    if rule.action in SIGNALS:
        os.kill(os.getpid(), getattr(signal, SIGNALS[rule.action]))
