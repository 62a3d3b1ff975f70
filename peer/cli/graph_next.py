"""`peer graph next` and `peer graph diff`: the graph file after a change, and what a change means."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from coordinator_free_bootstrap.errors import ConfigProblem, Option, UsageError
from peer.cli.problem import Settings, names_settings

GraphFile = Annotated[
    Path, typer.Argument(metavar="GRAPH.JSON", help="The present graph file.", show_default=False, readable=False)
]
_PEER = re.compile(r"(\d+)=(.+)")
_EDGE = re.compile(r"(\d+)-(\d+)")
_ROUNDS = re.compile(r"\+?\d+")


@names_settings
def next_file(
    *,
    path: GraphFile,
    out: Annotated[Path, typer.Option(help="The new file.", readable=False, show_default=False)],
    add_peer: Annotated[
        list[str] | None, typer.Option(metavar="ID=HOST:PORT", help="A new peer; it also needs edges. Repeatable.")
    ] = None,
    remove_peer: Annotated[
        list[int] | None, typer.Option(metavar="ID", help="A peer that leaves for good, with its edges. Repeatable.")
    ] = None,
    move: Annotated[
        list[str] | None, typer.Option(metavar="ID=HOST:PORT", help="A peer's new address. Repeatable.")
    ] = None,
    add_edge: Annotated[list[str] | None, typer.Option(metavar="ID-ID", help="A new edge. Repeatable.")] = None,
    remove_edge: Annotated[
        list[str] | None, typer.Option(metavar="ID-ID", help="An edge that goes. Repeatable.")
    ] = None,
    rounds: Annotated[
        str | None, typer.Option(metavar="T|+N", help="Rounds of the whole run, or how many more.")
    ] = None,
    from_round: Annotated[
        int,
        typer.Option(metavar="T", min=0, help="Running peers change with this round; default: with their next one."),
    ] = 0,
    settings: Settings = None,
    restart_training: Annotated[
        bool, typer.Option("--restart-training", help="Begin a new run: allows changes that make models incomparable.")
    ] = False,
) -> None:
    """Make the next graph file of a federation: peers that stay keep their models and rounds, new ones take those of neighbors.

    Copy the new file to all peers in any order. Each takes it on SIGHUP, by itself with peer run --watch-graph, or at its next
    start; meanwhile edges of both files carry models. Keys change with peer graph pin --rotate.

    Example: peer graph next graph.json --add-peer 5=10.0.0.9:7400 --add-edge 5-0 --rounds +50 --out graph-2.json
    """
    from coordinator_free_bootstrap import apply_settings, load_graph, parse_manifest, save_graph
    from coordinator_free_bootstrap.revision import changes, next_graph, with_changes
    from peer.tasks.sources import source_named

    before = load_graph(path)
    given = [*(settings or ())]
    if rounds is not None:
        given.append(f"run.rounds={_rounds(rounds, before.manifest.rounds)}")
    manifest = parse_manifest(apply_settings(before.manifest.model_dump(), given), "")
    now = with_changes(
        before,
        add=[_peer("add_peer", text) for text in add_peer or ()],
        remove=remove_peer or (),
        move=[_peer("move", text) for text in move or ()],
        add_edges=[_edge("add_edge", text) for text in add_edge or ()],
        remove_edges=[_edge("remove_edge", text) for text in remove_edge or ()],
        manifest=manifest,
        from_round=from_round,
    )
    made = next_graph(before, now, restart_training=restart_training)
    save_graph(made, out)
    for sentence in changes(before, made):
        typer.echo(sentence, err=True)
    if before.ids != made.ids and source_named(manifest.task) is not None:
        typer.echo(
            f"note: task {manifest.task!r} deals its samples by the number of peers, so all peers get others: samples of a test "
            "may have been trained on. Peers with data of their own keep them.",
            err=True,
        )
    typer.echo(f"wrote {out}", err=True)
    new = [node for node in made.nodes if node.id not in before.ids and not node.pins]
    if new and any(node.pins for node in before.nodes):
        certificates = " ".join(f"peer-{node.id}.pem" for node in new)
        typer.echo(f"before you copy it, pin what it lacks: peer graph pin {out} {certificates}", err=True)
    if before.signature:
        typer.echo(f"before you copy it, sign it as the last one: peer graph sign {out} --key KEY", err=True)


def diff(
    before: Annotated[
        Path, typer.Argument(metavar="BEFORE.JSON", help="A graph file.", show_default=False, readable=False)
    ],
    now: Annotated[Path, typer.Argument(metavar="NOW.JSON", help="Another one.", show_default=False, readable=False)],
) -> None:
    """Say what differs between two graph files, who must restart, and whether the models stay.

    Example: peer graph diff graph.json graph-2.json
    """
    from coordinator_free_bootstrap import load_graph
    from coordinator_free_bootstrap.revision import changes

    found = list(changes(load_graph(before), load_graph(now)))
    for sentence in found or ["nothing differs"]:
        typer.echo(sentence)


def _peer(option: str, text: str) -> tuple[int, str]:
    match = _PEER.fullmatch(text)
    if match is None:
        raise UsageError(ConfigProblem(Option(option), "ID=HOST:PORT, such as 5=10.0.0.9:7400", repr(text)))
    return int(match[1]), match[2]


def _edge(option: str, text: str) -> tuple[int, int]:
    match = _EDGE.fullmatch(text)
    if match is None:
        raise UsageError(ConfigProblem(Option(option), "two ids, such as 5-0", repr(text)))
    return int(match[1]), int(match[2])


def _rounds(text: str, before: int) -> int:
    if not _ROUNDS.fullmatch(text):
        raise UsageError(ConfigProblem(Option("rounds"), "a number, or +N for N more", repr(text)))
    return before + int(text) if text.startswith("+") else int(text)
