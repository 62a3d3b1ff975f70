"""The option of verbs that dial peers: through the HTTP proxy of the environment, or directly."""

from __future__ import annotations

from typing import Annotated

import typer

ThroughProxy = Annotated[
    bool,
    typer.Option("--proxy", help="Dial peers through the HTTP proxy in https_proxy, except the hosts in no_proxy."),
]
