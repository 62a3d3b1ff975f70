"""`peer chaos`: faults on a running testbed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from coordinator_free_bootstrap.errors import Option
from coordinator_free_bootstrap.options import refuse_given
from peer.bed.chaos.faults import FAULTS

HELP_OF_FAULTS = "\n\n".join(
    ["Faults (do), keys, [optional keys]:", *(f"{name} {fault.keys}: {fault.help}" for name, fault in FAULTS.items())]
).replace("[", "\\[")
app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(epilog=HELP_OF_FAULTS)
def chaos(
    directory: Annotated[Path, typer.Argument(help="The --out directory of a running testbed.", readable=False)],
    script: Annotated[
        Path | None, typer.Option(help="Script of faults (TOML), see examples/chaos.toml.", readable=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Instead of a script: draw random faults.")] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="SECONDS[:EVERY]",
            help="With --seed: seconds until all faults are over, and mean seconds between two faults.",
            show_default="60:5",
        ),
    ] = None,
    at_once: Annotated[
        str | None, typer.Option("--now", help='One fault now: "do=kill peers=3 for_s=5" or "do=heal".')
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the script; do not run it.")] = False,
) -> None:
    """Inject faults into a running testbed: kill, pause and restart peers; block and slow edges.

    Faults of edges need a testbed with --proxy. Each fault is recorded in DIRECTORY/chaos.jsonl; peer report draws them.

    Example: peer chaos out --seed 7 --for 60
    """
    from rich.console import Console

    from coordinator_free_bootstrap import load_graph
    from coordinator_free_bootstrap.errors import ConfigProblem, UsageError
    from peer.bed.chaos.control import ask
    from peer.bed.chaos.remote import run_faults
    from peer.bed.chaos.script import Script, load_script, parse_event, random_script

    if sum(choice is not None for choice in (script, seed, at_once)) != 1:
        got = [
            f"--{name}" for name, value in (("script", script), ("seed", seed), ("now", at_once)) if value is not None
        ]
        expected = "one of --script FILE, --seed NUMBER and --now EVENT"
        raise UsageError(ConfigProblem("peer chaos", expected, " and ".join(got) or "none"))
    if seed is None:
        refuse_given(f"{Option('seed')} is not given", **{"for": duration})
    lasts_s, every_s = _seconds(duration or "60:5")
    graph = load_graph(directory / "graph.json")
    if seed is not None:
        state = ask(directory, {"do": "state"})
        proxies = isinstance(state, dict) and state.get("proxies") is True
        names = [name for name, fault in FAULTS.items() if proxies or not fault.network]
        plan = random_script(names, graph.ids, graph.edges, seed, lasts_s, every_s=every_s)
    else:
        plan = load_script(script) if script is not None else Script(event=(parse_event(at_once or ""),))
        plan.check(graph, str(script or "--now"))
    if dry_run:
        for event in plan.event:
            when = f"{event.at_s or 0:7.1f} s" if event.at_round is None else f"round {event.at_round:3}"
            typer.echo(f"{when}  {event.text()}{f' for {event.for_s:g} s' if event.for_s else ''}")
        return
    run_faults(directory, plan, graph, Console(stderr=True, highlight=False, markup=False).print)


def _seconds(text: str) -> tuple[float, float]:
    """Return the seconds of ``SECONDS[:EVERY]``: of all faults, and on average between two of them.

    Raises:
        UsageError: it has another form, or a number is not finite or too small.
    """
    from coordinator_free_bootstrap.errors import UsageError

    lasts, _, every = text.partition(":")
    try:
        lasts_s, every_s = float(lasts), float(every or 5)
    except ValueError:
        lasts_s = every_s = math.nan
    if not (1 <= lasts_s < math.inf and 0.1 <= every_s < math.inf):
        raise UsageError(
            "--for: expected SECONDS[:EVERY], such as 60:5, of at least 1 s in all and 0.1 s between two faults, "
            f"got {text!r}."
        )
    return lasts_s, every_s
