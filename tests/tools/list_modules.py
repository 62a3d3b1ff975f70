"""The command `peer`, of which each peer writes to ``modules.json`` in its state directory what its process has imported.

    python list_modules.py run --id 0 ...

``before`` are the modules at the call of `run_peer_with_file`, or of `run_peer` in a testbed, ``after`` those at its end.
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

from peer.cli.main import main
from peer.runtime import graph_changes, process


def _listing(run: Any) -> Any:
    @functools.wraps(run)
    def listed(peer_id: int, graph: Any, settings: Any, *others: Any) -> int:
        before = sorted(sys.modules)
        code: int = run(peer_id, graph, settings, *others)
        lists = {"before": before, "after": sorted(sys.modules)}
        (settings.state_dir / "modules.json").write_text(json.dumps(lists))
        return code

    return listed


if __name__ == "__main__":
    graph_changes.run_peer_with_file = _listing(graph_changes.run_peer_with_file)
    process.run_peer = _listing(process.run_peer)
    main()
