"""What each device decides for itself: the options of `peer run`, the arguments of `peer.run`, the settings of the runtime.

Each is declared here and nowhere else; nothing here changes what a run computes, up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict, cast

from pydantic import AfterValidator, Field

from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.options import EffectiveWhen, Shown, Texts, model_of, parsed

if TYPE_CHECKING:
    from peer.observe.metrics_page import MetricsPage


def _path(given: str | Path) -> Path:  # pydantic cannot read the signature of `Path`
    return Path(given)


GivenPath = Annotated[str | Path, AfterValidator(_path)]
# absolute: the working directory may change later
PathText = Annotated[str | Path, AfterValidator(lambda path: Path(path).absolute())]
LOCAL_HOST = "127.0.0.1"
WITH_TLS = EffectiveWhen(lambda o: not (o.insecure or o.insecure_anywhere), "the peer runs in plaintext")
DataRoot = Annotated[PathText | None, Field(None, description="Folder of the built-in data sets.")]
Download = Annotated[bool, Field(False, description="Let torchvision download missing data sets.")]
Amp = Annotated[
    str | None,
    Field(
        None,
        description="bf16: the model computes in mixed precision, which is faster on a GPU; parameters stay float32.",
    ),
    Shown(metavar="bf16"),
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


class LocalOptions(TypedDict, total=False):
    """The options of one peer, in the order of ``peer run --help``."""

    state_dir: Annotated[
        PathText | None, Field(None, description="Folder for state and models. Default: ./state/peer-<id>.")
    ]
    listen: Annotated[
        str | None,
        Field(
            None,
            description="host:port to listen on; [::]:7400: all IPv4 and IPv6 addresses. Default: as in the graph file.",
        ),
    ]
    data_root: DataRoot
    shard: Annotated[PathText | None, Field(None, description="Shard file or folder with this peer's data.")]
    device: Annotated[str, Field("auto", description="auto, cpu, cuda, cuda:N or mps.")]
    amp: Amp
    threads: Annotated[int, Field(1, ge=1, description="PyTorch threads on the CPU.")]
    download: Download
    cert: Annotated[
        PathText | None,
        Field(None, description="Own certificate. Default: identity/peer-<id>.pem in --state-dir."),
        WITH_TLS,
    ]
    key: Annotated[
        PathText | None, Field(None, description="Own private key, mode 0600. Default: --cert with .key."), WITH_TLS
    ]
    certs: Annotated[
        PathText | None,
        Field(None, description="Folder with the own key, and certificates that the graph file lacks."),
        WITH_TLS,
    ]
    ca: Annotated[PathText | None, Field(None, description="Certificate authorities of peers, PEM."), WITH_TLS]
    insecure: Annotated[bool, Field(False, description="Plaintext, on loopback only.")]
    insecure_anywhere: Annotated[
        bool, Field(False, description="Plaintext on any address: other hosts can forge models.")
    ]
    upload_limit: Annotated[
        str | None,
        Field(
            None,
            description="Bytes per second to all neighbors together, such as 2MB or 250kB. Default: as in the graph file.",
        ),
    ]
    download_limit: Annotated[
        str | None,
        Field(None, description="Bytes per second from all neighbors together. Default: as in the graph file."),
    ]
    proxy: ThroughProxy
    metrics_port: Annotated[
        int | None,
        Field(None, ge=1, le=65535, description="Serve Prometheus metrics on this port, unencrypted."),
    ]
    metrics_host: Annotated[
        str | None,
        Field(None, description="Address to serve metrics on."),
        Shown(default=LOCAL_HOST),
        EffectiveWhen(lambda o: o.metrics_port is not None, "no port for metrics is given"),
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
            "'22:00-06:00 Europe/Berlin'. Repeat it for more windows.",
        ),
        Shown(metavar="WINDOW"),
    ]
    when_command: Annotated[
        str | None,
        Field(None, description="Work only while this command exits with 0; it is run every 2 s."),
        Shown(metavar="COMMAND"),
    ]
    stay: Annotated[
        Literal["never", "completed", "error"],
        Field("never", description="Wait for SIGTERM instead of exiting, after a completed run or after an error."),
    ]
    export: Exports
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Field("info", description="Lowest level of log lines.")
    ]
    log_format: Annotated[Literal["text", "json"], Field("text", description="Format of log lines on stderr.")]


def complete_options(peer_id: int, given: Mapping[str, object]) -> LocalOptions:
    """Return all options of a peer: those given, and the defaults of the others.

    Raises:
        UsageError: an option is unknown, out of range or without effect.
    """
    given = {name: value for name, value in given.items() if value is not None}
    read = parsed(model_of(LocalOptions), given, error=UsageError, owner="peer.run")
    options = {name: getattr(read, name) for name in type(read).model_fields}
    options["state_dir"] = options["state_dir"] or Path("state", f"peer-{peer_id}").absolute()
    return cast(LocalOptions, options)


def metrics_of(options: LocalOptions) -> AbstractContextManager[MetricsPage | None]:
    """Serve the metrics in a block, where the options name a port."""
    if (port := options["metrics_port"]) is None:
        return nullcontext()
    from peer.observe.metrics_page import metrics_page  # here: a peer without metrics need not import their library

    return metrics_page(port, options["metrics_host"] or LOCAL_HOST)
