"""`peer testbed`: run all peers of a graph on this machine."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from coordinator_free_bootstrap.errors import written_as
from coordinator_free_bootstrap.generators import GraphOptions
from coordinator_free_bootstrap.options import fields_of, refuse_given
from peer.bed.options import BedOptions, Computing, bed_options
from peer.cli.declared import takes_options
from peer.cli.json_output import json_option
from peer.cli.problem import IN_KIND, by_set, local_settings, names_settings, set_keys
from peer.cli.trace import traceback_wanted

IN_SETTINGS = tuple(fields_of(Computing))


@takes_options("options", BedOptions, *(name for name in fields_of(BedOptions) if name not in IN_SETTINGS))
@takes_options("drawn", GraphOptions, "peers", "kind")
@written_as({**by_set(IN_SETTINGS), **IN_KIND})
@names_settings
def testbed(
    *,
    graph_file: Annotated[
        Path | None, typer.Argument(help="Graph file. Default: make a graph, of --peers and --kind.", readable=False)
    ] = None,
    drawn: GraphOptions,
    options: BedOptions,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A manifest key, e.g. run.task=digits, run.task=path/to/file.py:object or run.rounds=20; or data_root=FOLDER of "
            "the built-in data sets, threads=NUMBER of PyTorch per peer (default: cores divided by peers), or amp=bf16, mixed "
            "precision. Repeatable.",
        ),
    ] = None,
    chaos: Annotated[
        Path | None, typer.Option(help="Script of faults (TOML) to run, see examples/chaos.toml.", readable=False)
    ] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Serve a page of the run while it lasts; see peer watch --help.")
    ] = False,
    as_json: Annotated[bool, json_option("Print the report as JSON.")] = False,
) -> None:
    """Run all peers of a graph as processes on this machine and report; Ctrl-C stops all of them.

    The task is checked once before the peers start. Exit code 1 if a peer failed.

    If --out has an earlier run with the same graph and settings, that run is resumed.
    While it runs, peer chaos and peer status take the directory as their argument.

    Example: peer testbed --peers 8 --set run.rounds=20 --out out
    """
    from contextlib import nullcontext

    from rich.console import Console

    from coordinator_free_bootstrap import load_graph
    from coordinator_free_bootstrap.extras import require
    from coordinator_free_bootstrap.validation import counted
    from peer.bed.api.bed_run import BedRun
    from peer.bed.chaos.script import Script, load_script
    from peer.bed.testbed.directory import clear, default_graph, with_settings
    from peer.tasks.given_keys import warn_without_effect
    from peer.view.live.watch import LiveProgress
    from peer.view.page.process import PACKAGES, beside
    from peer.view.verbs.report import report

    if graph_file is not None:
        refuse_given("a graph file is given", **drawn)
    console = Console(stderr=True, markup=False)
    if page:
        require(PACKAGES, "--page")
    computing, given = local_settings(settings, IN_SETTINGS)
    options = bed_options({**options, **computing})
    out = Path(options["out"])
    if options["fresh"]:
        clear(out)
    graph = load_graph(graph_file) if graph_file else default_graph(drawn, out)
    graph = with_settings(graph, given)
    warn_without_effect(
        graph.manifest, set_keys(given), lambda warning: console.print(f"warning: {warning}", soft_wrap=True)
    )
    sizes = f"{counted(len(graph.nodes), 'peer')}, {counted(len(graph.edges), 'edge')}"
    console.print(f"{sizes}, algorithm {graph.manifest.algorithm}, in {out}")
    script = load_script(chaos) if chaos else Script()
    run = BedRun(graph, options, script, source=str(chaos), traceback=traceback_wanted())
    console.print(f"learns {run.goal}", soft_wrap=True, highlight=False)

    def tell(failure: str) -> None:
        console.print(failure, style="red", soft_wrap=True)

    try:
        with beside(out) if page else nullcontext(), LiveProgress(run.watcher, console) as progress:
            failed = run.run(progress.update, tell)
            progress.update(force=True)
    except KeyboardInterrupt:
        command = shlex.join(["peer", *(word for word in sys.argv[1:] if word != "--fresh")])
        console.print(f"interrupted; to resume the run: {command}", soft_wrap=True)
        raise typer.Exit(130) from None
    report(out, json=as_json)
    if run.problem:
        console.print(f"warning: {run.problem}", soft_wrap=True)
    for peer_id, code in failed.items():
        tell(run.failure(peer_id, code))
    raise typer.Exit(1 if failed else 0)
