"""What each device decides for itself: the options of `peer run`, the arguments of `peer.run`, the settings of the runtime.

Each is declared here and nowhere else; nothing here changes what a run computes, up to rounding.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, cast

from pydantic import AfterValidator, Field

from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.graph import own_address, split_address
from coordinator_free_bootstrap.options import EffectiveWhen, Shown, Texts, model_of, parsed, refuse_replaced
from peer.learning.device import device_form

if TYPE_CHECKING:
    from peer.observe.metrics_page import MetricsPage


def _path(given: str | Path) -> Path:  # pydantic cannot read the signature of `Path`
    return Path(given)


GivenPath = Annotated[str | Path, AfterValidator(_path)]
# absolute: the working directory may change later
PathText = Annotated[str | Path, AfterValidator(lambda path: Path(path).absolute())]
LOCAL_HOST = "127.0.0.1"
FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
IN_FILE = (
    "amp",
    "checkpoint_minutes",
    "keep_sent",
    "threads",
    "download",
    "tell_clusters",
    "insecure_anywhere",
    "export",
    "ca",
)  # of `peer run`, only in a file
# a removed option -> the option that replaces it, and the form of its value
REPLACED = {
    "cert": ("certs", "DIR with peer-<id>.pem and peer-<id>.key"),
    "key": ("certs", "DIR with peer-<id>.pem and peer-<id>.key"),
    "metrics_port": ("metrics", "[HOST:]PORT"),
    "metrics_host": ("metrics", "[HOST:]PORT"),
    "log_level": ("log", "LEVEL[,json]"),
    "log_format": ("log", "LEVEL[,json]"),
    "upload_limit": ("limit", "UP[:DOWN]"),
    "download_limit": ("limit", "UP[:DOWN]"),
    "when_command": ("when", "COMMAND"),
}


def log_form(text: str) -> tuple[str, Literal["text", "json"]]:
    """Return level and format of log lines of ``LEVEL[,json]``.

    Raises:
        ValueError: another form; the text says what is allowed.
    """
    words = text.split(",")
    levels = [word for word in words if word in LEVELS]
    formats = [word for word in words if word in FORMATS]
    if len(levels) > 1 or len(formats) > 1 or len(levels) + len(formats) < len(words):
        raise ValueError(f"one of {', '.join(LEVELS)}, and ,json for lines of JSON")
    return (levels or ["info"])[0], "json" if "json" in formats else "text"


def listen_address(given: str | int) -> tuple[str, int]:
    """Return host and port of ``[HOST:]PORT``.

    Raises:
        ValueError: another form; the text says what is allowed.
    """
    text = str(given)
    try:
        host, port = split_address(text if ":" in text else f"{LOCAL_HOST}:{text}")
    except ValueError:
        raise ValueError("a port, such as 9400, or host and port, such as 0.0.0.0:9400") from None
    return host, port


def command_form(text: str) -> list[str]:
    """Return the words of a command whose program exists.

    Raises:
        ValueError: there is none; the text says what is allowed.
    """
    words = shlex.split(text)
    if not words or shutil.which(words[0]) is None:
        raise ValueError("a program of this machine and its arguments")
    return words


def url_form(text: str) -> str:
    """Return the URL of a web server.

    Raises:
        ValueError: another form; the text says what is allowed.
    """
    if not re.fullmatch(r"https?://[^\s/]+\S*", text):
        raise ValueError("a URL that begins with https:// or http://")
    return text


def limits_form(text: str) -> tuple[str | None, str | None]:
    """Return the limits of upload and download of ``UP[:DOWN]``, each a rate or None.

    Raises:
        ValueError: another form; the text says what is allowed.
    """
    up, colon, down = text.partition(":")
    if not (down if colon else up) or ":" in down:
        raise ValueError("UP, UP:DOWN or :DOWN in bytes per second, such as 2MB:5MB")
    return up or None, down or None


def checked(form: Callable[[Any], object]) -> AfterValidator:
    """Return what refuses a value that a function cannot read, and changes no other."""

    def check(given: Any) -> Any:
        if given is not None:
            form(given)
        return given

    return AfterValidator(check)


WITH_TLS = EffectiveWhen(lambda o: not (o.insecure or o.insecure_anywhere), "the peer runs in plaintext")
DataRoot = Annotated[PathText | None, Field(None, description="Folder of the built-in data sets.")]
Download = Annotated[bool, Field(False, description="Let torchvision download missing data sets.")]
Amp = Annotated[
    Literal["bf16"] | None,
    Field(
        None,
        description="bf16: the model computes in mixed precision, which is faster on a GPU; parameters stay float32.",
    ),
]
ThroughProxy = Annotated[
    bool,
    Field(False, description="Dial peers through the HTTP proxy in https_proxy, except the hosts in no_proxy."),
]
Exports = Annotated[
    Texts,
    Field(
        (),
        description="Copy the rounds to a tracker: tensorboard:LOGDIR, mlflow:URI, csv:FILE or parquet:FILE. Repeatable.",
    ),
    Shown(metavar="TRACKER:PLACE"),
]


CheckpointMinutes = Annotated[
    float,
    Field(
        10.0,
        ge=0,
        description="Minutes between two checkpoints inside a round, from which a restart continues a long training; 0: after "
        "each step.",
    ),
]


StartFrom = Annotated[
    PathText | None,
    Field(
        None,
        description="Model file (safetensors), or folder of an earlier run, from which the first models come; run.start_from has "
        "its SHA-256, or is own.",
    ),
]


class LocalOptions(TypedDict, total=False):
    """The options of one peer, in the order of ``peer run --help``."""

    state_dir: Annotated[
        PathText | None, Field(None, description="Folder for state and models. Default: ./state/peer-<id>.")
    ]
    listen: Annotated[
        str | None,
        checked(own_address),
        Field(
            None,
            description="host:port to listen on; [::]:7400: all IPv4 and IPv6 addresses. Default: as in the graph file.",
        ),
    ]
    data_root: DataRoot
    shard: Annotated[PathText | None, Field(None, description="Shard file or folder with this peer's data.")]
    device: Annotated[str, checked(device_form), Field("auto", description="auto, cpu, cuda, cuda:N or mps.")]
    amp: Amp
    threads: Annotated[int, Field(1, ge=1, description="PyTorch threads on the CPU.")]
    checkpoint_minutes: CheckpointMinutes
    keep_sent: Annotated[
        bool,
        Field(
            False,
            description="Keep each model that the peer sends, in the folder sent of its state, for peer privacy leak; without it "
            "those of the last round.",
        ),
    ]
    start_from: StartFrom
    download: Download
    certs: Annotated[
        PathText | None,
        Field(
            None,
            description="Folder with the own peer-<id>.pem and .key, as of peer keygen, and certificates that the graph file "
            "lacks. Default: identity in --state-dir.",
        ),
        WITH_TLS,
    ]
    ca: Annotated[PathText | None, Field(None, description="Certificate authorities of peers, PEM."), WITH_TLS]
    insecure: Annotated[bool, Field(False, description="Plaintext, on loopback only.")]
    insecure_anywhere: Annotated[
        bool, Field(False, description="Plaintext on any address: other hosts can forge models.")
    ]
    limit: Annotated[
        str | None,
        checked(limits_form),
        Field(
            None,
            description="Bytes per second to all neighbors together, and from them: 2MB, 2MB:5MB or :5MB. Default: as in the "
            "graph file.",
        ),
        Shown(metavar="UP[:DOWN]"),
    ]
    proxy: ThroughProxy
    metrics: Annotated[
        str | int | None,
        checked(listen_address),
        Field(None, description="Serve Prometheus metrics here, unencrypted; without HOST on 127.0.0.1 only."),
        Shown(metavar="[HOST:]PORT"),
    ]
    tell_clusters: Annotated[
        bool,
        Field(
            False,
            description="Also tell observers the mixture of clusters, the true cluster, and the chosen collaborators of this "
            "peer. They say how its data are distributed.",
        ),
    ]
    require_own_address: Annotated[
        bool,
        Field(False, description="Exit if this peer's address in the graph file leads to another host or port."),
    ]
    discard_state: Annotated[
        bool,
        Field(
            False,
            description="If --state-dir has the state of another run, move it to discarded-N in it and start at round 0. The "
            "state of this run is resumed.",
        ),
    ]
    when: Annotated[
        Texts,
        Field(
            (),
            description="Work only at this time of day: HH:MM-HH:MM, and a time zone if it is not this machine's: "
            "'22:00-06:00 Europe/Berlin'. Repeat it for more windows. What does not begin with a digit is a command: work only "
            "while it exits with 0; it is run every 2 s.",
        ),
        Shown(metavar="WINDOW|COMMAND"),
    ]
    policy: Annotated[
        PathText | None,
        Field(
            None,
            description="File of this device's owner (TOML): a run that it does not allow is refused before any connection.",
        ),
    ]
    stay: Annotated[
        Literal["never", "completed", "error"],
        Field("never", description="Wait for SIGTERM instead of exiting, after a completed run or after an error."),
    ]
    export: Exports
    on_event: Annotated[
        str | None,
        checked(command_form),
        Field(
            None,
            description="Run this program when something needs attention, with the event as JSON on its input: a neighbor dead "
            "for a minute or back, a round that stalls, a full disk, a model that is not finite, the end.",
        ),
        Shown(metavar="COMMAND"),
    ]
    webhook: Annotated[
        str | None,
        checked(url_form),
        Field(None, description="Post the same events as JSON to this URL."),
        Shown(metavar="URL"),
    ]
    log: Annotated[
        str,
        checked(log_form),
        Field(
            "info", description="Lowest level of log lines on stderr: debug, info, warning or error; ,json: as JSON."
        ),
        Shown(metavar="LEVEL[,json]"),
    ]


def complete_options(peer_id: int, given: Mapping[str, object]) -> LocalOptions:
    """Return all options of a peer: those given, and the defaults of the others.

    Raises:
        UsageError: an option is unknown, removed, out of range or without effect.
    """
    given = {name: value for name, value in given.items() if value is not None}
    refuse_replaced(given, REPLACED)
    read = parsed(model_of(LocalOptions), given, error=UsageError, owner="peer.run")
    options = {name: getattr(read, name) for name in type(read).model_fields}
    options["state_dir"] = options["state_dir"] or Path("state", f"peer-{peer_id}").absolute()
    return cast(LocalOptions, options)


def metrics_of(options: LocalOptions) -> AbstractContextManager[MetricsPage | None]:
    """Serve the metrics in a block, where the options name a port."""
    if (given := options["metrics"]) is None:
        return nullcontext()
    from peer.observe.metrics_page import metrics_page  # here: a peer without metrics need not import their library

    host, port = listen_address(given)
    return metrics_page(port, host)
