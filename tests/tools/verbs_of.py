"""The verbs of the command `peer`, all of them loaded."""

import typer
from typer.core import TyperGroup


def verbs_of(group):
    """Return the verbs of a group by name; {} of a single verb."""
    if not isinstance(group, TyperGroup):
        return {}
    context = typer.Context(group)
    return {name: group.get_command(context, name) for name in group.list_commands(context)}


def leaves(group, name="peer"):
    """Yield the whole name of each verb, and its command."""
    if not (found := verbs_of(group)):
        yield name, group
    for key, each in found.items():
        yield from leaves(each, f"{name} {key}")
