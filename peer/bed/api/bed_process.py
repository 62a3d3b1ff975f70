"""The parent process of a testbed that another program started: ``python -m peer.bed.api.bed_process``.

Peers are forked, which is safe only in a process without threads; a notebook has many. The first line of stdin is the request,
one JSON object; answers are JSON lines on stdout: ``{"started": true, "goal": sentence}``, a ``{"failure": sentence}`` for each
peer that fails, and at the end ``{"failed": {id: [code, sentence]}}``; or ``{"error": ...}`` in place of the first or the last.
At the end of stdin, when the program has ended, the testbed stops its peers.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import traceback
from typing import Any

from coordinator_free_bootstrap import parse_graph
from coordinator_free_bootstrap.errors import PeerError, names_for
from coordinator_free_bootstrap.extras import named_packages
from peer.bed.api.bed_run import BedRun
from peer.bed.options import bed_options

log = logging.getLogger("peer")


def main() -> None:
    """Run the testbed of the request on stdin."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")  # what else prints to stdout goes to the log
    os.dup2(2, 1)
    logging.basicConfig(stream=sys.stderr, level="INFO", format="%(asctime)s %(levelname)s %(message)s")
    try:
        with names_for("python"), named_packages():
            _run(json.loads(sys.stdin.buffer.readline()), answers)
    except PeerError as error:
        notes = getattr(error, "__notes__", [])
        _say(answers, error={"class": type(error).__name__, "text": str(error), "notes": notes})
    except Exception as error:  # a bug of this program: the other process raises it with the trace
        trace = "".join(traceback.format_exception(error))
        _say(answers, error={"class": "LocalProtocolError", "text": f"the testbed failed: {error!r}", "notes": [trace]})


def _run(request: dict[str, Any], answers: object) -> None:
    run = BedRun(parse_graph(request["graph"]), bed_options(request["options"]))
    log.info("learns %s", run.goal)
    _say(answers, started=True, goal=run.goal)

    def tell(sentence: str) -> None:
        log.error(sentence)
        _say(answers, failure=sentence)

    failed = run.run(lambda: run.watcher.refresh() if _caller_lives() else run.bed.stop(), tell)
    if run.problem:
        log.warning(run.problem)
    _say(
        answers,
        problem=run.problem,
        failed={peer_id: [code, run.failure(peer_id, code)] for peer_id, code in failed.items()},
    )


def _caller_lives() -> bool:
    """Return whether stdin is open: it becomes readable only at its end."""
    return not select.select([0], [], [], 0)[0]


def _say(answers: Any, **answer: object) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
