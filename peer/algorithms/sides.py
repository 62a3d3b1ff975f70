"""A common division of all peers by their data, without a coordinator: every peer learns all sketches and divides alike. OURS.

In the first round all peers train the same first model, so what differs between their updates differs between their data. Each
peer makes one sketch of its update (q numbers). Announcements of the next rounds pass on every sketch that is known, so after
as many rounds as the graph is wide all peers of a connected part hold the same ones, and the same k-means, with the same seed,
gives each the same division. A lost sketch is one point less. It costs N q float32 on each edge and round, and no model.

A neighbor can pass on a false sketch of another peer; the first that is heard stays. So a liar can misplace peers, nothing else.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coordinator_free_bootstrap.seeds import derive_seed

Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]  # [n, q], one sketch a row


def join(ids: Ids, rows: Rows, other_ids: Ids, other_rows: Rows) -> tuple[Ids, Rows]:
    """Return both sets of sketches as one, ascending by peer id; what is known already stays."""
    new = ~np.isin(other_ids, ids)
    all_ids, all_rows = np.concatenate([ids, other_ids[new]]), np.concatenate([rows, other_rows[new]])
    order = np.argsort(all_ids)
    return all_ids[order], all_rows[order]


def divide(ids: Ids, rows: Rows, parts: int, seed: int) -> dict[int, int]:
    """Return the part of each peer, 0..parts-1, the same wherever the same sketches are known.

    k-means on the sketches; parts are numbered by the smallest peer id in them. With fewer sketches than parts: {}.
    """
    from sklearn.cluster import KMeans

    if len(ids) < parts:
        return {}
    random_state = derive_seed(seed, "divide") % 2**32
    found = KMeans(parts, n_init=10, random_state=random_state).fit_predict(rows.astype(np.float64))
    names: dict[int, int] = {}
    return {int(i): names.setdefault(int(part), len(names)) for i, part in zip(ids, found, strict=True)}
