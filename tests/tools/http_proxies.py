"""HTTP proxies of tests: tinyproxy and squid of Debian, installed or unpacked from their packages."""

from __future__ import annotations

import getpass
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from tools.packages import unpacked
from tools.running import ends, running, until

from peer.bed.testbed.ports import free_ports
from peer.wire.proxy import HttpProxy

USER, PASSWORD = "ward-7", "p.w0rd-x"
ENCODED = "%70.w0rd-x"  # as an @ would have to be written
NOBODY = "nobody"  # squid does not run as root
SQUID = ("squid", "squid-common", "squid-langpack")  # the program, its tables, its pages
SQUID_LIBRARIES = (
    *("libecap3", "libltdl7", "libgssapi-krb5-2", "libkrb5-3", "libk5crypto3", "libkrb5support0", "libkeyutils1"),
    *("libnetfilter-conntrack3", "libnfnetlink0", "libmnl0", "libcap2", "libnettle8"),
)


@dataclass(frozen=True)
class Proxy:
    """One that runs."""

    address: str
    log: Path  # one line for each CONNECT, also for those that were refused
    password: bool

    def connects(self, address: str) -> int:
        """Return how many connections to an address were asked for."""
        return self.log.read_text(errors="replace").count(f"CONNECT {address} ") if self.log.exists() else 0

    def asked_for(self, address: str, known: int = 0) -> int:
        """Wait until the log has more connections to an address than ``known``; return them. Squid writes one when it ends."""
        until(lambda: self.connects(address) > known, f"a CONNECT {address} in {self.log}")
        return self.connects(address)

    def url(self, user: str | None = None) -> str:
        """Return the value of https_proxy, with the right user and password or with others (``user:password@``, or "")."""
        right = f"{USER}:{ENCODED}@" if self.password else ""
        return f"http://{right if user is None else user}{self.address}"

    def settings(self, user: str | None = None, exceptions: str = "") -> HttpProxy:
        return HttpProxy.of({"https_proxy": self.url(user), "no_proxy": exceptions})


class Proxies:
    """The programs, in a folder that every user of this machine can read."""

    kinds = ("tinyproxy", "squid")

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="proxies-")
        self._path = Path(self._home.name)
        self._path.chmod(0o755)

    def close(self) -> None:
        self._home.cleanup()

    @contextmanager
    def running(
        self,
        kind: str,
        *,
        host: str = "127.0.0.1",
        password: bool = False,
        ports: Sequence[int] = (),
        prefix: Sequence[str] = (),
    ) -> Iterator[Proxy]:
        """Run a proxy.

        Args:
            kind: tinyproxy or squid.
            host: address to listen on.
            password: whether it demands `USER` and `PASSWORD`.
            ports: that it connects to; default: all.
            prefix: a command that runs the program.
        """
        home = Path(tempfile.mkdtemp(prefix=kind, dir=self._path))
        home.chmod(0o755)
        address = f"{host}:{free_ports(1)[0]}"
        start: Callable[..., tuple[list[str], Sequence[object], str]] = getattr(self, f"_{kind}")
        lines, command, ready = start(home, address, password, ports)
        (home / "proxy.conf").write_text("\n".join(lines) + "\n")
        logs = [home / "output", home / "proxy.log"]
        with running(*prefix, *command, log=logs[0]) as process:

            def listens() -> bool:
                assert process.poll() is None, f"{kind} ended with exit code {process.returncode}\n{ends(logs)}"
                return any(log.exists() and ready in log.read_text() for log in logs)

            until(listens, f"{kind} listens", logs=logs)
            yield Proxy(address, home / "connects" if kind == "squid" else home / "output", password)

    def _tinyproxy(
        self, home: Path, address: str, password: bool, ports: Sequence[int]
    ) -> tuple[list[str], Sequence[object], str]:
        host, _, port = address.rpartition(":")
        lines = [f"Port {port}", f"Listen {host}", "LogLevel Info", "Timeout 600"]
        lines += [f"ConnectPort {allowed}" for allowed in ports]
        lines += [f"BasicAuth {USER} {PASSWORD}"] if password else []
        return lines, (self._tinyproxy_program, "-d", "-c", home / "proxy.conf"), "Accepting connections"

    @cached_property
    def _tinyproxy_program(self) -> Path:
        if installed := shutil.which("tinyproxy", path=f"{os.environ['PATH']}:/usr/sbin:/usr/bin"):
            return Path(installed)
        return next(self._unpacked("tinyproxy", "tinyproxy-bin").glob("usr/*bin/tinyproxy"))

    def _squid(
        self, home: Path, address: str, password: bool, ports: Sequence[int]
    ) -> tuple[list[str], Sequence[object], str]:
        files, user = self._squid_files, getpass.getuser()
        if os.geteuid() == 0:
            user = NOBODY
            shutil.chown(home, user)
        (home / "users").write_text(f"{USER}:{hashlib.md5(PASSWORD.encode()).hexdigest()}\n")
        lines = [
            f"http_port {address}",
            "visible_hostname proxy",
            "pid_filename none",
            f"cache_effective_user {user}",
            f"coredump_dir {home}",
            f"cache_log {home}/proxy.log",
            "logformat asked %rm %ru %>Hs",
            f"access_log stdio:{home}/connects logformat=asked",
            "buffered_logs off",
            f"mime_table {files}/usr/share/squid/mime.conf",
            f"icon_directory {files}/usr/share/squid/icons",
            f"error_directory {files}/usr/share/squid-langpack/templates",
            "pinger_enable off",
            f"unlinkd_program {files}/usr/lib/squid/unlinkd",  # never run, but it must exist
            "cache deny all",
            "memory_cache_shared off",
            "shutdown_lifetime 0 seconds",
        ]
        if ports:
            lines += [f"acl allowed port {' '.join(map(str, ports))}", "http_access deny !allowed"]
        if password:
            lines += [
                f"auth_param basic program {files}/usr/lib/squid/basic_ncsa_auth {home}/users",
                "acl users proxy_auth REQUIRED",
                "http_access deny !users",
            ]
        libraries = ":".join(map(str, files.glob("usr/lib/*-linux-gnu")))
        command = (
            "env",
            f"LD_LIBRARY_PATH={libraries}",
            files / "usr/sbin/squid",
            "-N",
            "-n",
            home.name.replace("_", "x"),
        )
        return (
            [*lines, "http_access allow all"],
            (*command, "-f", home / "proxy.conf"),
            "Accepting HTTP Socket connections",
        )

    @cached_property
    def _squid_files(self) -> Path:
        """Return the folder with squid: its packages are unpacked also where it is installed, often without its pages."""
        return self._unpacked("squid", *SQUID, *SQUID_LIBRARIES)

    def _unpacked(self, program: str, *packages: str) -> Path:
        folder = self._path / f"{program}-files"
        folder.mkdir(exist_ok=True)  # it exists where an earlier test was skipped
        return unpacked(program, folder, *packages)


@pytest.fixture(scope="session")
def proxies() -> Iterator[Proxies]:
    """Give the proxies of this session."""
    found = Proxies()
    yield found
    found.close()
