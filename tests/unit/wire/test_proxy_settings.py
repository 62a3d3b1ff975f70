"""Which addresses a proxy serves, which URLs are allowed, and that no text has the password."""

from __future__ import annotations

import traceback

import pytest

from coordinator_free_bootstrap.errors import ConfigError
from coordinator_free_bootstrap.manifest import Timeouts
from peer.wire.options import channel_options
from peer.wire.proxy import HttpProxy

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("exceptions", "address", "served"),
    [
        ("", "a.example:7400", True),
        ("a.example", "A.example:7400", False),
        (".example", "a.example:7400", False),
        ("b.example, example", "a.example:7400", False),
        ("example.org", "a.example:7400", True),
        ("*", "a.example:7400", False),
        ("10.0.0.7", "10.0.0.7:7400", False),
        ("10.0.0.0/8", "10.9.9.9:7400", False),
        ("10.0.0.0/8", "11.9.9.9:7400", True),
        ("10.0.0.0/8", "[2001:db8::7]:7400", True),
        ("2001:db8::/32", "[2001:db8::7]:7400", False),
        (" , ", "a.example:7400", True),
    ],
)
def test_exceptions_are_dialed_directly(exceptions: str, address: str, served: bool) -> None:
    proxy = HttpProxy.of({"https_proxy": "http://proxy.example:3128", "no_proxy": exceptions})
    assert proxy.serves(address) is served


@pytest.mark.parametrize(
    "url",
    [
        "",
        f"socks5://u:{SECRET}@proxy:1",
        f"https://u:{SECRET}@proxy:1",
        f"http://u:{SECRET}@proxy",
        f"http://u:{SECRET}@proxy:x",
        f"u:{SECRET}@proxy:3128",
        f"http://u:{SECRET}@proxy:1/path",
        f"http://u:{SECRET}@[::1:3128",
    ],
)
def test_another_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="expected https_proxy to be http://host:port") as caught:
        HttpProxy.of({"https_proxy": url})
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_text_of_a_proxy_has_no_password() -> None:
    proxy = HttpProxy.of({"HTTPS_PROXY": f"http://user:{SECRET}@proxy.example:3128/"})
    assert str(proxy) == "proxy.example:3128"
    assert SECRET not in repr(proxy) + str(proxy) and "user" not in repr(proxy)


def test_only_a_named_proxy_is_used() -> None:
    assert dict(channel_options(Timeouts()))["grpc.enable_http_proxy"] == 0
    url = f"http://user:{SECRET}@proxy.example:3128"
    options = dict(channel_options(Timeouts(), HttpProxy.of({"https_proxy": url})))
    assert (options["grpc.enable_http_proxy"], options["grpc.http_proxy"]) == (1, url)
