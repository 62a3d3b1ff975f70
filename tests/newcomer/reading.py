"""A page that is followed: its commands and blocks in their order, and the programs that it starts. Standard library only."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tools.pages import code_blocks, spans

PATIENCE_S = 300  # for one command; one that hangs is named
WARNING = re.compile(r"(?!WARNING: ).*warning\b", re.IGNORECASE)  # those of pip are about its index


def places() -> dict[str, str]:
    """Return what stands for machines and hours of the pages that are not here. Nothing else of a command is changed."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    return {"10.0.0.{id+1}:7400": f"127.0.0.1:{{id+{port}}}", "run.rounds=1000": "run.rounds=8"}


@dataclass(frozen=True)
class Step:
    """A command or block of a page. ``language``: of its fence; "" of a shell command."""

    line: int
    language: str
    text: str
    file: str | None = None


class Stuck(Exception):
    """A newcomer cannot go on: page, line and command, what was expected, what came."""


class Page:
    """A page that is followed in a folder of its own.

    Attributes:
        folder: where its commands run.
        left_out: what was not run, with the reason.
    """

    def __init__(self, path: Path, folder: Path, environment: dict[str, str], sections: tuple[str, ...] = ()) -> None:
        self.name, self.folder, self.environment = "/".join(path.parts[-2:]), folder, environment
        self.path, self.text = path, path.read_text(encoding="utf-8")
        if sections:  # other lines become empty: numbers of lines stay
            kept = False
            lines = []
            for line in self.text.split("\n"):
                kept = line.lstrip("# ") in sections if re.match("#+ ", line) else kept
                lines.append(line if kept else "")
            self.text = "\n".join(lines)
        self.steps: deque[Step] = deque()
        for block in code_blocks(self.text):
            if block.language:
                self.steps.append(Step(block.line, block.language, block.text, block.file))
            else:
                self.steps.extend(Step(line, "", text) for line, text in block.commands())
        self.places = places()
        self.left_out: list[str] = []
        self._stack = ExitStack()
        folder.mkdir(parents=True, exist_ok=True)

    # ---- what a page has ------------------------------------------------------------------------------------------------

    def take(self, words: str) -> Step:
        """Return the next command or block, which must begin with words."""
        if not self.steps:
            raise Stuck(f"{self.name}: expected {words!r}, got the end of the page")
        step = self.steps.popleft()
        if not step.text.startswith(words):
            raise Stuck(f"{self.name}:{step.line}: expected {words!r}, got\n    {step.text}\nChange follow.py.")
        return step

    def span(self, words: str) -> Step:
        """Return the only code span of running text that begins with words."""
        found = {span for span in spans(self.text) if span.startswith(words)}
        if len(found) != 1:
            raise Stuck(f"{self.name}: expected one span that begins with {words!r}, got {sorted(found)}")
        (text,) = found
        line = self.text[: self.text.index(f"`{text[:20]}")].count("\n") + 1
        return Step(line, "", text)

    def leave(self, words: str, why: str) -> None:
        """Leave out the next command or block."""
        step = self.take(words)
        self.left_out.append(f"{self.name}:{step.line}, {step.text.splitlines()[0][:60]}: {why}")

    # ---- what a newcomer does -------------------------------------------------------------------------------------------

    def run(self, words: str | Step, folder: Path | None = None, given: str = "", then: str = "") -> str:
        """Run the next command or block, or write the file that it is, and return what it printed.

        Args:
            words: its first words, or itself.
            folder: where, if not in that of the page.
            given: what a reader of a fragment of Python has above it.
            then: what a reader looks at below it; an `assert` that fails is an error of the page.
        """
        step = self.take(words) if isinstance(words, str) else words
        where = folder or self.folder
        if step.file:
            (where / step.file).write_text(step.text, encoding="utf-8")
            return ""
        if step.language == "python":
            (where / f"line_{step.line}.py").write_text("\n".join((given, step.text, then)), encoding="utf-8")
        return "".join(line for _, line in self._output(step, where))

    def timed(self, words: str) -> list[tuple[float, str]]:
        """Run the next command, and return each line that it printed with the time at which it came."""
        return self._output(self.take(words), self.folder)

    def start(self, words: str | Step, folder: Path | None = None, *replaced: tuple[str, str]) -> Started:
        """Start the next command, and return it while it runs; ``replaced``: what differs on another machine."""
        step = self.take(words) if isinstance(words, str) else words
        for old, new in replaced:
            if old not in step.text:
                raise Stuck(f"{self.name}:{step.line}: expected {old!r} in\n    {step.text}")
            step = Step(step.line, step.language, step.text.replace(old, new))
        started = Started(self, step, folder or self.folder)
        self._stack.callback(started.kill)
        return started

    def expect(self, what: object, text: str) -> None:
        """Refuse a result that the page does not promise."""
        if not what:
            raise Stuck(f"{self.name}: expected {text}")

    def completed(self, output: str, least: float) -> None:
        """Expect the report of a completed run, with a mean accuracy."""
        self.expect(re.search(r"^run .*: complete *$", output, re.MULTILINE), f"a completed run, got\n{output[-2000:]}")
        found = re.search(r"^accuracy +mean ([\d.]+)", output, re.MULTILINE)
        self.expect(found and float(found[1]) >= least, f"a mean accuracy of {least} or more, got\n{output[-2000:]}")

    def until(self, state: Callable[[], object], text: str) -> None:
        """Wait for a state."""
        end = time.monotonic() + PATIENCE_S
        while not state():
            self.expect(time.monotonic() < end, f"{text} within {PATIENCE_S} s")
            time.sleep(0.1)

    def finish(self) -> None:
        """Expect that nothing of the page is left."""
        if self.steps:
            step = self.steps[0]
            raise Stuck(
                f"{self.name}:{step.line}: not followed:\n    {step.text}\nFollow it, or leave it out, in follow.py."
            )

    def close(self) -> None:
        """Kill what still runs."""
        self._stack.close()

    # ---- how ------------------------------------------------------------------------------------------------------------

    def command(self, step: Step) -> list[str]:
        """Return the command of a step."""
        if step.language == "python":
            return ["python", f"line_{step.line}.py"]
        text = step.text
        for there, here in self.places.items():
            text = text.replace(there, here)
        return ["bash", "-ec", text]

    def failed(self, step: Step, code: int, output: str) -> Stuck:
        """Return the error of a step."""
        return Stuck(f"{self.name}:{step.line}: exit code {code} of\n    {step.text}\nwhich printed\n{output[-4000:]}")

    def expect_no_warning(self, step: Step, output: str) -> None:
        """Refuse a warning that a newcomer would see."""
        found = [line for line in output.splitlines() if WARNING.match(line)]
        if found:
            raise Stuck(f"{self.name}:{step.line}: expected no warning, got\n    {found[0]}\nof\n    {step.text}")

    def _output(self, step: Step, where: Path) -> list[tuple[float, str]]:
        process = subprocess.Popen(
            self.command(step),
            cwd=where,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        hangs = threading.Timer(PATIENCE_S, os.killpg, (process.pid, signal.SIGKILL))
        hangs.start()
        assert process.stdout is not None
        try:
            lines = [(time.monotonic(), line) for line in process.stdout]
            code = process.wait()
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            hangs.cancel()
        output = "".join(line for _, line in lines)
        if code != 0:
            raise self.failed(step, code, output)
        self.expect_no_warning(step, output)
        return lines


class Started:
    """A command of a page that runs."""

    def __init__(self, page: Page, step: Step, folder: Path) -> None:
        self.page, self.step = page, step
        self.log = page.folder / f"line-{step.line}-{time.monotonic_ns()}.log"
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                page.command(step),
                cwd=folder,
                env=page.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def printed(self) -> str:
        """Return what it has printed; it must not have failed."""
        output = self.log.read_text(encoding="utf-8")
        if self.process.poll():
            raise self.page.failed(self.step, self.process.returncode, output)
        return output

    def end(self, *codes: int) -> str:
        """Wait until it ends, and return what it printed. An exit code other than 0, or than ``codes``, is an error."""
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            code = -signal.SIGKILL
        output = self.log.read_text(encoding="utf-8")
        if code not in (codes or (0,)):
            raise self.page.failed(self.step, code, output)
        self.page.expect_no_warning(self.step, output)
        return output

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """End it, if it still runs."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
