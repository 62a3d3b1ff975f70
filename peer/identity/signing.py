"""Signatures of graph files: ECDSA P-256 with SHA-256 over the file's JSON without its signature, keys sorted, no spaces.

The text is that of the file and not of a parsed graph, so that a release with more keys accepts it too.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator_free_bootstrap import Graph, dump_graph
from coordinator_free_bootstrap.errors import ConfigProblem, IdentityError
from coordinator_free_bootstrap.strict_json import loads
from peer.identity.certificates import Certificate
from peer.identity.files import KeyPair

_ALGORITHM = ec.ECDSA(hashes.SHA256())


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
    key = serialization.load_pem_private_key(owner.private_key, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IdentityError(ConfigProblem("owner's key", "one of P-256, as peer keygen makes it", type(key).__name__))
    signature = key.sign(_parts(dump_graph(graph))[0], _ALGORITHM)
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
    if any(_fits(owner, signature, text) for owner in owners):
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


def _fits(owner: Certificate, signature: bytes, text: bytes) -> bool:
    key = owner.parsed.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        key.verify(signature, text, _ALGORITHM)
    except InvalidSignature:
        return False
    return True
