"""Options of the page of a run (`peer watch`, arguments of `peer.watch`), and of its models; each declared here only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypedDict

import typer
from pydantic import Field

from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.options import Shown, Texts, model_of, parsed, refuse_replaced
from peer.runtime.local_options import LOCAL_HOST, checked, listen_address

# a removed argument -> the one that replaces it, and the form of its value
REPLACED = {
    "port": ("listen", "[HOST:]PORT"),
    "host": ("listen", "[HOST:]PORT"),
    "names": ("name", "NAME"),
}


BestModel = Annotated[
    bool,
    typer.Option("--best", help="Use the model of the round with the best metric on the peer's validation samples."),
]


class PageOptions(TypedDict, total=False):
    """Where a browser finds the page."""

    listen: Annotated[
        str | int | None,
        checked(listen_address),
        Field(
            None,
            description="Where the page is; without HOST on 127.0.0.1. Plain HTTP: keep it on this machine. Default: any free "
            "port.",
        ),
        Shown(metavar="[HOST:]PORT"),
    ]
    name: Annotated[
        Texts,
        Field((), description="Another host name under which a browser may ask for the page. Repeatable."),
    ]


def page_options(given: Mapping[str, object]) -> tuple[str, int, tuple[str, ...]]:
    """Return host, port (0: any free one) and host names of the page.

    Raises:
        UsageError: an option is unknown, removed or of another form.
    """
    refuse_replaced(given, REPLACED)
    read = parsed(model_of(PageOptions), given, error=UsageError, owner="peer.watch").model_dump()
    host, port = (LOCAL_HOST, 0) if read["listen"] is None else listen_address(read["listen"])
    return host, port, tuple(read["name"])
