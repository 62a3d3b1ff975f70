"""The status that a peer answers, validated: nothing that a peer says is shown before its types and limits are checked."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coordinator_free_bootstrap.errors import RefusalCode, RemoteProtocolError
from coordinator_free_bootstrap.identity import INCARNATION_MAX
from coordinator_free_bootstrap.strict_json import printable
from coordinator_free_bootstrap.validation import sentences
from peer.store.records import COUNT_MAX, ENTRIES_MAX, Count, MetricRecord, MoreMetrics, PeerId, PeerIds, Word

PeerKey = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class PeerStatus(BaseModel):
    """One answer of `PeerHost.status`. Unknown keys are dropped.

    Attributes:
        stage: of the run, `peer.core.stages.Stage`.
        waiting_for: neighbors whose models the round waits for.
        owed_to: neighbors that have not accepted this peer's models.
        unchanged_s: seconds since stage or round last changed.
        deadline_s: seconds until the round closes without the models that are missing then; None if it waits for nobody.
        metric: of the task, and its last value; `more_metrics`: its others.
        routes: how each neighbor is called: direct, proxy, tunnel or relay.
        outcome: how the run of this peer ended: completed, left, refused, alone, diverged or failed; None while it goes on.
        exit_code: of the process, with `outcome`.
        true_cluster: if the peer sends it.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    peer_id: PeerId
    incarnation: Annotated[int, Field(ge=0, le=INCARNATION_MAX)]
    phase: Word
    stage: Word
    round_index: Count
    rounds_total: Count
    persisted_round: Annotated[int, Field(ge=-1, le=COUNT_MAX)]
    waiting_for: PeerIds
    owed_to: PeerIds
    waiting_s: Seconds
    unchanged_s: Seconds
    suspicion_s: Seconds
    deadline_s: Seconds | None = None
    neighbors: Annotated[dict[PeerKey, Word], Field(max_length=ENTRIES_MAX)]
    neighbor_rounds: Annotated[dict[PeerKey, int], Field(max_length=ENTRIES_MAX)]
    silent_s: Annotated[dict[PeerKey, Seconds | None], Field(max_length=ENTRIES_MAX)]
    metric: MetricRecord
    more_metrics: MoreMetrics = []
    cluster_index: Count | None
    totals: Annotated[dict[Word, Count], Field(max_length=100)]
    refusals: Annotated[dict[Word, Count], Field(max_length=100)]
    storage_error: Annotated[str, Field(max_length=4096)]
    open_streams: Count = 0
    routes: Annotated[dict[PeerKey, Word], Field(max_length=ENTRIES_MAX)] = {}
    outcome: Word | None = None
    exit_code: Annotated[int, Field(ge=0, le=255)] | None = None
    true_cluster: Count | None = None


def read_status(value: Any, peer_id: int | None = None) -> PeerStatus:
    """Return a status after validation.

    Args:
        value: the JSON object of a status reply.
        peer_id: of the peer that was asked; None: any.

    Raises:
        RemoteProtocolError: MALFORMED; the sentence names the first wrong key, what is expected and the actual value.
    """
    try:
        status = PeerStatus.model_validate(value)
    except ValidationError as error:
        raise _not_valid(sentences(error, PeerStatus, value)[0]) from error
    if peer_id is not None and status.peer_id != peer_id:
        raise _not_valid(f"peer_id: expected {peer_id}, the peer that was asked, got {status.peer_id}")
    return status


def _not_valid(problem: str) -> RemoteProtocolError:
    return RemoteProtocolError(RefusalCode.MALFORMED, f"not a valid status: {printable(problem)}")
