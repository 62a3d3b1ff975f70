"""`peer chaos`: faults on a running testbed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def chaos(
    directory: Annotated[Path, typer.Argument(help="The --out directory of a running testbed.")],
    script: Annotated[Path | None, typer.Option(help="A script of faults (TOML), see examples/chaos.toml.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Draw the faults from this seed instead.")] = None,
    for_s: Annotated[float, typer.Option("--for", min=1, help="With --seed: for so many seconds.")] = 60.0,
    every: Annotated[float, typer.Option(min=0.1, help="With --seed: seconds between two faults, about.")] = 5.0,
    at_once: Annotated[
        str | None, typer.Option("--now", help='One event, as in a script: "do=kill peers=3 for_s=5" or "do=heal".')
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would happen.")] = False,
) -> None:
    """Kill, stop, restart peers of a running testbed, cut and slow their edges, part them into groups, heal.

    Faults of edges need a testbed that was started with --proxy. What happens is written to DIRECTORY/chaos.jsonl, and
    peer report draws it.

    Example: peer chaos out --seed 7 --for 60
    """
    from rich.console import Console

    from coordinator_free_bootstrap import load_graph
    from coordinator_free_bootstrap.errors import UsageError
    from peer.chaos.actors import carry_out
    from peer.chaos.control import ask
    from peer.chaos.script import Script, event_of_words, load_script, random_script

    if sum(choice is not None for choice in (script, seed, at_once)) != 1:
        raise UsageError("peer chaos: give one of --script FILE, --seed NUMBER or --now EVENT")
    graph = load_graph(directory / "graph.json")
    if script is not None:
        plan = load_script(script)
        plan.check(graph, str(script))
    elif seed is not None:
        plan = random_script(graph, seed, for_s, every_s=every, network=ask(directory, {"do": "state"})["proxies"])
    else:
        plan = Script(event=(event_of_words(at_once or ""),))
        plan.check(graph, "--now")
    talk = Console(stderr=True, highlight=False)
    if dry_run:
        for event in plan.event:
            when = f"{event.at_s or 0:7.1f} s" if event.at_round is None else f"round {event.at_round:3}"
            typer.echo(f"{when}  {event.words()}{f' for {event.for_s:g} s' if event.for_s else ''}")
        return
    carry_out(directory, plan, graph, talk.print)
