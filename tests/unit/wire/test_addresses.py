"""What gRPC is given for an address: it reads a URI, in which %ba is a byte and the word before a colon a scheme."""

from urllib.parse import unquote

import pytest
from typer.testing import CliRunner

from coordinator_free_bootstrap import Graph, Node, save_graph
from coordinator_free_bootstrap.errors import ConfigError, UsageError
from peer.cli.main import app
from peer.wire.address import dialed, listened, undialable
from peer.wire.security import bind


@pytest.mark.parametrize("scope", ["eth0", "bat0", "12", "0a", "ff", "br-1.2+x@7", "wlan0", "é"])
def test_a_scope_is_what_it_was_after_the_uri_is_decoded(scope):
    """Before, %ba and %12 were decoded to a byte, and a neighbor at bat0 or interface 12 was never reached."""
    address = f"[fe80::1%{scope}]:7400"
    assert unquote(dialed(address)) == f"dns:///{address}"
    assert unquote(listened(address)) == address


@pytest.mark.parametrize("address", ["unix:7400", "dns:7400", "ipv4:7400", "xds:7400", "peer-3.example:7400"])
def test_a_host_is_not_taken_for_a_scheme(address):
    """Before, a host called unix was a file called 7400."""
    assert dialed(address) == f"dns:///{address}"


def test_a_unix_socket_of_this_process_stays_a_unix_socket():
    assert dialed("unix:/tmp/peer-x/3") == "unix:/tmp/peer-x/3"


@pytest.mark.parametrize("listen", ["unix:7400", "vsock:7400", "unix:/tmp/x:0", "dns:///x:0", "x y:0", ":0"])
def test_a_server_listens_at_no_other_kind_of_address(listen):
    with pytest.raises(ConfigError, match=r"--listen: expected .*, got "):
        bind(None, listen, None)


def test_a_link_local_address_without_an_interface_is_a_warning_of_graph_check(tmp_path):
    addresses = ("[fe80::1]:7400", "[fe80::2%eth0]:7400", "[fe80::3%0]:7400", "[2001:db8::4]:7400")
    graph = Graph(tuple(Node(i, address) for i, address in enumerate(addresses)), ((0, 1), (0, 2), (0, 3)))
    assert [sentence.split(":")[0] for sentence in undialable(graph)] == ["peer 0", "peer 2"]
    save_graph(graph, tmp_path / "g.json")
    done = CliRunner().invoke(app, ["graph", "check", str(tmp_path / "g.json")])
    assert done.exit_code == 0 and "write [fe80::1%eth0]:7400, with the name or number of the interface" in done.stderr


@pytest.mark.parametrize("address", ["unix:/run/peer.sock", "dns:///x:1", "127.0.0.1", "127.0.0.1:0"])
def test_health_of_another_kind_of_address_is_refused(address):
    with pytest.raises(UsageError, match=r"--address: expected .*, got"):
        CliRunner().invoke(app, ["health", "--address", address], catch_exceptions=False)
