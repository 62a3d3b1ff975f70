"""Network namespaces of tests, as root; the machine's own network does not change."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack
from functools import cache

PROGRAMS = ("ip", "iptables")


@cache
def why_not(*programs: str) -> str:
    """Return why network namespaces cannot be used here; "" if they can."""
    missing = [program for program in (*PROGRAMS, *programs) if shutil.which(program) is None]
    if os.geteuid() != 0 or missing:
        return f"needs root and {', '.join((*PROGRAMS, *programs))}; missing: {missing}"
    name = f"cf{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:  # as in most containers
        return f"root cannot make network namespaces here: {made.stderr.strip()}"
    ip("netns", "delete", name)
    return ""


def command(*words: object) -> str:
    """Run a program and return its output; its errors are the message if it fails."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


def ip(*words: object) -> str:
    """Run ip."""
    return command("ip", *words)


class Bridge:
    """Namespaces on a bridge, which is in one of its own; all are deleted with the stack."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._name = f"cf{os.getpid()}"
        self.add("hub")
        ip("-n", self.of("hub"), "link", "add", "hub", "type", "bridge")
        ip("-n", self.of("hub"), "link", "set", "hub", "up")

    def of(self, which: int | str) -> str:
        """Return the name of a namespace."""
        return f"{self._name}-{which}"

    def add(self, which: int | str) -> None:
        """Make a namespace."""
        ip("netns", "add", self.of(which))
        self._stack.callback(ip, "netns", "delete", self.of(which))

    def wire(self, one: int | str, one_name: str, other: int | str, other_name: str) -> None:
        """Connect two namespaces by a pair of interfaces that are up."""
        pair = ("type", "veth", "peer", other_name, "netns", self.of(other))
        ip("link", "add", one_name, "netns", self.of(one), *pair)
        ip("-n", self.of(one), "link", "set", one_name, "up")
        ip("-n", self.of(other), "link", "set", other_name, "up")

    def plug(self, which: int | str, address: str) -> None:
        """Make a namespace with an interface ``wire`` on the bridge, and its address."""
        self.add(which)
        self.wire(which, "wire", "hub", f"to{which}")
        ip("-n", self.of("hub"), "link", "set", f"to{which}", "master", "hub")
        ip("-n", self.of(which), "address", "add", address, "dev", "wire")

    def inside(self, which: int | str) -> tuple[str, ...]:
        """Return the command that runs another one in a namespace."""
        return ("ip", "netns", "exec", self.of(which))

    def run(self, which: int | str, *words: object) -> str:
        """Run a program in a namespace and return its output."""
        return command(*self.inside(which), *words)
