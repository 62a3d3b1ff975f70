"""The option of verbs that dial peers: through the HTTP proxy of the environment, or directly."""

from __future__ import annotations

from typing import Annotated

from coordinator_free_bootstrap.options import fields_of
from peer.cli.declared import option_of
from peer.runtime.local_options import LocalOptions

ThroughProxy = Annotated[bool, option_of("proxy", fields_of(LocalOptions)["proxy"])]
