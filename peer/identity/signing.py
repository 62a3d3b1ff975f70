"""Signatures of graph files: ECDSA P-256 with SHA-256 over the file's JSON without its signature, keys sorted, no spaces.

The text is that of the file and not of a parsed graph, so that a release with more keys accepts it too.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from coordinator_free_bootstrap import Graph, dump_graph
from coordinator_free_bootstrap.errors import ConfigProblem, IdentityError
from coordinator_free_bootstrap.strict_json import loads
from peer.identity.certificates import Certificate
from peer.identity.files import KeyPair
from peer.identity.p256 import checking_key, is_signed, sign, signing_key


def signed(graph: Graph, owner: KeyPair, owners: Sequence[Certificate] = ()) -> Graph:
    """Return a graph with the signature of its owner, as `save_graph` writes it.

    Args:
        graph: any signature of it is replaced.
        owner: key of P-256, as `peer keygen` makes it.
        owners: who may sign the next file, beside the present owner; none: those that the graph names.

    Raises:
        IdentityError: the key is of another kind.
    """
    graph = replace(graph, owners=tuple(each.text() for each in owners) or graph.owners, signature="")
    signature = sign(signing_key(owner, "owner's key"), _parts(dump_graph(graph))[0])
    return replace(graph, signature=base64.b64encode(signature).decode())


def require_signature(content: bytes, owners: Sequence[Certificate], source: str) -> None:
    """Check that one of the owners has signed a graph file.

    Args:
        content: of a file that `parse_graph` accepts.
        owners: at least one.
        source: names the file in errors.

    Raises:
        IdentityError: it has no signature, or one of another key or of another content.
    """
    text, signature = _parts(content.decode())
    keys = filter(None, map(checking_key, owners))
    if any(is_signed(key, text, signature) for key in keys):
        return
    expected = f"the signature of an owner, {' or '.join(owner.fingerprint for owner in owners)}"
    got = "one of another key, or of another content" if signature else "no signature"
    fix = "Let the owner sign it: peer graph sign graph.json --key owner.key."
    raise IdentityError(ConfigProblem(f"{source}: signature", expected, got, fix))


def _parts(content: str) -> tuple[bytes, bytes]:
    """Return what is signed of a graph file, and the signature, b"" if there is none."""
    data: dict[str, Any] = loads(content)
    signature = data.get("graph", {}).pop("signature", "")
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode(), base64.b64decode(signature)
