"""`peer testbed`: N real peers on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peer.cli.problem import TaskOption, with_task


def testbed(
    graph_file: Annotated[Path | None, typer.Argument(help="A graph file; without one, a graph is made.")] = None,
    peers: Annotated[int | None, typer.Option(min=1, help="Without a graph file: how many peers; 8.")] = None,
    kind: Annotated[str | None, typer.Option(help="Without one: its kind, see peer graph make; erdos-renyi.")] = None,
    out: Annotated[Path, typer.Option(help="Where each peer's state, log and models go.")] = Path("out"),
    task: TaskOption = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a manifest key, e.g. --set run.rounds=20. Repeatable.")
    ] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where built-in data sets lie.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="PyTorch threads per peer; default: its share of cores.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete what an earlier run left in --out.")] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Plaintext between the peers, instead of TLS with keys made on the spot.")
    ] = False,
    chaos: Annotated[
        Path | None, typer.Option(help="A script of faults (TOML) to carry out, see examples/chaos.toml.")
    ] = None,
    proxy: Annotated[
        bool, typer.Option("--proxy", help="Join the peers through fault proxies, so that peer chaos can break edges.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Run all peers of a graph as processes on this machine and report; Ctrl-C stops all of them.

    The exit code is 1 if any peer failed. A directory that holds an earlier run of the same graph and settings is
    resumed. While it runs, peer chaos and peer status find it by its directory.

    Example: peer testbed --peers 8 --set run.rounds=20 --out out
    """
    from rich.console import Console

    from coordinator_free_bootstrap import load_graph
    from peer.chaos.director import Director
    from peer.chaos.network import FaultyNetwork
    from peer.chaos.script import Script, load_script
    from peer.cli.report import report
    from peer.observe.watch import LiveProgress, TestbedWatcher
    from peer.testbed import Testbed, clear, made_graph, must_be_the_same_run, warm_up, with_settings

    talk = Console(stderr=True, markup=False)
    if fresh:
        clear(out)
    graph = load_graph(graph_file) if graph_file else made_graph(kind, peers, out)
    graph = with_settings(graph, with_task(task, settings))
    must_be_the_same_run(graph, out)
    script = load_script(chaos) if chaos else Script()
    script.check(graph, str(chaos))
    talk.print(f"{len(graph.nodes)} peers, {len(graph.edges)} edges, algorithm {graph.manifest.algorithm}, in {out}")
    warm_up(graph, data_root)
    bed = Testbed(graph, out, data_root=data_root, threads=threads, insecure=insecure)
    network = FaultyNetwork(bed.graph) if proxy or script.needs_network else None
    bed.graph_of = network.graph_of if network else bed.graph_of
    watcher = TestbedWatcher(out, graph)
    director = Director(bed, script, network, watcher.rounds_completed)
    bed.start(*(set(graph.ids) - director.late))
    try:
        with LiveProgress(watcher, talk) as progress:
            failed = director.run(progress.update)
            progress.update(force=True)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    report(out, json=as_json)
    for peer_id, code in failed.items():
        talk.print(f"peer {peer_id} failed with exit code {code}: see {out}/peer-{peer_id}/peer.log", style="red")
    raise typer.Exit(1 if failed else 0)
