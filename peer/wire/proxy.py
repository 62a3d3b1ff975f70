"""The HTTP proxy through which a peer dials its neighbors: the CONNECT method, with TLS to the neighbor end to end."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from typing_extensions import override

from coordinator_free_bootstrap.errors import ConfigError, Option
from coordinator_free_bootstrap.graph import split_address

VARIABLE, EXCEPTIONS = "https_proxy", "no_proxy"  # upper case is read too
_EXPECTED = "http://host:port or http://user:password@host:port, with %40 for an @ in the password"


@dataclass(frozen=True)
class HttpProxy:
    """A proxy and the hosts that are dialed without it; its text has no user and no password.

    Attributes:
        url: with user and password; never shown.
        name: ``host:port`` of the proxy.
        exceptions: ends of host names, IP addresses, address blocks such as 10.0.0.0/8, or ``*``, as gRPC reads no_proxy.
    """

    url: str = field(repr=False)
    name: str
    exceptions: tuple[str, ...] = ()

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> HttpProxy:
        """Return the proxy of https_proxy and no_proxy.

        Raises:
            ConfigError: https_proxy is not set, or is not the URL of an HTTP proxy; the value is not shown.
        """
        url, listed = (environment.get(name) or environment.get(name.upper()) or "" for name in (VARIABLE, EXCEPTIONS))
        if not url:
            raise ConfigError(f"{Option('proxy')}: expected {VARIABLE} to be {_EXPECTED}, got no such variable")
        try:
            parts = urlsplit(url)
            name = parts.netloc.rpartition("@")[2]
            split_address(name)
            if parts.scheme != "http" or parts.path.strip("/") or parts.query or parts.fragment:
                raise ValueError
        except ValueError:  # without its text and cause, which may hold the password
            raise ConfigError(
                f"{Option('proxy')}: expected {VARIABLE} to be {_EXPECTED}, got another form of URL"
            ) from None
        return cls(url.rstrip("/"), name, tuple(filter(None, (entry.strip() for entry in listed.split(",")))))

    @classmethod
    def chosen(cls, wanted: bool) -> HttpProxy | None:
        """Return the proxy of this process's environment where ``--proxy`` is given, else None; raises as `of`."""
        return cls.of(os.environ) if wanted else None

    @override
    def __str__(self) -> str:
        """Return ``host:port``."""
        return self.name

    def serves(self, address: str) -> bool:
        """Return whether a neighbor's ``host:port`` is dialed through the proxy."""
        if address.startswith("unix:"):
            return False
        host = split_address(address)[0]
        return not any(_matches(host, entry) for entry in self.exceptions)


def _matches(host: str, entry: str) -> bool:
    if entry == "*" or host.lower().endswith(entry.lower()):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:  # a name, or addresses of two versions
        return False
