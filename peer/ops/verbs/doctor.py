"""`peer doctor`: check whether this machine can run a peer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peer.cli.declared import takes_options
from peer.cli.json_output import json_option, print_json
from peer.runtime.local_options import LocalOptions, complete_options

if TYPE_CHECKING:
    from peer.ops.doctor.doctor import Check
    from peer.wire.proxy import HttpProxy

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@takes_options("local", LocalOptions, "state_dir", "device", "certs", "insecure", "listen", "proxy", "shard")
def doctor(
    *,
    neighbors: Annotated[
        Path | None, typer.Option("--neighbors", help="Graph file; also check the addresses in it.", readable=False)
    ] = None,
    peer_id: Annotated[
        int | None, typer.Option("--id", min=0, help="Check only the port and the neighbors of this peer.")
    ] = None,
    local: LocalOptions,
    json: Annotated[bool, json_option("Print the checks and edges as JSON.")] = False,
) -> None:
    """Check Python, torch, device, clock, disk, ports and neighbors; exit 1 if a check fails.

    With --neighbors, --id and the peer's key it tests each edge in both directions, over the route that a run takes (direct,
    proxy, tunnel or relay), and says what a round will cost. If the peer does not run, it listens in its place for some seconds;
    whether it runs is seen from its --state-dir, or from its port; in any case its tunnels stay.

    Example: peer doctor --neighbors graph.json --id 3 --certs certs
    """
    from dataclasses import asdict

    from peer.ops.doctor.doctor import Check, examine
    from peer.wire.proxy import HttpProxy

    options = complete_options(peer_id or 0, local)
    dialer = HttpProxy.chosen(options["proxy"])
    home = Path(options["state_dir"] or "") if peer_id is not None or "state_dir" in local else None
    settings = {name: options[name] for name in ("certs", "insecure", "listen", "shard")}
    runs = neighbors is not None and peer_id is not None and _runs(neighbors, peer_id, home or Path(), settings)
    checks = examine(
        graph_path=neighbors,
        peer_id=peer_id,
        state_dir=home,
        device=options["device"],
        proxy=dialer,
        listen=options["listen"],
        runs=runs,
    )
    edges: dict[str, Any] = {}
    if neighbors is not None and peer_id is not None and all(c.name != "graph file" or c.level == "ok" for c in checks):
        from coordinator_free_bootstrap.errors import PeerError, StorageError

        try:
            tested, edges = _edges(neighbors, peer_id, home or Path(), dialer, settings, runs=runs)
        except PeerError as error:
            fix = "give the folder with the key of this peer with --certs, or --insecure"
            tested = [Check("edges", "warn", f"not tested: {error}", "" if isinstance(error, StorageError) else fix)]
        checks += tested
    healthy = all(check.level != "fail" for check in checks)
    if json:
        rows = [asdict(check) for check in checks]
        print_json({"healthy": healthy, "checks": rows, **edges}, indent=2)
    else:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        from coordinator_free_bootstrap.strict_json import printable_lines
        from peer.view.report.tables import LINE_CHARACTERS_MAX

        table = Table("check", "", "result", "what to do", header_style="bold")
        for check in checks:
            mark = f"[{_STYLES[check.level]}]{check.level}[/]"
            found = printable_lines(check.found, LINE_CHARACTERS_MAX)
            table.add_row(escape(check.name), mark, escape(found), escape(check.fix))
        Console().print(table)
    if not healthy:
        raise typer.Exit(1)


def _runs(path: Path, peer_id: int, home: Path, given: dict[str, Any]) -> bool:
    """Return whether the peer runs on this machine: its state directory is in use, or it answers at its own port."""
    from coordinator_free_bootstrap import load_graph
    from coordinator_free_bootstrap.errors import PeerError
    from peer.runtime.assembly import LocalSettings
    from peer.runtime.process import key_files
    from peer.store.identity_files import held_by
    from peer.view.live.ask import plaintext_status
    from peer.wire.health import answers_here

    if held_by(home) is not None:
        return True
    try:
        own = given["listen"] or load_graph(path).node(peer_id).address
        if own and given["insecure"]:  # without keys, another peer may answer there
            return plaintext_status(f"127.0.0.1:{own.rpartition(':')[2]}")["peer_id"] == peer_id
        return bool(own) and answers_here(own, key_files(peer_id, LocalSettings.at(home, **given)))
    except (PeerError, OSError):  # the checks name the fault
        return False


def _edges(
    path: Path, peer_id: int, home: Path, proxy: HttpProxy | None, given: dict[str, Any], *, runs: bool
) -> tuple[list[Check], dict[str, Any]]:
    """Return the checks of all edges and of a round's cost, and the same as JSON-ready values.

    Raises:
        PeerError: keys or task cannot be used.
    """
    import asyncio
    from dataclasses import asdict

    from coordinator_free_bootstrap import load_graph
    from peer.learning.size import model_size
    from peer.ops.doctor.edge_costs import cost_check, edge_check, round_cost
    from peer.ops.doctor.edge_tests import edge_tests
    from peer.runtime.assembly import LocalSettings
    from peer.runtime.process import transport_security

    graph, settings = load_graph(path), LocalSettings.at(home, **given)
    tls = transport_security(peer_id, graph, settings)
    tests = asyncio.run(edge_tests(graph, peer_id, tls, proxy=proxy, listen=settings.options["listen"], runs=runs))
    cost = round_cost(tests, graph, peer_id, model_size(graph, peer_id, shard=settings.path("shard")).sent_bytes)
    checks = [*map(edge_check, tests), cost_check(cost, graph, peer_id)]
    return checks, {"edges": [asdict(test) for test in tests], "round": asdict(cost) if cost else None}
