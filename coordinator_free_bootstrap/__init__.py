"""Graph file, manifest, handshake check and failure detection of a peer, without a coordinator; imports nothing from `peer`."""

from coordinator_free_bootstrap.generators import KINDS, Kind, make_graph
from coordinator_free_bootstrap.graph import Graph, Node, Observer, Relay, split_address
from coordinator_free_bootstrap.graph_file import dump_graph, load_graph, parse_graph, save_graph
from coordinator_free_bootstrap.handshake import Compared, check_hello, remarks
from coordinator_free_bootstrap.identity import Subject, dns_name, next_incarnation, parse_spiffe_id, spiffe_id
from coordinator_free_bootstrap.manifest import Manifest, Timeouts, canonical_json, digest
from coordinator_free_bootstrap.meaning import with_known
from coordinator_free_bootstrap.schedule import edge_is_up, is_active, neighbors_in_round
from coordinator_free_bootstrap.settings import Difference, apply_settings, diff, known_keys, parse_manifest

__all__ = [
    "KINDS",
    "Compared",
    "Difference",
    "Graph",
    "Kind",
    "Manifest",
    "Node",
    "Observer",
    "Relay",
    "Subject",
    "Timeouts",
    "apply_settings",
    "canonical_json",
    "check_hello",
    "diff",
    "digest",
    "dns_name",
    "dump_graph",
    "edge_is_up",
    "is_active",
    "known_keys",
    "load_graph",
    "make_graph",
    "neighbors_in_round",
    "next_incarnation",
    "parse_graph",
    "parse_manifest",
    "parse_spiffe_id",
    "remarks",
    "save_graph",
    "spiffe_id",
    "split_address",
    "with_known",
]
