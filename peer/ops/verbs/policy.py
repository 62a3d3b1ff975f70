"""`peer policy`: what the owner of a device allows a peer to take part in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coordinator_free_bootstrap.errors import PolicyError, UsageError
from coordinator_free_bootstrap.ordinary_file import content_of, unreadable
from peer.cli.json_output import AsJson, print_json

app = typer.Typer(name="policy", help="Say what the owner of a device allows its peer.", no_args_is_help=True)
PolicyFile = Annotated[Path, typer.Option("--policy", help="The owner's policy (TOML).", readable=False)]
_VERDICTS = {True: "allowed", False: "refused", None: "not known before the start"}


@app.callback()
def _group() -> None:
    """Say what the owner of a device allows its peer; `peer run --policy` enforces it."""


@app.command(epilog="Example: peer policy check graph.json --id 3")
def check(
    graph_file: Annotated[Path, typer.Argument(metavar="GRAPH.JSON", help="Graph file of the run.", readable=False)],
    policy: PolicyFile = Path("policy.toml"),
    peer_id: Annotated[
        int | None, typer.Option("--id", min=0, help="The owner's peer, to check its neighbors.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare a graph file with the policy, as peer run does before its start; exit code 14: it would be refused.

    Nothing of the run is executed. Files that the graph file names are looked for from this folder, as peer run does.
    """
    from coordinator_free_bootstrap import load_graph
    from peer.runtime.admission import of_graph
    from peer.runtime.policy import OwnersPolicy

    owners, graph = OwnersPolicy.read(policy), load_graph(graph_file)
    if peer_id is not None:
        graph.node(peer_id)
    found = list(of_graph(owners, graph, peer_id))
    refused = [each for each in found if each.allowed is False]
    if as_json:
        rows = [{"key": f.key, "allowed": f.allowed, "expected": f.asked, "got": f.got} for f in found]
        print_json({"allowed": not refused, "verdicts": rows})
    else:
        for each in found:
            got = f", got {each.got}" if each.allowed is False else ""
            typer.echo(f"{_VERDICTS[each.allowed]}: {owners.where(each.key)}: expected {each.asked}{got}")
    if refused:
        raise typer.Exit(PolicyError.exit_code)


@app.command(epilog="Example: peer policy approve task.py --by 'Ada Lovelace'")
def approve(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.py", help="Task, algorithm or module of a user.", readable=False)
    ],
    policy: PolicyFile = Path("policy.toml"),
    by: Annotated[
        str | None, typer.Option("--by", help="Name of the person who has read the file. Default: the user's login.")
    ] = None,
) -> None:
    """Add the file's SHA-256 to the policy, with time and name; the next change of the file needs a new approval."""
    from datetime import UTC, datetime
    from getpass import getuser

    from coordinator_free_bootstrap.user_file import FILE_BYTES_MAX
    from peer.runtime.policy import OwnersPolicy, with_approval

    owners = OwnersPolicy.read(policy)
    try:
        content = content_of(file, FILE_BYTES_MAX)
    except OSError as error:
        raise UsageError(unreadable(str(file), error)) from None
    approval = owners.approval_of(content) or with_approval(policy, file, content, by or getuser(), datetime.now(UTC))
    typer.echo(f"{policy}: {file} with SHA-256 {approval.sha256}: {approval}")
