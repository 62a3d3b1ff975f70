"""The policy of a device's owner: a file on the device that says which runs its peer may take part in, and when.

The graph file is the researcher's, the policy the owner's. `OwnersPolicy.admit` compares them before a peer has opened a
connection (`peer.runtime.admission` has the rules); hours and bytes of the day are rules of `peer.runtime.schedule`.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import override

from coordinator_free_bootstrap import user_file
from coordinator_free_bootstrap.errors import ConfigProblem, Option, PolicyError, UsageError
from coordinator_free_bootstrap.ordinary_file import text_of, unreadable
from coordinator_free_bootstrap.validation import joined, sentences
from peer.core.encoding import ENCODINGS
from peer.runtime.hours import window_of
from peer.store.files import write_atomic

POLICY_BYTES_MAX = 1 << 20
_NAME = re.compile(r"\s*\[*\s*([\w-]+)")  # of a key or a table, where its line begins


def _hours(texts: list[str]) -> list[str]:
    for text in texts:
        window_of(text)
    return texts


def _encodings(names: list[str]) -> list[str]:
    if unknown := [name for name in names if name not in ENCODINGS]:
        raise ValueError(f"expected names of {', '.join(ENCODINGS)}, got {', '.join(unknown)}")
    return names


class _PolicyTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Approval(_PolicyTable):
    """A file of code that the owner has read and allows, as `peer policy approve` notes it."""

    file: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    by: str
    time: datetime

    @override
    def __str__(self) -> str:
        """Return ``approved by Ada at 2026-11-28 09:30 UTC``."""
        return f"approved by {self.by} at {self.time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


class Policy(_PolicyTable):
    """The keys of a policy file. One that is not there limits nothing, except plaintext and code, which it must allow."""

    algorithms: list[str] | None = Field(None, description="allowed values of run.algorithm")
    encodings: Annotated[list[str], AfterValidator(_encodings)] | None = Field(
        None, description="allowed values of run.encoding"
    )
    neighbors: list[int | str] | None = Field(
        None,
        description="allowed neighbors: ids, or pins such as sha256:..., which no graph file can give to another peer",
    )
    samples_min: int | None = Field(None, ge=1, description="least number of training samples of this peer")
    epsilon_max: float | None = Field(None, gt=0, description="largest limit of epsilon in run.privacy")
    delta_max: float | None = Field(None, gt=0, lt=1, description="largest run.privacy.delta")
    noise_min: float | None = Field(None, gt=0, description="least noise multiplier of run.privacy")
    secure_sums: bool = Field(
        False, description="only runs in which neighbors read sums of models: run.secure_sum is set"
    )
    bytes_a_day: int | None = Field(None, ge=1, description="most bytes that the peer sends in a day of this machine")
    hours: Annotated[list[str], AfterValidator(_hours)] | None = Field(
        None,
        min_length=1,
        description="the only hours of work, as of --when: 22:00-06:00, or 22:00-06:00 Europe/Berlin",
    )
    plaintext: bool = Field(False, description="allow --insecure")
    approved: list[Approval] = Field(default_factory=list, description="files of code that a run may execute")


@dataclass(frozen=True)
class Verdict:
    """What a key of the policy says about a run.

    Attributes:
        key: of the policy.
        allowed: None: not known before the peer has its data.
        asked: the key of the run and what the policy expects of it, as a phrase.
        got: what the run has.
    """

    key: str
    allowed: bool | None
    asked: str
    got: str


@dataclass(frozen=True)
class OwnersPolicy:
    """A policy and the file that it comes from.

    Attributes:
        path: of the file.
        policy: its keys.
        lines: the line of each key, from 1.
        digest: SHA-256 of the file.
    """

    path: Path
    policy: Policy
    lines: dict[str, int]
    digest: str

    @classmethod
    def read(cls, path: Path) -> OwnersPolicy:
        """Return the policy of a file.

        Raises:
            PolicyError: the file cannot be read, is no TOML, or has an unknown key or a wrong value.
        """
        try:
            text = text_of(path, POLICY_BYTES_MAX)
            data = tomllib.loads(text)
        except (OSError, ValueError, RecursionError) as error:
            raise PolicyError(unreadable(str(path), error, expected="a policy file (TOML)")) from None
        try:
            return cls(path, Policy.model_validate(data), _lines(text), hashlib.sha256(text.encode()).hexdigest())
        except ValidationError as error:
            raise PolicyError(joined(str(path), sentences(error, Policy, data))) from None

    def enforce(self) -> None:
        """Let this process execute no file of a user that the policy has not approved; it lasts until the process ends."""
        user_file.approvals[:] = [self._require_approved]

    def where(self, key: str) -> str:
        """Return file and line of a key, as sentences name them."""
        return f"{self.path}, line {self.lines[key]}, {key}" if key in self.lines else f"{self.path}, no {key}"

    def approval_of(self, content: bytes) -> Approval | None:
        """Return the approval of a file's content; None without one."""
        digest = hashlib.sha256(content).hexdigest()
        return next((each for each in self.policy.approved if each.sha256 == digest), None)

    def admit(self, verdicts: Iterable[Verdict]) -> None:
        """Refuse a run that the policy does not allow.

        Raises:
            PolicyError: the first verdict that is refused, in one sentence with the keys of policy and run.
        """
        for each in verdicts:
            if each.allowed is False:
                raise self._refusal(each)

    def _refusal(self, verdict: Verdict) -> PolicyError:
        fix = "The owner of this device decides: ask for another graph file, or change the policy."
        if verdict.key == "approved":
            fix = f"Read the file, then: peer policy approve FILE --policy {self.path}"
        return PolicyError(ConfigProblem(self.where(verdict.key), verdict.asked, verdict.got, fix))

    def of_file(self, key: str, path: Path, content: bytes) -> Verdict:
        """Return whether the content of a file that a key names is approved."""
        approval = self.approval_of(content)
        got = f"{path} with SHA-256 {hashlib.sha256(content).hexdigest()}"
        if approval is not None:
            got = f"{path}, {approval}"
        return Verdict("approved", approval is not None, f"{key} to be an approved file", got)

    def _require_approved(self, path: Path, content: bytes) -> None:
        self.admit([self.of_file("code of a user", path, content)])


def with_approval(path: Path, file: Path, content: bytes, by: str, time: datetime) -> Approval:
    """Append the approval of a file's content to a policy file, and return it.

    Raises:
        UsageError: a name has characters that no text shows.
        StorageError: the policy file cannot be written.
    """
    for name in (by, file.name):
        if not name.isprintable():
            raise UsageError(ConfigProblem(Option("by"), "names of printable characters", ascii(name)))
    made = Approval(file=file.name, sha256=hashlib.sha256(content).hexdigest(), by=by, time=time.replace(microsecond=0))
    named = {"file": made.file, "sha256": made.sha256, "by": made.by}
    texts = (f"{name} = {json.dumps(text, ensure_ascii=False)}" for name, text in named.items())
    table = "\n".join(("", "[[approved]]", *texts, f"time = {made.time.isoformat()}", ""))
    write_atomic(path, text_of(path, POLICY_BYTES_MAX).encode() + table.encode())
    return made


def enforced(path: Path | str | None) -> OwnersPolicy | None:
    """Return the policy of a file, which this process enforces from now on; None without a file.

    Raises:
        PolicyError: as `OwnersPolicy.read`.
    """
    if path is None:
        return None
    policy = OwnersPolicy.read(Path(path))
    policy.enforce()
    return policy


def _lines(text: str) -> dict[str, int]:
    """Return the line on which each name first begins one."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if match := _NAME.match(line):
            found.setdefault(match[1], number)
    return found
